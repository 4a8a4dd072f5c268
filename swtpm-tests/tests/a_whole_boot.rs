//! Whole boots of two releases of Debian: firmware, Debian's kernel, dracut's initrd, a TPM, systemd, a real root, up to multi-user.target.
//! The initrd has Debian's ignition module and our appended node-initrd file. The full config's files are on the disk, and on one of them
//! the kubelet's certificate. On the other one root rehearses and attests again, after the first boot and after a later one: it learns what a boot would get,
//! and is refused.
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cloud_fixtures::kubernetes::KubernetesApi;
use data_encoding::BASE64;
use serde_json::{Value, json};
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{
    DebianRelease, GUEST_VIEW_OF_HOST, POOL, Process, Swtpm, TestCluster, TestFolder, TestGateway, content_of, core_os, read_from_disk,
};

use crate::approval::{self, bootstrap_kubeconfig, sign_approved};

/// Maximum duration of a boot: emulated on two busy cores it takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);

/// Script that acts as root on a node that has booted. It uses all that is there: the program and the pointer that the initramfs has kept,
/// the TPM and the firmware's log.
const ROOT: &str = "#!/bin/sh
exec >/dev/ttyS0 2>&1
for card in /sys/class/net/e*; do ip link set \"${card##*/}\" up; ip address add 10.0.2.15/24 dev \"${card##*/}\" 2>/dev/null; done
[ -e /var/lib/pointer.ign ] || cp /run/attest-node-kept/pointer.ign /var/lib/pointer.ign
/run/attest-node-kept/run try --pointer /var/lib/pointer.ign 2>&1 | sed 's/^/@@ try /'
/run/attest-node-kept/run attest --pointer /var/lib/pointer.ign --out /run/again.ign 2>&1 | sed 's/^/@@ root /'
[ ! -e /run/again.ign ] || grep -o 'Bearer.ticket' /run/again.ign | sed 's/^/@@ root has a /'
";
const ROOT_UNIT: &str = "[Unit]
Before=multi-user.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/root
";

/// The machine attests while it boots, however often it does. Later software cannot attest until a reset, also on boots after the first
/// one.
#[test]
fn attack_47_debian_12_boots_and_root_cannot_attest_later() {
    check(DebianRelease::Bookworm, None);
}

#[test]
fn debian_13_boots_with_config_and_kubelet_certificate() {
    let membership = Membership {
        api: KubernetesApi::start(),
        cluster: TestCluster::new().unwrap(),
    };
    check(DebianRelease::Trixie, Some(&membership));
}

/// Cluster that a node becomes a member of.
struct Membership {
    api: KubernetesApi,
    cluster: TestCluster,
}

impl Membership {
    const NODE: &str = "worker-1";

    /// Makes nodes attest the keys of their kubelets, and the full config contain the bootstrap kubeconfig.
    fn prepare(&self, gateway: &TestGateway) {
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

    /// Signs approved CSRs. Returns the kubelet's file with the certificate.
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
fn check(release: DebianRelease, membership: Option<&Membership>) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    membership.inspect(|membership| membership.prepare(site.gateway()));
    site.gateway().start(None).unwrap();
    let _controller = membership.map(|membership| {
        let log = site.gateway().folder().join("controller.log");
        approval::controller(site.gateway(), &membership.api, &log)
    });
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("whole").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap();
    let (vm, disk) = site.whole_vm(release, &vm_folder).unwrap();
    let has_root = membership.is_none();
    if has_root {
        let tree = vm_folder.join("disk");
        core_os::write(&tree, "usr/local/sbin/root", 0o755, ROOT).unwrap();
        core_os::write(&tree, "etc/systemd/system/root.service", 0o644, ROOT_UNIT).unwrap();
        core_os::link(&tree, "etc/systemd/system/multi-user.target.wants/root.service", "../root.service").unwrap();
        core_os::add_to_disk(&disk, &tree).unwrap();
    }

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
    assert_eq!(ends(vm.console()), 1, "{}", vm.console().tail());
    if has_root {
        refused_to_root(vm.console());
        let records = site.gateway().records().unwrap();
        let seen: Vec<_> = records
            .iter()
            .map(|record| (record.decision(), record.verdict(), record.grant(), record.code()))
            .collect();
        let over = ("evidence", "refused", None, Some("tpm-boot-is-over"));
        assert_eq!(
            seen,
            [
                ("evidence", "trusted", Some("full"), None),
                ("config", "served", Some("full"), None),
                ("rehearsal", "trusted", Some("full"), None),
                over
            ]
        );
    }

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
    assert_eq!(search("attest-gateway").code(), Some(0), "the search finds what is there");
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
    if has_root {
        drop((vm, tpm));
        boots_later(&mut site, release, &vm_folder);
    }
}

/// Boots the machine again after its first boot: the initramfs asks no gateway, and still ends the boot.
#[track_caller]
fn boots_later(site: &mut Site, release: DebianRelease, folder: &Path) {
    let tpm = Swtpm::restart(folder).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm = site.later_vm(release, folder).unwrap().pointer(&pointer).tpm(&tpm);
    let mut vm = vm.start(&site.vm_folder("later").unwrap()).unwrap();
    vm.console()
        .wait_line(BOOT_LIMIT, |line| line.starts_with("@@ multi-user"))
        .unwrap();
    vm.wait_off(BOOT_LIMIT).unwrap();
    refused_to_root(vm.console());
    // By the one that is first; the other one finds it done.
    assert_eq!(ends(vm.console()), 1, "{}", vm.console().tail());
    let records = site.gateway().records().unwrap();
    let last = records.last().unwrap();
    assert_eq!(
        (records.len(), last.verdict(), last.code()),
        (6, "refused", Some("tpm-boot-is-over"))
    );
}

/// Returns the number of the node's messages that it has ended its boot.
fn ends(console: &Process) -> usize {
    let lines = console.lines().into_iter();
    lines
        .filter(|line| line.contains("attest-node: boot complete: PCR 13 is extended"))
        .count()
}

/// Verifies that root learned what a boot would get, and got a refusal and no ticket.
#[track_caller]
fn refused_to_root(console: &Process) {
    let lines = console.lines();
    for text in [
        "@@ try note   boot         it is complete (PCR 13 is extended), so a real attestation needs a reset",
        "@@ try ok     event log    /sys/kernel/security/tpm0/binary_bios_measurements: ",
        "@@ try ok     decision     trusted: the full config of pool worker",
        "@@ try This machine would be trusted. Nothing was changed, and nothing was given to it.",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(text)), "{text:?} is not in {lines:#?}");
    }
    let said: Vec<&String> = lines
        .iter()
        .filter(|line| line.starts_with("@@ root ") && !line.starts_with("@@ root attest-node: boot "))
        .collect();
    let [note, refused] = said.as_slice() else {
        panic!("{said:#?}{}", console.tail())
    };
    assert!(note.contains("attest-node: note: the boot is complete"), "{note}");
    assert!(refused.contains("[tpm-boot-is-over]; next: Reset the machine"), "{refused}");
}
