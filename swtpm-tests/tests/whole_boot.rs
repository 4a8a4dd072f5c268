//! Whole boots, of two releases of Debian: firmware, Debian's kernel, dracut's initrd with Debian's ignition module and our appended node-initrd file, a TPM,
//! systemd, a real root, up to multi-user.target; with the full config's files on the disk.
use std::process::Command;
use std::time::Duration;

use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{Folder, Release, content_of, read_from_disk};

/// Emulated on two busy cores it takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);

#[test]
fn debian_12_boots_with_its_full_config() {
    check(Release::Bookworm);
}

#[test]
fn debian_13_boots_with_its_full_config() {
    check(Release::Trixie);
}

#[track_caller]
fn check(release: Release) {
    let folder = Folder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("whole").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap();
    let (vm, disk) = site.whole_vm(release, &vm_folder).unwrap();

    let mut vm = vm.pointer(&pointer).tpm(&tpm).start(&vm_folder).unwrap();
    let verdict = vm
        .console()
        .wait_line(BOOT_LIMIT, |line| line.contains("attest-node") && line.contains("attested"))
        .unwrap();
    assert!(verdict.contains("attested as tpm:"), "{verdict}");
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
}
