//! A machine that resumes from hibernation: its TPM was reset, and its earlier memory comes back, with root in it.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{DebianRelease, Swtpm, TestFolder, core_os, run};

/// Maximum duration of a boot: emulated on two busy cores it takes two minutes, and as long to write and read the image.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// Size of the swap space: more than the machine's memory.
const SWAP_BYTES: u64 = 1536 * 1024 * 1024;

/// Script of root on the booted machine: hibernates it, and attests once its memory is back.
const ROOT: &str = "#!/bin/sh
exec >/dev/ttyS0 2>&1
swapon /dev/vdb || echo '@@ no swap'
for card in /sys/class/net/e*; do ip link set \"${card##*/}\" up; ip address add 10.0.2.15/24 dev \"${card##*/}\" 2>/dev/null; done
echo shutdown >/sys/power/disk
echo \"@@ hibernates $(cat /proc/sys/kernel/random/boot_id)\"
echo disk >/sys/power/state
echo \"@@ is back $(cat /proc/sys/kernel/random/boot_id)\"
/run/attest-node-kept/run attest --pointer /run/attest-node-kept/pointer.ign --out /run/again.ign 2>&1 | sed 's/^/@@ root /'
[ ! -e /run/again.ign ] || grep -o 'Bearer.ticket' /run/again.ign | sed 's/^/@@ root has a /'
echo '@@ end'
systemctl poweroff --force --force
";
/// Unit that runs before the one that reports that the system is up and switches it off.
const ROOT_UNIT: &str = "[Unit]
Before=whole-boot-report.service multi-user.target

[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/usr/local/sbin/root
";
/// Drop-in that delays the TPM: without an order, the resume unit starts as soon as its device is there, and then stops everything else.
const SLOW: &str = "[Service]\nTimeoutStartSec=300\nExecStartPre=/bin/sh -c 'until [ -b /dev/vdb ]; do sleep 1; done; sleep 30'\n";
/// Drop-in with which a boot cannot be ended.
const FAILS: &str = "[Service]\nExecStartPre=/bin/false\n";

fn swap(folder: &Path) -> PathBuf {
    let swap = folder.join("swap");
    File::create(&swap).unwrap().set_len(SWAP_BYTES).unwrap();
    run(Command::new("/usr/sbin/mkswap").arg("-q").arg(&swap)).unwrap();
    swap
}

/// Hibernates a machine and switches it on again, with a drop-in for the unit that ends the boot. Returns the line of its hibernation, and
/// the console's lines since then.
#[track_caller]
fn resumed(site: &mut Site, release: DebianRelease, name: &str, drop_in: &str, until: &str) -> Vec<String> {
    let folder = site.vm_folder(name).unwrap();
    let tree = folder.join("tree");
    let unit = "usr/lib/systemd/system/attest-node-close-now.service.d/test.conf";
    core_os::write(&tree, unit, 0o644, drop_in).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &folder).unwrap().unwrap();
    let swap = swap(&folder);
    let (vm, disk) = site.changed_vm(release, &tree, &folder).unwrap();
    let tree = folder.join("disk");
    core_os::write(&tree, "usr/local/sbin/root", 0o755, ROOT).unwrap();
    core_os::write(&tree, "etc/systemd/system/root.service", 0o644, ROOT_UNIT).unwrap();
    core_os::link(&tree, "etc/systemd/system/multi-user.target.wants/root.service", "../root.service").unwrap();
    core_os::add_to_disk(&disk, &tree).unwrap();

    let mut vm = vm.disk(&swap).pointer(&pointer).tpm(&tpm).start(&folder).unwrap();
    let console = vm.console();
    console
        .wait_line(BOOT_LIMIT, |line| line.contains("attest-node: attested as tpm:"))
        .unwrap();
    let before = console.wait_line(BOOT_LIMIT, |line| line.starts_with("@@ hibernates")).unwrap();
    vm.wait_off(BOOT_LIMIT).unwrap();
    assert!(
        !vm.console().lines().iter().any(|line| line.starts_with("@@ is back")),
        "it was switched off"
    );
    drop((vm, tpm));

    let tpm = Swtpm::restart(&folder).unwrap();
    let vm = site.later_vm(release, &folder).unwrap().kernel_argument("resume=/dev/vdb");
    let vm = vm.disk(&swap).pointer(&pointer).tpm(&tpm);
    let vm = vm.start(&site.vm_folder(&format!("{name}-again")).unwrap()).unwrap();
    vm.console().wait_line(BOOT_LIMIT, |line| line.starts_with(until)).unwrap();
    let mut lines = vm.console().lines();
    lines.insert(0, before);
    lines
}

fn boot_id(lines: &[String], word: &str) -> Option<String> {
    let line = lines.iter().find(|line| line.starts_with(&format!("@@ {word} ")))?;
    line.split_whitespace().last().map(str::to_owned)
}

#[test]
fn attack_58_root_cannot_attest_after_hibernation() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let lines = resumed(&mut site, DebianRelease::Trixie, "slow", SLOW, "@@ end");
    // It was a resume, and not a boot.
    assert!(boot_id(&lines, "is back").is_some(), "{lines:#?}");
    assert_eq!(boot_id(&lines, "hibernates"), boot_id(&lines, "is back"));
    let root: Vec<&String> = lines.iter().filter(|line| line.starts_with("@@ root ")).collect();
    assert!(
        root.iter().any(|line| line.contains("[tpm-boot-is-over]; next: Reset the machine")),
        "{root:#?}"
    );
    assert!(!root.iter().any(|line| line.contains("@@ root has a")), "{root:#?}");
    let records = site.gateway().records().unwrap();
    let evidence: Vec<_> = records.iter().filter(|record| record.decision() == "evidence").collect();
    let verdicts: Vec<_> = evidence.iter().map(|record| (record.verdict(), record.code())).collect();
    assert_eq!(verdicts, [("trusted", None), ("refused", Some("tpm-boot-is-over"))]);
}

#[test]
fn attack_58_resume_fails_if_boot_complete_fails() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    // It boots anew, and comes to where it hibernated.
    let lines = resumed(&mut site, DebianRelease::Bookworm, "fails", FAILS, "@@ hibernates");
    assert_eq!(boot_id(&lines, "is back"), None);
    let ids: Vec<&String> = lines.iter().filter(|line| line.starts_with("@@ hibernates")).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:#?}");
}
