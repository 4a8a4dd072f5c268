#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tempfile::TempDir;

use super::*;

/// Files of a system that has all of CoreOS's convention.
pub(crate) const CORE_OS: [(&str, &str); 6] = [
    (
        "boot/grub2/grub.cfg",
        "if [ -f \"/ignition.firstboot\" ]; then\n  set ignition_network_kcmdline=''\n  source \"/ignition.firstboot\"\n  \
         set ignition_firstboot=\"ignition.firstboot ${ignition_network_kcmdline}\"\nfi\nblscfg\n",
    ),
    (
        "boot/loader/entries/ostree-1.conf",
        "options $ignition_firstboot ostree=/ostree/boot.1\n",
    ),
    (
        "proc/self/mountinfo",
        "22 1 254:3 / / rw - ext4 /dev/vda3 rw\n23 22 254:2 / /boot ro - ext4 /dev/vda2 ro\n",
    ),
    (
        "usr/lib/systemd/system/coreos-ignition-firstboot-complete.service",
        "[Service]\nMountFlags=slave\nExecStart=/usr/libexec/coreos-ignition-firstboot-complete\n",
    ),
    (
        "usr/libexec/coreos-ignition-firstboot-complete",
        "mount -o remount,rw /boot\nrm -rf /boot/ignition\nrm /boot/ignition.firstboot\n",
    ),
    (
        "usr/lib/dracut/modules.d/35coreos-ignition/coreos-ignition-setup-user.sh",
        "copy_file_if_exists \"${bootmnt}/ignition/config.ign\" x\n",
    ),
];

pub(crate) fn write_file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub(crate) fn core_os() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    CORE_OS.iter().for_each(|(path, text)| write_file(root.path(), path, text));
    root
}

fn find(root: &TempDir) -> Result<FirstBoot, Failure> {
    FirstBoot::find(&System::new(root.path()), None)
}

fn check_missing(change: impl Fn(&Path), said: &str) {
    let root = core_os();
    change(root.path());
    let failure = find(&root).unwrap_err();
    assert_eq!(failure.code, "apply-unsupported");
    assert!(failure.reason.contains(said), "{said:?} is not in {:?}", failure.reason);
}

#[test]
fn first_boot_requires_the_whole_coreos_convention() {
    let found = find(&core_os()).unwrap();
    assert!(found.takes_arguments && !found.changes_kernel_arguments);
    let without = |path: &'static str| move |root: &Path| fs::remove_file(root.join(path)).unwrap();
    check_missing(without("boot/grub2/grub.cfg"), "/boot has no GRUB configuration");
    check_missing(without("boot/loader/entries/ostree-1.conf"), "GRUB has entries without");
    check_missing(
        without("proc/self/mountinfo"),
        "but this program would create /boot/ignition.firstboot",
    );
    check_missing(
        without("usr/lib/systemd/system/coreos-ignition-firstboot-complete.service"),
        "coreos-ignition-firstboot-complete.service, which would remove the config after that boot, is missing",
    );
    check_missing(
        without("usr/libexec/coreos-ignition-firstboot-complete"),
        "does not remove the config",
    );
    // As it was before it removed the config, too.
    let stamp_only = |root: &Path| {
        write_file(
            root,
            "usr/libexec/coreos-ignition-firstboot-complete",
            "rm /boot/ignition.firstboot\n",
        )
    };
    check_missing(stamp_only, "does not remove the config");
    check_missing(
        without("usr/lib/dracut/modules.d/35coreos-ignition/coreos-ignition-setup-user.sh"),
        "the initramfs does not read",
    );
    check_missing(|root| write_file(root, "run/ostree-live", ""), "runs from its installation medium");
}

#[test]
fn initramfs_report_overrides_first_boot_detection() {
    let root = core_os();
    let find = |copies_config, changes_kernel_arguments| {
        let said = Initramfs {
            copies_config,
            changes_kernel_arguments,
            ..Initramfs::default()
        };
        FirstBoot::find(&System::new(root.path()), Some(&said))
    };
    write_file(
        root.path(),
        "usr/lib/dracut/modules.d/35coreos-ignition/coreos-kargs.sh",
        "rdcore kargs",
    );
    assert!(FirstBoot::find(&System::new(root.path()), None).unwrap().changes_kernel_arguments);
    for _ in 0..2 {
        // Whatever the image has modules for.
        assert!(find(false, true).is_err());
        assert!(!find(true, false).unwrap().changes_kernel_arguments);
        assert!(find(true, true).unwrap().changes_kernel_arguments);
        let _ = fs::remove_dir_all(root.path().join("usr/lib/dracut"));
    }
}

#[test]
fn unsupported_distributions_get_specific_advice() {
    let check = |id: &str, said: &str| {
        let root = tempfile::tempdir().unwrap();
        write_file(root.path(), "etc/os-release", &format!("ID={id}\n"));
        let failure = find(&root).unwrap_err();
        assert!(failure.to_string().contains(said), "{failure}");
        assert!(failure.next_step.contains("config fetch --out"), "{failure}");
    };
    check("flatcar", "OEM partition");
    check("\"opensuse-microos\"", "labelled \"ignition\"");
    check("debian", "/boot has no GRUB configuration");
}

fn below(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn config_on_boot_is_private_and_undone_completely() {
    let root = core_os();
    let boot = root.path().join("boot");
    let before = below(&boot);
    let first_boot = find(&root).unwrap();
    first_boot.is_free().unwrap();
    first_boot.make_writable(&System::new(root.path())).unwrap();
    assert!(!first_boot.undo().unwrap());
    for arguments in [&[][..], &["a=1"]] {
        first_boot.arrange(b"full", arguments).unwrap();
        let mode = |path: &str| fs::metadata(boot.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("ignition"), mode("ignition/config.ign")), (0o700, 0o600));
        assert_eq!(fs::read(boot.join("ignition/config.ign")).unwrap(), b"full");
        assert_eq!(fs::read_to_string(boot.join(STAMP)).unwrap(), grub::stamp(arguments));
        assert_eq!(below(&boot.join("ignition")), ["config.ign"]);
        assert_eq!(first_boot.is_free().unwrap_err().code, "apply-arranged");
        assert!(first_boot.undo().unwrap());
        assert_eq!(below(&boot), before);
    }
}

#[test]
fn first_boot_stamp_is_written_after_the_config() {
    let root = core_os();
    let boot = root.path().join("boot");
    let there = || [CONFIG_ON_BOOT, STAMP].map(|path| boot.join(path).exists());
    // What a crash before each of the two writes would leave.
    let seen = std::cell::RefCell::default();
    let replace = |path: &Path, content: &[u8]| {
        Vec::push(&mut seen.borrow_mut(), there());
        write::replace(path, content)
    };
    find(&root).unwrap().arrange_by(replace, b"full", &[]).unwrap();
    assert_eq!((seen.into_inner(), there()), (vec![[false, false], [true, false]], [true, true]));
}

#[test]
fn failed_stamp_removes_the_config_from_boot() {
    let root = core_os();
    let boot = root.path().join("boot");
    let first_boot = find(&root).unwrap();
    // A folder cannot be replaced by the stamp.
    fs::create_dir(boot.join(STAMP)).unwrap();
    let failure = first_boot.arrange(b"full", &[]).unwrap_err();
    assert_eq!(failure.code, "apply-failed");
    assert!(!boot.join("ignition").exists());
    fs::remove_dir(boot.join(STAMP)).unwrap();
    // What a killed run has left of the config is replaced, and one that was written in part is not seen.
    fs::create_dir(boot.join("ignition")).unwrap();
    fs::write(boot.join("ignition/config.ign"), "before").unwrap();
    fs::write(boot.join("ignition/.config.ign.attest-node"), "fu").unwrap();
    first_boot.arrange(b"full", &[]).unwrap();
    assert_eq!(below(&boot.join("ignition")), ["config.ign"]);
    assert_eq!(fs::read(boot.join("ignition/config.ign")).unwrap(), b"full");
    // A link would have it written elsewhere.
    first_boot.undo().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), boot.join("ignition")).unwrap();
    assert_eq!(first_boot.arrange(b"full", &[]).unwrap_err().code, "apply-failed");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    assert!(!boot.join(STAMP).exists());
}
