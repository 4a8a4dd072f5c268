//! First boots that begin again: a change of kernel arguments reboots in the initramfs, after Ignition has fetched and before it has
//! written anything. The machine still gets its full config, once, and no credential is left on its disks.
use crate::clouds::estate;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use estate::Estate;
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{DebianRelease, LogRecord, TestCloud, TestFolder, VmBuilder, content_of, read_from_disk};

/// Program that QEMU starts for each connection to a metadata server.
const CONNECT: &str = env!("CARGO_BIN_EXE_connect");
/// Maximum duration of a boot: emulated on two busy cores each of the two boots takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);
/// Substitute for Fedora CoreOS's unit of that name, with its order. It reboots unless the boot partition records that kernel arguments
/// have changed. The boot that it ends is also the firmware's first one.
const UNIT: &str = "coreos-kargs-reboot.service";
const ORDER: &str = "ConditionPathExists=/etc/initrd-release\nDefaultDependencies=false\nBefore=ignition-complete.target\n\
                     After=ignition-kargs.service\nBefore=ignition-disks.service";
const SERVICE: &str = "Type=oneshot\nRemainAfterExit=yes\nMountFlags=slave\nExecStart=/usr/bin/kargs-reboot\n\
                       StandardOutput=tty\nTTYPath=/dev/ttyS0";
const SCRIPT: &str = "#!/bin/sh\nset -e\nmkdir -p /run/mnt\nmount -o rw /dev/disk/by-label/boot /run/mnt\n\
                      if [ -e /run/mnt/kargs-are-changed ]; then echo '@@ begun again'; exit 0; fi\n\
                      : >/run/mnt/kargs-are-changed\numount /run/mnt\necho '@@ reboots'\nsystemctl reboot --force\n";
/// Unit that ends a boot once Ignition has finished, and the leftovers of a first boot have been removed.
const END: &str = "end-of-ignition.service";
const END_UNIT: &str = "[Unit]\nConditionPathExists=/etc/initrd-release\nDefaultDependencies=false\n\
                        After=ignition-complete.target attest-node-forget.service\nBefore=initrd.target\n\
                        [Service]\nType=oneshot\nStandardOutput=tty\nTTYPath=/dev/ttyS0\n\
                        ExecStart=/bin/sh -c 'echo \"@@ end\"; systemctl --failed --plain --no-legend | sed \"s/^/@@ failed /\"'\n\
                        ExecStart=/usr/bin/systemctl poweroff --force\n";
/// Length in bytes of the part of a secret that is searched for on a disk: too long for a chance match.
const PART_BYTES: usize = 8;

/// Last stage of the second of the two boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until Ignition has written everything: later stages are the same for all kinds of evidence.
    Ignition,
    MultiUser,
}

/// Machine whose first boot begins again.
struct Machine {
    folder: PathBuf,
    root: PathBuf,
    boot: PathBuf,
    until: Until,
}

fn machine(site: &Site, release: DebianRelease, name: &str, until: Until) -> (VmBuilder, Machine) {
    let folder = site.vm_folder(name).unwrap();
    let tree = folder.join("tree");
    let units = tree.join("usr/lib/systemd/system");
    let requires = units.join("ignition-complete.target.requires");
    fs::create_dir_all(&requires).unwrap();
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::write(units.join(UNIT), format!("[Unit]\n{ORDER}\n[Service]\n{SERVICE}\n")).unwrap();
    symlink(format!("../{UNIT}"), requires.join(UNIT)).unwrap();
    fs::write(tree.join("usr/bin/kargs-reboot"), SCRIPT).unwrap();
    fs::set_permissions(tree.join("usr/bin/kargs-reboot"), fs::Permissions::from_mode(0o755)).unwrap();
    if until == Until::Ignition {
        fs::write(units.join(END), END_UNIT).unwrap();
        fs::create_dir_all(units.join("initrd.target.wants")).unwrap();
        symlink(format!("../{END}"), units.join("initrd.target.wants").join(END)).unwrap();
    }
    let boot = folder.join("boot.ext4");
    let mut make = Command::new("/usr/sbin/mke2fs");
    let made = make
        .args(["-q", "-t", "ext4", "-L", "boot"])
        .arg(&boot)
        .arg("64M")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    let (vm, root) = site.changed_vm(release, &tree, &folder).unwrap();
    let machine = Machine { folder, root, boot, until };
    (vm.disk(&machine.boot).reboots(), machine)
}

/// Runs the VM to its end. Returns the secret that was on its disk when it rebooted, and the console's lines.
fn first_boots(vm: VmBuilder, machine: &Machine) -> (Option<Vec<u8>>, Vec<String>) {
    let mut vm = vm.start(&machine.folder).unwrap();
    let says = |begin: &'static str| move |line: &str| line.starts_with(begin);
    vm.console().wait_line(BOOT_LIMIT, says("@@ reboots")).unwrap();
    let secret = read_from_disk(&machine.boot, "/attest-node/claimant").unwrap();
    vm.console().wait_line(BOOT_LIMIT, says("@@ begun again")).unwrap();
    let end = match machine.until {
        Until::Ignition => "@@ end",
        Until::MultiUser => "@@ multi-user",
    };
    vm.console().wait_line(BOOT_LIMIT, says(end)).unwrap();
    vm.wait_off(BOOT_LIMIT).unwrap();
    let lines = vm.console().lines();
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("@@ failed") || line.contains("FAILED"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    (secret, lines)
}

/// Returns whether a part of the secret is anywhere on a disk.
fn holds(disk: &Path, secret: &[u8]) -> bool {
    // grep reads pieces that end at a NUL.
    let part = secret.windows(PART_BYTES).find(|part| !part.contains(&0)).unwrap();
    let pattern: String = part.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let status = Command::new("grep")
        .args(["--null-data", "--quiet", "--text", "--perl-regexp", &pattern])
        .arg(disk)
        .env("LC_ALL", "C")
        .status()
        .unwrap();
    match status.code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep ends with {other:?}"),
    }
}

impl Machine {
    /// Verifies that all files of the full config are there, and no trace of the secret.
    fn is_provisioned(&self, site: &mut Site, secret: Option<&[u8]>) {
        let full = site.gateway().pool_config("full").unwrap();
        let files = full.pointer("/storage/files").unwrap().as_array().unwrap();
        assert!(!files.is_empty());
        for path in files.iter().filter_map(|file| file.get("path")?.as_str()) {
            assert_eq!(
                read_from_disk(&self.root, path).unwrap(),
                content_of(&full, path).unwrap(),
                "{path}"
            );
        }
        let Some(secret) = secret else { return };
        assert_eq!(secret.len(), 32);
        // The search finds what is there.
        let sample = self.folder.join("sample");
        fs::write(&sample, [&[0; 4096], secret, &[0; 4096]].concat()).unwrap();
        assert!(holds(&sample, secret));
        assert!(!holds(&self.boot, secret) && !holds(&self.root, secret));
        assert_eq!(read_from_disk(&self.boot, "/attest-node").unwrap(), None);
    }
}

/// Returns the decisions and the presented evidence; verifies that no client was refused because of another's instance claim.
fn decisions(records: &[LogRecord]) -> Vec<(&str, &str, &str, Option<&str>)> {
    assert!(
        !records.iter().any(|record| record.code() == Some("instance-claimed")),
        "{records:#?}"
    );
    records
        .iter()
        .map(|record| (record.decision(), record.verdict(), record.shown(), record.grant()))
        .collect()
}

/// Checks a Google instance without a TPM: it belongs to the first client that has claimed it.
#[track_caller]
fn check_instance(release: DebianRelease) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let estate = Estate::new(TestCloud::Gcp);
    estate.accept(&["gcp"], site.gateway());
    site.gateway().start(None).unwrap();
    estate.metadata.set_user_data(&site.gateway().pointer(None).unwrap());
    let (vm, machine) = machine(&site, release, "instance", Until::MultiUser);
    let vm = vm
        .cloud(estate.metadata.cloud())
        .metadata(estate.metadata.server().address(), Path::new(CONNECT));
    let (secret, console) = first_boots(vm, &machine);
    let records = site.gateway().records().unwrap();
    let once = [
        ("evidence", "trusted", "cloud", Some("full")),
        ("config", "served", "ticket", Some("full")),
    ];
    assert_eq!(decisions(&records), [once, once].concat(), "{console:#?}");
    assert!(
        records.iter().all(|record| record.identity() == Some(estate.identity.as_str())),
        "{records:#?}"
    );
    machine.is_provisioned(&mut site, Some(&secret.unwrap()));
    let log = fs::read_to_string(site.gateway().process().unwrap().log()).unwrap();
    assert!(!log.contains("ALERT"), "{log}");
}

/// On Debian 12; on Debian 13 a token's credential is kept and removed in the same way.
#[test]
fn a_rebooting_cloud_instance_keeps_its_claim() {
    check_instance(DebianRelease::Bookworm);
}

#[test]
fn a_rebooting_tpm_machine_stores_no_secret() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let (vm, machine) = machine(&site, DebianRelease::Trixie, "tpm", Until::Ignition);
    let tpm = site.tpm(Scenario::EndorsedTpm, &machine.folder).unwrap().unwrap();
    let (secret, console) = first_boots(vm.pointer(&pointer).tpm(&tpm), &machine);
    assert_eq!(secret, None);
    let records = site.gateway().records().unwrap();
    let once = [
        ("evidence", "trusted", "tpm", Some("full")),
        ("config", "served", "ticket", Some("full")),
    ];
    assert_eq!(decisions(&records), [once, once].concat(), "{console:#?}");
    machine.is_provisioned(&mut site, None);
}

/// To its end on Debian 13. The unit that removes the secret must finish before systemd looks at the real root, which does not have that
/// unit.
#[test]
fn a_rebooting_machine_uses_its_token_once() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let token = ["token", "create", "--pool", "worker", "--name", "rack7", "--uses", "1"];
    let token = site.gateway().command(&token).unwrap().trim().to_owned();
    let pointer = site.gateway().pointer(Some(&token)).unwrap();
    let (vm, machine) = machine(&site, DebianRelease::Trixie, "token", Until::MultiUser);
    let (secret, console) = first_boots(vm.pointer(&pointer), &machine);
    let records = site.gateway().records().unwrap();
    let once = ("config", "served", "token", Some("full"));
    assert_eq!(decisions(&records), [once, once], "{console:#?}");
    machine.is_provisioned(&mut site, Some(&secret.unwrap()));
    // Another machine with the same token is one too many.
    let answer = site.gateway().get("/config/worker", Some(&token)).unwrap();
    assert_eq!(answer.status, 403);
    let list = site.gateway().command(&["token", "list"]).unwrap();
    assert!(list.contains("1 of 1"), "{list}");
}
