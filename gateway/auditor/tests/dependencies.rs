//! Tests for the packages that the auditor is built of.

use std::process::Command;

/// The packages that these packages are built with, tests aside.
fn compiled(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal,build", "--target", "all"])
        .args(["--prefix", "none", "--format", "{p}", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    tree.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

#[test]
fn auditor_links_no_store_server_or_kubernetes_client() {
    let (auditor, gateway) = (compiled("attest-audit"), compiled("attest-gateway"));
    for absent in [
        "attest-gateway",
        "attest-recording",
        "attest-store",
        "axum",
        "etcd-client",
        "hyper",
        "kube",
        "libsqlite3-sys",
        "reqwest",
        "rusqlite",
        "tonic",
    ] {
        assert!(!auditor.iter().any(|name| name == absent), "attest-audit is built with {absent}");
        assert!(gateway.iter().any(|name| name == absent), "this test would not see {absent}");
    }
}

#[test]
fn only_the_auditor_reads_images_of_disks() {
    let (auditor, gateway) = (compiled("attest-audit"), compiled("attest-gateway"));
    for reader in ["ext4-view", "fatfs", "gpt"] {
        assert!(auditor.iter().any(|name| name == reader), "this test would not see {reader}");
        assert!(!gateway.iter().any(|name| name == reader), "attest-gateway is built with {reader}");
    }
}
