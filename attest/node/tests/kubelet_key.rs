//! A node that attests the key that its kubelet will have: its messages to gateways of each release, and the files that it leaves for the
//! booted system.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use attest::gcp::{Audience, request_path};
use attest::nonce::PURPOSE_CONFIG;
use attest::protocol::{SERVICE, VERSION};
use attest::{SpkiSha256, purpose};
use attest_node::kubelet::key::KeyPaths;
use serde_json::json;

use crate::attest_in_cloud::amazon;
use crate::support::gateway::{Gateway, Instead, NONCE, OF_AN_EARLIER_RELEASE};
use crate::support::{Server, google, google_token};

/// Attests as an instance of Google's. Returns whether it succeeded, and its output.
fn run(folder: &Path, gateway: &Gateway, cmdline: &str, arguments: &[&str]) -> (bool, String) {
    run_in("gcp", &google(Some(gateway.pointer())), folder, cmdline, arguments)
}

/// Runs the program in the cloud with this metadata server.
fn run_in(cloud: &str, metadata: &Server, folder: &Path, cmdline: &str, arguments: &[&str]) -> (bool, String) {
    fs::write(folder.join("cmdline"), format!("ignition.platform.id={cloud} {cmdline}")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .env("TSS2_LOG", "all+NONE")
        .args([
            "attest",
            "--cmdline",
            "cmdline",
            "--dmi",
            "dmi",
            "--metadata",
            &metadata.base,
            "--out",
            "user.ign",
            "--state",
            "state",
        ])
        .args([
            "--first-boot-secret-on",
            "none",
            "--tcti",
            "device:/dev/no-such-tpm",
            "--deadline",
            "30",
            "--kept",
            "kept",
        ])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("PRIVATE"), "{said}");
    (output.status.success(), said)
}

/// A gateway for Google's instances, of this release or an earlier one, which answers evidence otherwise.
fn gateway(is_older: bool, evidence: Option<Instead>) -> Gateway {
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    let hold = is_older.then_some(OF_AN_EARLIER_RELEASE);
    Gateway::answering(&json!(["gcp"]), &task, hold, move |path, _| {
        evidence.clone().filter(|_| path == "/v1/attest/evidence")
    })
}

fn initramfs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("kept")).unwrap();
    folder
}

/// The key that the booted system finds.
fn key(folder: &Path) -> Option<SpkiSha256> {
    let places = KeyPaths::new(&folder.join("kept"), &folder.join("keys"));
    places.settle().unwrap().and_then(|key| key.digest())
}

/// Checks the purpose in the identity token that was shown.
fn shown(gateway: &Gateway, purpose: &str) {
    let audience = Audience::new("api-int.example", purpose, "worker", &NONCE, &gateway.server_key);
    assert_eq!(
        gateway.evidence().evidence.gcp.unwrap().token.0,
        google_token(&request_path(&audience))
    );
}

#[test]
fn attested_key_is_the_stored_kubelet_key() {
    for (cmdline, arguments) in [("attest-node.kubelet-key", [].as_slice()), ("", &["--kubelet-key"])] {
        let (folder, gateway) = (initramfs(), gateway(false, None));
        let (success, said) = run(folder.path(), &gateway, cmdline, arguments);
        assert!(success && said.contains("for pool worker, with a key for its kubelet"), "{said}");
        let key = key(folder.path()).unwrap();
        assert_eq!(gateway.offer().kubelet_key_sha256, Some(key.into()));
        shown(&gateway, &purpose::with_kubelet_key(&key));
        let written = fs::read_to_string(folder.path().join("user.ign")).unwrap();
        assert!(!written.contains("PRIVATE") && !written.contains(&key.to_string()), "{written}");
    }
}

#[test]
fn legacy_gateway_gets_no_key_and_issues_ticket() {
    let (folder, gateway) = (initramfs(), gateway(true, None));
    let (success, said) = run(folder.path(), &gateway, "attest-node.kubelet-key", &[]);
    assert!(
        success && said.contains("no gateway has accepted this node's attested key") && said.contains("ticket written"),
        "{said}"
    );
    assert_eq!((gateway.offer().kubelet_key_sha256, key(folder.path())), (None, None));
    shown(&gateway, PURPOSE_CONFIG);
}

/// Starts a gateway that approves only CSRs for attested keys, and says so in its discovery.
fn approving() -> Gateway {
    let discovery = json!({"service": SERVICE, "protocol": VERSION, "kinds": ["gcp"], "kubelet_key": true});
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    Gateway::answering(&json!(["gcp"]), &task, None, move |path, _| {
        (path == "/v1/attest?pool=worker").then(|| Some((200, String::new(), discovery.to_string())))
    })
}

#[test]
fn approving_gateway_gets_the_key_unless_disabled() {
    let (folder, gateway) = (initramfs(), approving());
    let (success, said) = run(folder.path(), &gateway, "", &[]);
    assert!(success && said.contains("for pool worker, with a key for its kubelet"), "{said}");
    let attested = key(folder.path()).unwrap();
    assert_eq!(gateway.offer().kubelet_key_sha256, Some(attested.into()));
    shown(&gateway, &purpose::with_kubelet_key(&attested));
    let (folder, gateway) = (initramfs(), approving());
    let (success, said) = run(folder.path(), &gateway, "attest-node.kubelet-key=no", &[]);
    assert!(success && said.lines().count() == 1, "{said}");
    assert_eq!((gateway.offer().kubelet_key_sha256, key(folder.path())), (None, None));
    // Where there is no room for it, the node attests without.
    let (folder, gateway) = (tempfile::tempdir().unwrap(), approving());
    let (success, said) = run(folder.path(), &gateway, "", &[]);
    assert!(success && said.lines().count() == 1, "{said}");
    shown(&gateway, PURPOSE_CONFIG);
}

#[test]
fn non_approving_gateway_gets_no_kubelet_key() {
    let (folder, gateway) = (initramfs(), gateway(false, None));
    let (success, said) = run(folder.path(), &gateway, "", &[]);
    assert!(success && said.lines().count() == 1, "{said}");
    assert_eq!((gateway.offer().kubelet_key_sha256, key(folder.path())), (None, None));
    shown(&gateway, PURPOSE_CONFIG);
}

#[test]
fn refused_kubelet_key_is_not_stored() {
    let problem =
        json!({"type": "urn:attestation-gateway:problem:x", "title": "x", "status": 403, "code": "gcp-project", "next_step": "x"});
    let (folder, refusing) = (initramfs(), gateway(false, Some(Some((403, String::new(), problem.to_string())))));
    let (success, said) = run(folder.path(), &refusing, "attest-node.kubelet-key", &[]);
    assert!(
        !success && said.contains("no gateway has accepted this node's attested key"),
        "{said}"
    );
    assert_eq!(key(folder.path()), None);
    // Where the booted system would not find it.
    let (folder, gateway) = (tempfile::tempdir().unwrap(), gateway(false, None));
    let (success, said) = run(folder.path(), &gateway, "attest-node.kubelet-key", &[]);
    assert!(success && said.contains("no key is attested for the kubelet"), "{said}");
    assert_eq!(gateway.offer().kubelet_key_sha256, None);
}

#[test]
fn unsigned_kubelet_key_is_not_stored() {
    let task = json!({"aws_identity_document": {}});
    let (folder, gateway) = (initramfs(), Gateway::start(&json!(["aws-identity-document"]), &task));
    let metadata = amazon(gateway.pointer());
    let (success, said) = run_in("aws", &metadata, folder.path(), "attest-node.kubelet-key", &[]);
    assert!(
        success && said.contains("no gateway has accepted this node's attested key"),
        "{said}"
    );
    assert_eq!(key(folder.path()), None);
}
