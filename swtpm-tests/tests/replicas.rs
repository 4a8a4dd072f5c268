//! A VM boots through a balancer, three gateways and three members of etcd, while the gateways are restarted one by one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;

use cloud_fixtures::etcd::EtcdServer;
use cloud_fixtures::haproxy::{BALANCER, Haproxy};
use swtpm_tests::scenario::{Scenario, Site, VM_LIMIT};
use swtpm_tests::{GUEST_VIEW_OF_HOST, IgnitionOutcome, LogRecord, TestFolder, TestGateway};

const REPLICAS: usize = 3;

/// Starts three replicas of the site's own gateway, which does not run: on this etcd, behind haproxy.
fn replicas(site: &mut Site, members: &[EtcdServer], folder: &Path) -> Vec<TestGateway> {
    let endpoints: Vec<String> = members.iter().map(EtcdServer::endpoint).collect();
    let key_file = folder.join("store.key");
    let gateway = site.gateway();
    gateway.set("proxy_protocol_from", &format!("[\"{BALANCER}\"]")).unwrap();
    gateway
        .add_settings(&format!(
            "[store]\nengine = \"etcd\"\nendpoints = {endpoints:?}\nkey_file = {key_file:?}"
        ))
        .unwrap();
    let replica = |number| gateway.replica(&folder.join(format!("replica-{number}"))).unwrap();
    let mut replicas: Vec<TestGateway> = (0..REPLICAS).map(replica).collect();
    replicas[0].command(&["store", "create-key"]).unwrap();
    for replica in &mut replicas {
        replica.start(None).unwrap();
    }
    replicas
}

/// Restarts one replica after the other, by SIGTERM, until the condition holds. Returns the number of restarts.
fn restart_until(replicas: &mut [TestGateway], over: impl Fn() -> bool) -> usize {
    let mut restarts = 0;
    while !over() {
        let replica = &mut replicas[restarts % REPLICAS];
        assert!(replica.terminate().unwrap().success());
        replica.start(None).unwrap();
        restarts += 1;
    }
    restarts
}

/// Returns the report of an auditor with the logs, the keys and the evidence of all replicas.
fn audited(replicas: &[TestGateway]) -> String {
    let auditor = &replicas[0];
    let mut arguments = Vec::new();
    for replica in replicas {
        let key = replica.folder().join("log-key.pem");
        fs::write(&key, replica.command(&["log", "show-key"]).unwrap()).unwrap();
        arguments.push(format!("--log-key={}", key.display()));
        arguments.push(format!("--log={}", replica.attestation_log().display()));
        for blob in fs::read_dir(replica.folder().join("state/evidence")).unwrap() {
            let blob = blob.unwrap();
            let kept = auditor.folder().join("state/evidence").join(blob.file_name());
            // It is named by what is in it.
            if !kept.exists() {
                fs::copy(blob.path(), kept).unwrap();
            }
        }
    }
    auditor.audit(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_vm_boots_while_its_three_gateways_are_restarted_one_by_one() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let members = EtcdServer::start_three();
    let mut replicas = replicas(&mut site, &members, folder.path());
    let addresses: Vec<SocketAddr> = replicas
        .iter()
        .map(|replica| (Ipv4Addr::LOCALHOST, replica.port()).into())
        .collect();
    let haproxy = Haproxy::before(&addresses, "");
    let port = haproxy.address().port();
    let pointer = replicas[0].pointer_to(GUEST_VIEW_OF_HOST, port, None).unwrap();
    let vm_folder = site.vm_folder("restarts").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap();
    let mut vm = site.vm().pointer(&pointer).tpm(&tpm).start(&vm_folder).unwrap();

    let lines = thread::scope(|scope| {
        let booting = scope.spawn(|| {
            vm.wait_off(VM_LIMIT).unwrap();
            vm.console().lines()
        });
        let restarts = restart_until(&mut replicas, || booting.is_finished());
        assert!(restarts >= REPLICAS, "the VM was faster than {restarts} restarts");
        booting.join().unwrap()
    });
    site.prove_exactly("full", &IgnitionOutcome::parse(&lines).unwrap()).unwrap();

    for replica in &mut replicas {
        assert!(replica.terminate().unwrap().success());
    }
    let records: Vec<LogRecord> = replicas.iter().flat_map(|replica| replica.records().unwrap()).collect();
    let of = |verdict: &str| -> Vec<&LogRecord> { records.iter().filter(|record| record.verdict() == verdict).collect() };
    let ([attested], [served]) = (&*of("trusted"), &*of("served")) else {
        panic!("not one attestation and one config: {records:#?}")
    };
    assert_eq!(attested.identity(), served.identity());
    assert_eq!(served.text("/earned_by"), attested.text("/id"));
    assert_eq!((records.len(), served.grant()), (2, Some("full")));
    let said = audited(&replicas);
    assert_eq!(said.lines().filter(|line| line.ends_with("  whole")).count(), REPLICAS, "{said}");
    assert!(said.contains("2 as recorded, 0 different;"), "{said}");
}
