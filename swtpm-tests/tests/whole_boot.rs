//! Whole boots, of two releases of Debian: firmware, Debian's kernel, dracut's initrd with Debian's ignition module and our appended node-initrd file, a TPM,
//! systemd, a real root, up to multi-user.target; with the full config's files on the disk, and on one of them the kubelet's certificate.
use std::fs;
use std::process::Command;
use std::time::Duration;

use cloud_fixtures::kubernetes::Kubernetes;
use data_encoding::BASE64;
use serde_json::{Value, json};
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{Cluster, Folder, GUEST_VIEW_OF_HOST, Gateway, POOL, Process, Release, content_of, read_from_disk};

use crate::approval::{self, bootstrap_kubeconfig, sign_approved};

/// Emulated on two busy cores it takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);

#[test]
fn debian_12_boots_with_its_full_config() {
    check(Release::Bookworm, None);
}

#[test]
fn debian_13_boots_with_its_full_config_and_its_kubelets_certificate() {
    let membership = Membership {
        api: Kubernetes::start(),
        cluster: Cluster::new().unwrap(),
    };
    check(Release::Trixie, Some(&membership));
}

/// The cluster that a node becomes a member of.
struct Membership {
    api: Kubernetes,
    cluster: Cluster,
}

impl Membership {
    const NODE: &str = "worker-1";

    /// Has the gateway approve by attested keys, and its full config bring the bootstrap kubeconfig.
    fn prepare(&self, gateway: &Gateway) {
        gateway.write("kubeconfig", &self.api.kubeconfig(self.api.admin())).unwrap();
        gateway.add_settings(approval::SETTINGS).unwrap();
        gateway.edit_pool("\nnames = []", "\nnames = [\"worker-*\"]").unwrap();
        let path = gateway.folder().join(format!("pools/{POOL}/full/config.ign"));
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let kubeconfig = bootstrap_kubeconfig(&self.api).replace("127.0.0.1", GUEST_VIEW_OF_HOST);
        let source = format!("data:;base64,{}", BASE64.encode(kubeconfig.as_bytes()));
        let file = json!({"path": "/etc/kubernetes/kubeconfig", "mode": 0o600, "contents": {"source": source}});
        config["storage"]["files"].as_array_mut().unwrap().push(file);
        fs::write(&path, config.to_string()).unwrap();
    }

    /// Signs what is approved, and gives the file that the unit has left it in.
    fn join(&self, console: &Process) -> String {
        sign_approved(&self.cluster, &self.api, BOOT_LIMIT);
        let said = console
            .wait_line(BOOT_LIMIT, |line| {
                line.contains("the kubelet's certificate as") && line.contains(" is in ")
            })
            .unwrap();
        said.split_once(" is in ").unwrap().1.trim().to_owned()
    }
}

#[track_caller]
fn check(release: Release, membership: Option<&Membership>) {
    let folder = Folder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    membership.inspect(|membership| membership.prepare(site.gateway()));
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("whole").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap();
    let (vm, disk) = site.whole_vm(release, &vm_folder).unwrap();

    let node = Membership::NODE;
    let vm = match membership {
        Some(_) => vm.kernel_argument(&format!("attest-node.kubelet-key attest-node.name={node} systemd.hostname={node}")),
        None => vm,
    };
    let mut vm = vm.pointer(&pointer).tpm(&tpm).start(&vm_folder).unwrap();
    let verdict = vm
        .console()
        .wait_line(BOOT_LIMIT, |line| line.contains("attest-node") && line.contains("attested"))
        .unwrap();
    assert!(verdict.contains("attested as tpm:"), "{verdict}");
    let certificate = membership.map(|membership| membership.join(vm.console()));
    vm.console()
        .wait_line(BOOT_LIMIT, |line| line.starts_with("@@ multi-user"))
        .unwrap();
    vm.wait_off(BOOT_LIMIT).unwrap();
    let failed: Vec<String> = vm
        .console()
        .lines()
        .into_iter()
        .filter(|line| line.starts_with("@@ failed"))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");

    let full = site.gateway().pool_config("full").unwrap();
    let paths: Vec<&str> = full
        .pointer("/storage/files")
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|file| file.get("path")?.as_str())
        .collect();
    assert!(!paths.is_empty());
    for path in paths {
        assert_eq!(read_from_disk(&disk, path).unwrap(), content_of(&full, path).unwrap(), "{path}");
    }
    // The ticket is a secret of the initramfs: nothing of it stays on the node's disk, in a file or otherwise.
    assert_eq!(read_from_disk(&disk, "/usr/lib/ignition/user.ign").unwrap(), None);
    let search = |text: &str| {
        Command::new("grep")
            .args(["--null-data", "--quiet", "--text", text])
            .arg(&disk)
            .status()
            .unwrap()
    };
    assert_eq!(search("attestation-gateway").code(), Some(0), "the search finds what is there");
    assert_eq!(search("Bearer ticket").code(), Some(1));
    if let Some(path) = certificate {
        let file = String::from_utf8(read_from_disk(&disk, &path).unwrap().unwrap()).unwrap();
        assert!(
            file.starts_with("-----BEGIN CERTIFICATE") && file.contains("-----BEGIN PRIVATE KEY"),
            "{path}"
        );
        // Nothing of the key stays elsewhere.
        assert_eq!(read_from_disk(&disk, "/var/lib/attest-node/kubelet-key.pem").unwrap(), None);
    }
}
