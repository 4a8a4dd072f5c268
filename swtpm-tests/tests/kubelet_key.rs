//! From a TPM's quote of the kubelet's key to a certificate for it, by the real programs. The node attests and asks, the gateway approves,
//! a cluster signs, and mutual TLS with the kubelet's certificate identifies the node.
use std::fs;
use std::time::Duration;

use cloud_fixtures::kubernetes::KubernetesApi;
use serde_json::Value;
use swtpm_tests::{EkAuthority, Process, Programs, TestCluster, TestEndorsement, TestFolder, TestGateway, TpmServer};

use crate::approval::{CSRS, SETTINGS, bootstrap_kubeconfig, controller, sign_approved, wait};

const NODE: &str = "worker-1";
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_quoted_kubelet_key_gets_its_certificate() {
    let folder = TestFolder::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (authority, cluster, api) = (
        EkAuthority::new(&path("manufacturer")).unwrap(),
        TestCluster::new().unwrap(),
        KubernetesApi::start(),
    );
    let mut gateway = TestGateway::on_free_port(&path("gateway")).unwrap();
    gateway.trust(&authority).unwrap();
    fs::write(gateway.folder().join("tls/kubelet-client-ca.crt"), cluster.certificate().unwrap()).unwrap();
    let settings = fs::read_to_string(gateway.settings()).unwrap();
    let client_ca = "[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"";
    fs::write(gateway.settings(), settings.replace("#: [tls]", client_ca)).unwrap();
    gateway.add_settings(SETTINGS).unwrap();
    gateway.edit_pool("\nkubelet = \"refuse\"", "\nkubelet = \"full\"").unwrap();
    gateway.edit_pool("\nnames = []", "\nnames = [\"worker-*\"]").unwrap();
    gateway.start(None).unwrap();
    let _controller = controller(&gateway, &api, &path("controller.log"));
    let tpm = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    fs::write(path("pointer.ign"), gateway.pointer_to("127.0.0.1", gateway.port(), None).unwrap()).unwrap();
    fs::write(path("cmdline"), "quiet attest-node.kubelet-key\n").unwrap();
    fs::create_dir(path("kept")).unwrap();
    let node = |arguments: &[(&str, String)], command: &[&str], log: &str| {
        let words = arguments.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]);
        let words = command.iter().map(|word| (*word).to_owned()).chain(words);
        Process::spawn(&Programs::build().unwrap().node, words, &path(log), None).unwrap()
    };
    let text = |name: &str| path(name).display().to_string();

    let attesting = [
        ("--pointer", text("pointer.ign")),
        ("--out", text("user.ign")),
        ("--cmdline", text("cmdline")),
        ("--event-log", text("no-event-log")),
        ("--tcti", tpm.tcti()),
        ("--state", text("state")),
        ("--kept", text("kept")),
        ("--name", NODE.to_owned()),
    ];
    let mut attested = node(&attesting, &["attest"], "node.log");
    assert!(attested.wait(LIMIT).unwrap().success(), "{:?}", attested.lines());
    let records = gateway.records().unwrap();
    let evidence = records.iter().find(|record| record.decision() == "evidence").unwrap();
    let key = evidence.text("/claims/kubelet_key_sha256").unwrap().to_owned();

    // Somebody else has the bootstrap credential, and is first.
    fs::write(path("bootstrap"), bootstrap_kubeconfig(&api)).unwrap();
    let asking = |kept: &str, keys: &str, pki: &str, wait: &str| {
        [
            ("--kubeconfig", text("bootstrap")),
            ("--name", NODE.to_owned()),
            ("--kept", text(kept)),
            ("--keys", text(keys)),
            ("--certificates", text(pki)),
            ("--wait", wait.to_owned()),
        ]
    };
    fs::create_dir(path("others")).unwrap();
    let others = attest_node::kubelet::key::KeyPaths::new(&path("others"), &path("others-disk"));
    others.load_or_create().unwrap().unwrap();
    let mut other = node(
        &asking("others", "others-disk", "others-pki", "600"),
        &["kubelet-certificate", "request"],
        "other.log",
    );
    let theirs = wait(&api, LIMIT, |_| true)["metadata"]["name"].as_str().unwrap().to_owned();

    // It is judged before the node asks: of what comes later, the attestation may be used already, and that is said then.
    let is_judged = |event: &Value| {
        let said = event["message"].as_str().unwrap_or_default();
        said.starts_with("csr-key-not-attested: ") && said.contains(&key)
    };
    let judged = api.wait_for(LIMIT, || api.all("events").into_iter().find(is_judged));
    assert!(judged.is_some(), "{:?}", api.all("events"));
    let mut own = node(&asking("kept", "keys", "pki", "60"), &["kubelet-certificate", "request"], "own.log");
    assert_ne!(sign_approved(&cluster, &api, LIMIT), theirs);
    assert!(own.wait(LIMIT).unwrap().success(), "{:?}", own.lines());
    assert!(!path("kept/kubelet-key.pem").exists() && !path("keys").exists());
    assert_eq!(api.get(CSRS, "", &theirs).unwrap()["status"]["conditions"], Value::Null);
    other.kill().unwrap();

    // What the kubelet has is what the gateway knows the node by.
    let config = [
        ("--pointer", text("pointer.ign")),
        ("--certificate", text("pki/kubelet-client-current.pem")),
        ("--out", text("full.ign")),
        ("--kept", text("kept")),
    ];
    let mut config = node(&config, &["config", "fetch"], "config.log");
    assert!(config.wait(LIMIT).unwrap().success(), "{:?}", config.lines());
    let records = gateway.records().unwrap();
    let served = records.last().unwrap();
    assert_eq!(
        (served.shown(), served.verdict(), served.identity()),
        ("kubelet", "served", Some("kubelet:worker-1"))
    );
    // The approval was told in the store; its record follows, and is shown then.
    let is_shown = |line: &str| line.contains(" ADMIN ") && line.contains("csr.approve");
    gateway.process().unwrap().wait_line(LIMIT, is_shown).unwrap();
    let audit = gateway.audit(&[]).unwrap();
    assert!(audit.contains(", 0 different;") && audit.contains("csr.approve"), "{audit}");
}
