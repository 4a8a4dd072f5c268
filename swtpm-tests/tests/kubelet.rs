//! A node that started with the pre-approved config, and comes back for the full one with its kubelet's client certificate.
use std::fs;

use swtpm_tests::scenario::{Site, VmRun};
use swtpm_tests::{IGNITION_SPEC, POOL, TestCluster, TestFolder, WrittenFile};

const NODE: &str = "worker-1";

/// Starts a gateway whose pool gives its full config to kubelets of this cluster.
fn site(folder: &std::path::Path, cluster: &TestCluster) -> Site {
    let mut site = Site::new(folder).unwrap();
    let gateway = site.gateway();
    fs::write(gateway.folder().join("tls/kubelet-client-ca.crt"), cluster.certificate().unwrap()).unwrap();
    let settings = fs::read_to_string(gateway.settings()).unwrap();
    let client_ca = "[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"";
    fs::write(gateway.settings(), settings.replace("#: [tls]", client_ca)).unwrap();
    gateway.edit_pool("\nkubelet = \"refuse\"", "\nkubelet = \"full\"").unwrap();
    gateway.edit_pool("\nnames = []", "\nnames = [\"worker-*\"]").unwrap();
    gateway.start(None).unwrap();
    site
}

/// Boots a VM without TPM that has the kubelet's file. Before its kubelet presents anything, it has exactly the pre-approved config.
fn boot(site: &mut Site, cluster: &TestCluster) -> VmRun {
    let pointer = site.gateway().pointer(None).unwrap();
    let vm = site.vm().pointer(&pointer).kubelet_client(&cluster.kubelet_client(NODE).unwrap());
    let folder = site.vm_folder("kubelet").unwrap();
    let run = site.boot(vm, &folder).unwrap();
    site.prove_exactly("pre-approved", &run.outcome).unwrap();
    let first = run.records.first().unwrap();
    assert_eq!(
        (first.decision(), first.shown(), first.verdict(), first.grant()),
        ("config", "nothing", "served", Some("pre-approved"))
    );
    assert_eq!(run.records.len(), 2, "{:?}", run.records);
    run
}

#[test]
fn a_pre_approved_node_gets_the_full_config_by_its_kubelets_certificate() {
    let folder = TestFolder::new().unwrap();
    let cluster = TestCluster::new().unwrap();
    let mut site = site(folder.path(), &cluster);
    let run = boot(&mut site, &cluster);
    assert_eq!(run.outcome.exit_codes.get("attest-node-config"), Some(&0));
    let said = run.outcome.node_verdict().unwrap();
    assert!(
        said.starts_with("attest-node: config of pool worker from https://10.0.2.2:") && said.ends_with("written to /run/full.ign"),
        "{said}"
    );
    let served = run.records.last().unwrap();
    assert_eq!(
        (served.decision(), served.shown(), served.verdict(), served.grant()),
        ("config", "kubelet", "served", Some("full"))
    );
    assert_eq!(served.identity(), Some("kubelet:worker-1"));
    assert_eq!(
        (served.text("/name"), served.text("/spec_version")),
        (Some(NODE), Some(IGNITION_SPEC))
    );
    let sha256 = served.text("/config_sha256").unwrap().to_owned();
    assert_eq!(
        run.outcome.config,
        Some(WrittenFile::File {
            mode: 0o600,
            sha256: sha256.clone()
        })
    );
    let full = site
        .gateway()
        .command(&["config", "render", "--pool", POOL, "--set", "full", "--spec", IGNITION_SPEC])
        .unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, full.trim_end().as_bytes());
    assert_eq!(data_encoding::HEXLOWER.encode(digest.as_ref()), sha256);
    let audit = site.gateway().audit(&[]).unwrap();
    assert!(audit.contains("kubelet:worker-1") && audit.contains(" same"), "{audit}");
}

#[test]
fn a_revoked_node_gets_nothing_by_its_kubelets_certificate() {
    let folder = TestFolder::new().unwrap();
    let cluster = TestCluster::new().unwrap();
    let mut site = site(folder.path(), &cluster);
    site.gateway()
        .command(&["node", "revoke", "--anyway", NODE, "--reason", "disk sold"])
        .unwrap();
    let run = boot(&mut site, &cluster);
    assert_eq!(
        (run.outcome.exit_codes.get("attest-node-config"), &run.outcome.config),
        (Some(&1), &None)
    );
    let said = run.outcome.node_verdict().unwrap();
    assert!(said.contains("[node-revoked]; next: ") && !said.contains("disk sold"), "{said}");
    let refused = run.records.last().unwrap();
    assert_eq!(
        (refused.decision(), refused.shown(), refused.verdict(), refused.code()),
        ("config", "kubelet", "refused", Some("node-revoked"))
    );
    assert_eq!(refused.identity(), Some("kubelet:worker-1"));
}
