#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::cell::{Cell, RefCell};

use super::*;

const INITRD: &[u8] = b"attest-node's initrd";
const NEWER: &[u8] = b"the next release's";

/// Files in memory, of which only so many can be written or removed: then the program is killed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Files {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    left: Cell<Option<usize>>,
}

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()));
        Self {
            files: RefCell::new(files.collect()),
            left: Cell::new(None),
        }
    }

    fn step(&self) -> io::Result<()> {
        match self.left.get() {
            Some(0) => Err(io::Error::other("killed")),
            left => {
                self.left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.files.borrow()[path].clone()).unwrap()
    }

    /// Initrds that each entry names, which must all be there in whole.
    fn booted(&self, prefix: &str) -> Vec<Vec<Vec<u8>>> {
        let files = self.files.borrow();
        let entries = files.iter().filter(|(path, _)| path.ends_with(".conf"));
        let initrds = entries.map(|(_, text)| {
            let text = String::from_utf8(text.clone()).unwrap();
            let paths = text.lines().filter_map(|line| line.strip_prefix("initrd ").map(str::to_owned));
            paths
                .map(|path| files[path.strip_prefix(prefix).unwrap().trim_start_matches('/')].clone())
                .collect()
        });
        initrds.collect()
    }
}

impl BootFilesystem for Files {
    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let files = self.files.borrow();
        let below = files.keys().filter_map(|path| path.strip_prefix(&prefix));
        Ok(below.map(|path| path.split('/').next().unwrap().to_owned()).collect())
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.files.borrow().get(path).cloned())
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        self.step()?;
        self.files.borrow_mut().insert(path.to_owned(), content.to_vec());
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.step()?;
        self.files.borrow_mut().remove(path);
        Ok(())
    }

    fn remove_folder(&self, _: &str) {}
}

/// Boot partition of an installed CoreOS with two deployments.
fn coreos() -> Files {
    Files::new(&[
        (
            "loader/entries/ostree-1.conf",
            "options ostree=/ostree/boot.1/fcos/a/0\nlinux /ostree/a/vmlinuz\ninitrd /ostree/a/initramfs.img\n",
        ),
        (
            "loader/entries/ostree-2.conf",
            "options ostree=/ostree/boot.1/fcos/b/0\nlinux /ostree/b/vmlinuz\ninitrd /ostree/b/initramfs.img\n",
        ),
        ("loader/entries/README", "initrd /nothing\n"),
        ("ostree/a/initramfs.img", "a"),
        ("ostree/b/initramfs.img", "b"),
        ("ignition.firstboot", ""),
    ])
}

/// Root filesystem of a system without a boot partition.
fn plain() -> Files {
    Files::new(&[
        (
            "loader/entries/id-6.1.conf",
            "title Debian\nlinux /boot/vmlinuz-6.1\ninitrd /boot/initrd.img-6.1\noptions ro",
        ),
        ("initrd.img-6.1", "x"),
    ])
}

fn install(files: &Files, initrd: &[u8]) -> Result<BootMenuChange, BootMenuError> {
    BootMenu::read(files)?.install(initrd)
}

fn uninstall(files: &Files) -> Result<BootMenuChange, BootMenuError> {
    BootMenu::read(files)?.uninstall()
}

fn installed(files: &Files, initrd: &[u8], prefix: &str) {
    assert!(
        files
            .booted(prefix)
            .iter()
            .all(|initrds| initrds.len() == 2 && initrds[1] == initrd),
        "{files:?}"
    );
}

fn check(before: &Files, layout: Layout, prefix: &str, folder: &str) {
    let files = before.clone();
    let done = install(&files, INITRD).unwrap();
    let sha256 = hex(INITRD);
    assert_eq!(done.layout, layout);
    installed(&files, INITRD, prefix);
    assert_eq!(files.text(&format!("{folder}/{sha256}.img")).as_bytes(), INITRD);
    assert_eq!(files.text(MANIFEST), format!("{sha256}  {folder}/{sha256}.img\n"));
    for ChangedFile { path, before: was, after } in &done.changes {
        assert_eq!(before.files.borrow().get(path).map(|content| hex(content)), *was);
        assert_eq!(files.files.borrow().get(path).map(|content| hex(content)), *after);
    }
    assert_eq!(done.changes.len(), done.entries.len() + 2);

    let again = files.clone();
    assert!(install(&again, INITRD).unwrap().changes.is_empty());
    assert_eq!(again, files);

    install(&files, NEWER).unwrap();
    installed(&files, NEWER, prefix);
    assert!(!files.files.borrow().contains_key(&format!("{folder}/{sha256}.img")));

    let undone = uninstall(&files).unwrap();
    assert_eq!(&files, before, "byte for byte");
    assert!(undone.changes.iter().any(|change| change.after.is_none()));
    assert!(uninstall(&files).unwrap().changes.is_empty());
}

#[test]
fn installs_repeats_replaces_and_undoes() {
    check(&coreos(), Layout::Ostree, "", "ostree/initramfs-overlays");
    check(&plain(), Layout::Plain, "/boot", "attest-node");
}

/// Kills `work` at each of its steps, and checks that what it leaves boots, and that the work can be repeated.
fn check_interrupted(before: &Files, prefix: &str, work: impl Fn(&Files) -> Result<BootMenuChange, BootMenuError>, after: &Files) {
    let complete = before.clone();
    work(&complete).unwrap();
    assert_eq!(&complete, after);
    for steps in 0.. {
        let files = before.clone();
        files.left.set(Some(steps));
        let done = work(&files);
        files.left.set(None);
        for initrds in files.booted(prefix) {
            assert!(matches!(initrds.len(), 1 | 2), "{steps}: {files:?}");
        }
        work(&files).unwrap();
        assert_eq!(&files, after, "after {steps} steps");
        if done.is_ok() {
            return;
        }
    }
}

#[test]
fn boots_after_a_kill_at_each_step() {
    for (before, prefix) in [(coreos(), ""), (plain(), "/boot")] {
        let with = |initrd: &[u8]| {
            let files = before.clone();
            install(&files, initrd).unwrap();
            files
        };
        let (old, new) = (with(INITRD), with(NEWER));
        check_interrupted(&before, prefix, |files| install(files, INITRD), &old);
        check_interrupted(&old, prefix, |files| install(files, NEWER), &new);
        check_interrupted(&old, prefix, uninstall, &before);
    }
}

#[test]
fn a_full_filesystem_is_left_as_it_was() {
    /// Filesystem without room for the initrd.
    struct Full(Files);
    impl BootFilesystem for Full {
        fn names(&self, folder: &str) -> io::Result<Vec<String>> {
            self.0.names(folder)
        }
        fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
            self.0.read(path)
        }
        fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
            if path.ends_with(".img") {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.write(path, content)
        }
        fn remove(&self, path: &str) -> io::Result<()> {
            self.0.remove(path)
        }
        fn remove_folder(&self, _: &str) {}
    }
    let full = Full(coreos());
    let error = BootMenu::read(&full).unwrap().install(INITRD).unwrap_err();
    assert_eq!(Failure::from(error).code, "install-failed");
    assert_eq!(full.0, coreos());
}

#[test]
fn another_overlay_and_a_forged_manifest_are_left_alone() {
    let files = coreos();
    let other = format!("ostree/initramfs-overlays/{}.img", "c".repeat(64));
    files.write(&other, b"rpm-ostree's").unwrap();
    let entry = "loader/entries/ostree-1.conf";
    let text = files.text(entry) + &format!("initrd /{other}\n");
    files.write(entry, text.as_bytes()).unwrap();
    let before = files.clone();
    install(&files, INITRD).unwrap();
    uninstall(&files).unwrap();
    assert_eq!(files, before);

    let digest = "c".repeat(64);
    for path in [
        "../etc/passwd",
        "ostree/a/initramfs.img",
        "attest-node/x.img",
        "loader/entries/ostree-1.conf",
    ] {
        let files = coreos();
        files.write(MANIFEST, format!("{digest}  {path}\n").as_bytes()).unwrap();
        let before = files.clone();
        assert!(uninstall(&files).unwrap().changes.is_empty());
        assert_eq!(files, before);
    }
}

/// The manifest is lost; or an entry was changed so that a file cannot be taken out of it.
#[test]
fn removes_only_lines_that_it_can_tell() {
    let files = plain();
    let before = files.clone();
    install(&files, INITRD).unwrap();
    files.remove(MANIFEST).unwrap();
    uninstall(&files).unwrap();
    assert_eq!(files.text("loader/entries/id-6.1.conf"), before.text("loader/entries/id-6.1.conf"));

    let files = plain();
    install(&files, INITRD).unwrap();
    let (entry, line) = (
        "loader/entries/id-6.1.conf",
        format!("initrd /boot/attest-node/{}.img", hex(INITRD)),
    );
    let text = files.text(entry);
    let check = |changed: String, install_says: &str, uninstall_works: bool| {
        let files = files.clone();
        files.write(entry, changed.as_bytes()).unwrap();
        let before = files.clone();
        let error = install(&files, NEWER).unwrap_err().to_string();
        assert!(error.contains(install_says), "{error}");
        assert_eq!(files, before);
        assert_eq!(uninstall(&files).is_ok(), uninstall_works);
    };
    let second_word = text
        .replace(&format!("\n{line}"), "")
        .replace("/boot/initrd.img-6.1", &format!("/boot/initrd.img-6.1 {}", &line[7..]));
    check(second_word, "not on a line of its own", false);
    check(text.replace("initrd /boot/initrd.img-6.1\n", ""), "has no initrd of its own", true);

    // The system's entries are gone: what is installed can still be removed.
    files.remove(entry).unwrap();
    uninstall(&files).unwrap();
    assert!(files.files.borrow().keys().all(|path| path == "initrd.img-6.1"), "{files:?}");
}

fn refused(files: &[(&str, &str)], reason: &str) {
    let files = Files::new(files);
    let before = files.clone();
    let error = install(&files, INITRD).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
    assert_eq!(Failure::from(error).code, "install-unsupported");
    assert_eq!(files, before);
}

#[test]
fn refuses_other_layouts() {
    let entry = ("loader/entries/a.conf", "linux /a\ninitrd /b\n");
    let ostree = ("loader/entries/o.conf", "options ostree=x\nlinux /a\ninitrd /b\n");
    refused(&[], "loader/entries has no entry with an initrd");
    refused(&[("loader/entries/a.conf", "efi /x.efi\n")], "has no entry with an initrd");
    refused(&[("grub/grub.cfg", "")], "only grub/grub.cfg names the kernel");
    refused(&[("EFI/Linux/fedora.EFI", "")], "unified kernel image");
    refused(&[("flatcar/vmlinuz-a", "")], "Flatcar");
    refused(&[entry], "the initrd /b of loader/entries/a.conf is not on this filesystem");
    refused(&[entry, ("b", ""), ("bootmap", "")], "zipl");
    assert!(
        matches!(install(&Files::new(&[entry]), INITRD), Err(BootMenuError::NoEntries(_))),
        "another partition may boot"
    );
    refused(&[entry, ("b", ""), ostree], "some boot entries are OSTree deployments");
    // One that was added after the installation does not keep `uninstall` from its work.
    let files = coreos();
    install(&files, INITRD).unwrap();
    files
        .write(
            "loader/entries/later.conf",
            b"linux /ostree/a/vmlinuz\ninitrd /ostree/a/initramfs.img\n",
        )
        .unwrap();
    uninstall(&files).unwrap();
    assert!(files.booted("").iter().all(|initrds| initrds.len() == 1));
}
