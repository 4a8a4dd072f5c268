//! A VM whose pointer names the virtual IP of a control-plane host, port 22623. A Machine Config Server answers unauthenticated clients
//! there until a gateway takes its place, like in docs/how-to/install-openshift.md.

use crate::network::{Host, Network};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use cloud_fixtures::machine_config_server::MachineConfigServer;
use serde_json::Value;
use swtpm_tests::scenario::{Scenario, Site, VM_LIMIT};
use swtpm_tests::{IGNITION_SPEC, IgnitionOutcome, POOL, TestFolder, TestGateway};

/// Spec versions in which a Machine Config Server has a config.
const VERSIONS: [&str; 6] = ["2.2.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"];
const VIRTUAL_IP: &str = "10.0.0.20";

/// Returns the sample pool's full config in each version, in a format that no gateway would write.
fn configs(gateway: &TestGateway) -> BTreeMap<&'static str, Vec<u8>> {
    let config = |version: &'static str| {
        let rendered = gateway
            .command(&["config", "render", "--pool", POOL, "--set", "full", "--spec", version])
            .unwrap();
        let value: Value = serde_json::from_str(&rendered).unwrap();
        (version, serde_json::to_vec_pretty(&value).unwrap())
    };
    VERSIONS.into_iter().map(config).collect()
}

/// Makes the pool take its config from the server on the same host, with one file of it in the pre-approved config.
fn prepare(gateway: &mut TestGateway) {
    let upstream = "[upstream]\nurl = \"https://localhost:22623\"\naddress = \"127.0.0.1:22623\"\nca = \"../../tls/mcs-ca.crt\"\n";
    gateway.add_to_pool(upstream).unwrap();
    gateway
        .add_to_pool("[upstream.include]\nfiles = [\"/etc/attest-gateway/pre-approved\"]\n")
        .unwrap();
    for set in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.folder().join("pools").join(POOL).join(set)).unwrap();
    }
    let addresses = [
        "certificate",
        "renew",
        "--host",
        "localhost",
        "--ip",
        "127.0.0.1",
        "--ip",
        VIRTUAL_IP,
    ];
    gateway.command(&addresses).unwrap();
    gateway.set_port(22625).unwrap();
    gateway.set("listen", "\"[::]:22625\"").unwrap();
}

/// Boots a VM on the network outside of the host. Returns its report.
fn boot(site: &Site, network: &Network, pointer: &str, scenario: Scenario) -> IgnitionOutcome {
    let folder = site.vm_folder(scenario.name()).unwrap();
    let tpm = site.tpm(scenario, &folder).unwrap();
    let mut vm = site.vm().pointer(pointer);
    if let Some(tpm) = &tpm {
        vm = vm.tpm(tpm);
    }
    // What a thread has started ends with it.
    network.on(|| {
        let mut vm = vm.start(&folder).unwrap();
        vm.wait_off(VM_LIMIT).unwrap();
        IgnitionOutcome::parse(&vm.console().lines()).unwrap()
    })
}

#[test]
fn a_vm_boots_through_the_mcs_virtual_ip() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: network namespaces are root's");
        return;
    }
    let network = Network::new();
    let host = network.host(21);
    host.add(VIRTUAL_IP);
    host.on(|| vms_boot(&network, &host));
}

/// Boots VMs from the host's network namespace.
fn vms_boot(network: &Network, host: &Host) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let given = configs(site.gateway());
    prepare(site.gateway());
    let [certificate, key] = site.gateway().serving_certificate();
    let configs = given.clone();
    let config = Arc::new(move |version: &str| configs[version].clone());
    let server = MachineConfigServer::start(&certificate, &key, POOL, config);
    site.gateway().start(None).unwrap();
    host.nft(
        &site
            .gateway()
            .command(&["manifests", "render", "--platform", "baremetal", "--only", "nft"])
            .unwrap(),
    );
    let pointer = site.gateway().pointer_to(VIRTUAL_IP, 22623, None).unwrap();
    let trusted = boot(&site, network, &pointer, Scenario::EndorsedTpm);
    let stranger = boot(&site, network, &pointer, Scenario::Nothing);
    site.prove_exactly("full", &trusted).unwrap();
    site.prove_exactly("pre-approved", &stranger).unwrap();
    // Nobody but the gateway, which asks in all versions.
    let requests = server.with_tls.requests();
    assert!(!requests.is_empty() && server.plain.requests().is_empty());
    for request in &requests {
        let agent = request.header("user-agent").unwrap();
        assert!(agent.starts_with("attest-gateway/"), "{agent}");
    }
    // Byte for byte, by its digest in the log.
    let records = site.gateway().records().unwrap();
    let served: Vec<_> = records.iter().filter(|record| record.verdict() == "served").collect();
    let [full, pre_approved] = *served else { panic!("{records:#?}") };
    assert_eq!((full.grant(), pre_approved.grant()), (Some("full"), Some("pre-approved")));
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &given[IGNITION_SPEC]);
    let digest = data_encoding::HEXLOWER.encode(digest.as_ref());
    assert_eq!(full.text("/config_sha256"), Some(digest.as_str()));
}
