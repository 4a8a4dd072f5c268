//! Storage of the secret that a reboot of the first boot can read, and a workload of the booted system cannot.
//!
//! A first boot may take several boots. A node that changes kernel arguments, or turns on FIPS, reboots from the initramfs after Ignition
//! has fetched and before it has written anything, and starts over. The content of memory is lost by then. One filesystem on disk carries
//! the first boot from one to the next, and holds the secret: the one of `ignition.firstboot` on Fedora CoreOS and RHEL CoreOS, of
//! `flatcar/first_boot` on Flatcar, and elsewhere the EFI system partition. It is mounted briefly, invisible to other processes. Before
//! Ignition's last stage hands over to the real root, the secret is overwritten and removed ([`crate::forget`]).

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::disk::{DiskPrograms, Disks};

use super::ClaimSecret;
use super::folder;

/// The filesystems that are looked for by their label, the first one that is there. Fedora CoreOS and RHEL CoreOS have their boot
/// partition labelled so (`coreos-ignition-setup-user.sh`), Flatcar its EFI system partition (`sysroot-boot.service`), and kiwi, which
/// makes openSUSE's images, too (`DiskSetup.get_efi_label`).
pub const LABELS: [&str; 3] = ["boot", "EFI-SYSTEM", "EFI"];
/// The kernel argument that says another place; it comes before `--first-boot-secret-on`.
pub const ARGUMENT: &str = "attest-node.first-boot-secret-on";
/// Longest label, in bytes: btrfs's limit.
const LABEL_LIMIT_BYTES: usize = 255;
/// Time limit for all steps together. udev is waited for at most ten seconds, and a disk that needs longer to write 32 bytes is out of
/// order.
const LIMIT: Duration = Duration::from_secs(25);
/// Time reserved for the steps that follow: a pointer to write.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// Path of the temporary mount. Not below the folder that is emptied.
pub const MOUNT_POINT: &str = "/run/attest-node-disk";

/// Location of the secret, chosen by the administrator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Storage {
    /// The filesystem with the first of [`LABELS`].
    #[default]
    Usual,
    /// The one with this label.
    Label(String),
    /// A folder of a filesystem that is mounted.
    Folder(PathBuf),
    /// Nowhere: in memory only.
    Nowhere,
}

impl FromStr for Storage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        match text {
            "none" => Ok(Self::Nowhere),
            folder if folder.starts_with('/') => Ok(Self::Folder(folder.into())),
            // udev has an escape for every other letter, and ".." is a folder.
            label if (1..=LABEL_LIMIT_BYTES).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('.') => {
                Ok(Self::Label(label.to_owned()))
            }
            _ => Err("expected a filesystem's label, a folder's absolute path, or none".to_owned()),
        }
    }
}

/// A secret that a reboot of this first boot will find.
pub struct PersistedSecret {
    /// Existing secret, or the fresh one.
    pub secret: ClaimSecret,
    /// Location of the secret, in the syntax of [`Storage`].
    pub place: String,
}

impl Storage {
    /// The secret that an earlier part of this first boot has kept; else `fresh`, which is kept now. `None` if nothing is to be kept.
    ///
    /// # Errors
    /// The reason why it cannot be kept.
    pub fn recall(&self, fresh: &ClaimSecret, deadline: Deadline) -> Result<Option<PersistedSecret>, String> {
        if *self == Self::Nowhere {
            return Ok(None);
        }
        // A disk that does not answer must not cost more than this: the thread ends with the process.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (storage, fresh) = (self.clone(), fresh.clone());
        let started = thread::Builder::new().name("claimant".to_owned()).spawn(move || {
            let _ = sender.send(storage.recall_by(&fresh, Path::new(MOUNT_POINT), &DiskPrograms));
        });
        started.map_err(|error| error.to_string())?;
        let deadline = deadline.before(AFTERWARDS).at_most(LIMIT);
        let late = |_| "the disk did not answer in time".to_owned();
        receiver.recv_timeout(deadline.remaining()).map_err(late)?
    }

    fn recall_by(&self, fresh: &ClaimSecret, mount_point: &Path, disks: &impl Disks) -> Result<Option<PersistedSecret>, String> {
        let in_folder = |root: &Path| match folder::read(root)? {
            Some(secret) => Ok(secret),
            None => folder::write(root, fresh).map(|()| fresh.clone()),
        };
        let failed = |place: &str, error: std::io::Error| format!("{place}: {error}");
        if let Self::Folder(root) = self {
            let place = root.display().to_string();
            let secret = in_folder(root).map_err(|error| failed(&place, error))?;
            return Ok(Some(PersistedSecret { secret, place }));
        }
        // Nothing there reboots in its initramfs, and its disks are not its own.
        if *self == Self::Usual && disks.are_anothers() {
            return Ok(None);
        }
        let labels = self.labels();
        let label = first(&labels, disks).ok_or_else(|| format!("no filesystem has the label {}", labels.join(" or ")))?;
        // Whoever shares this program's mounts would see it, and unmounting might be kept from it.
        if !disks.are_its_own() {
            return Err("this program shares its mount namespace with other programs: start it with its systemd unit".to_owned());
        }
        let place = format!("the filesystem labelled {label}");
        let secret = disks
            .with(&label, mount_point, false, in_folder)
            .map_err(|error| failed(&place, error))?;
        Ok(Some(PersistedSecret { secret, place: label }))
    }

    /// The labels to look for, in this order.
    pub(crate) fn labels(&self) -> Vec<String> {
        match self {
            Self::Usual => LABELS.map(str::to_owned).to_vec(),
            Self::Label(label) => vec![label.clone()],
            Self::Folder(_) | Self::Nowhere => Vec::new(),
        }
    }
}

/// The first label that is there. Only if none is, udev is given the time to find it.
fn first(labels: &[String], disks: &impl Disks) -> Option<String> {
    let there = || labels.iter().find(|label| disks.exists(label)).cloned();
    there().or_else(|| {
        disks.settle();
        there()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::fs;
    use std::io;

    use super::*;

    /// Disks that are folders, by label.
    #[derive(Default)]
    pub(crate) struct Folders {
        pub(crate) by_label: RefCell<BTreeMap<String, PathBuf>>,
        /// Filesystems that appear after [`Disks::settle`].
        pub(crate) late: RefCell<BTreeMap<String, PathBuf>>,
        pub(crate) settled: Cell<usize>,
        pub(crate) shared: bool,
        pub(crate) live: bool,
        /// Each mount, with its mode: label, read-only or not.
        pub(crate) mounted: RefCell<Vec<(String, bool)>>,
        pub(crate) broken: bool,
    }

    impl Folders {
        pub(crate) fn with(labels: &[(&str, &Path)]) -> Self {
            let by_label = labels.iter().map(|(label, path)| ((*label).to_owned(), (*path).to_owned()));
            Self {
                by_label: RefCell::new(by_label.collect()),
                ..Self::default()
            }
        }
    }

    impl Disks for Folders {
        fn are_anothers(&self) -> bool {
            self.live
        }

        fn exists(&self, label: &str) -> bool {
            self.by_label.borrow().contains_key(label)
        }

        fn settle(&self) {
            self.settled.set(self.settled.get() + 1);
            self.by_label.borrow_mut().append(&mut self.late.borrow_mut());
        }

        fn are_its_own(&self) -> bool {
            !self.shared
        }

        fn with<T>(&self, label: &str, _: &Path, read_only: bool, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
            if self.broken {
                return Err(io::Error::other("wrong fs type"));
            }
            self.mounted.borrow_mut().push((label.to_owned(), read_only));
            let root = self.by_label.borrow()[label].clone();
            work(&root)
        }
    }

    fn secret(byte: u8) -> ClaimSecret {
        ClaimSecret::from_bytes([byte; 32])
    }

    fn recall(storage: &Storage, fresh: u8, disks: &Folders) -> Result<(ClaimSecret, String), String> {
        let kept = storage.recall_by(&secret(fresh), Path::new("/nonexistent"), disks)?.unwrap();
        Ok((kept.secret, kept.place))
    }

    #[test]
    fn stored_secret_is_found_after_a_reboot() {
        let disk = tempfile::tempdir().unwrap();
        let disks = Folders::with(&[("boot", disk.path())]);
        assert_eq!(recall(&Storage::Usual, 1, &disks), Ok((secret(1), "boot".to_owned())));
        // Of memory there is nothing left, and the disk is the same.
        assert_eq!(recall(&Storage::Usual, 2, &disks), Ok((secret(1), "boot".to_owned())));
        let folder = Storage::Folder(disk.path().to_owned());
        assert_eq!(recall(&folder, 3, &Folders::default()).unwrap().0, secret(1));
    }

    #[test]
    fn first_existing_disk_label_wins() {
        let [boot, flatcar, kiwi] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let check = |storage: &Storage, there: &[(&str, &Path)], expect: Result<&str, &str>| {
            let disks = Folders::with(there);
            let found = recall(storage, 1, &disks).map(|(_, place)| place);
            assert_eq!(found.as_deref().map_err(String::as_str), expect, "{storage:?}");
            assert_eq!(
                disks.settled.get(),
                usize::from(expect.is_err()),
                "{storage:?}: udev is waited for only then"
            );
        };
        let all: [(&str, &Path); 3] = [("EFI", kiwi.path()), ("EFI-SYSTEM", flatcar.path()), ("boot", boot.path())];
        check(&Storage::Usual, &all, Ok("boot"));
        check(&Storage::Usual, &all[..2], Ok("EFI-SYSTEM"));
        check(&Storage::Usual, &all[..1], Ok("EFI"));
        check(&Storage::Usual, &[], Err("no filesystem has the label boot or EFI-SYSTEM or EFI"));
        check(
            &Storage::Usual,
            &[("BOOT", boot.path())],
            Err("no filesystem has the label boot or EFI-SYSTEM or EFI"),
        );
        check(&Storage::Label("EFI".to_owned()), &all, Ok("EFI"));
        check(&Storage::Label("ESP".to_owned()), &all, Err("no filesystem has the label ESP"));
        assert!(Storage::Nowhere.recall(&secret(1), Deadline::after(LIMIT)).unwrap().is_none());
    }

    #[test]
    fn live_system_does_not_mount_disks() {
        let disk = tempfile::tempdir().unwrap();
        let disks = Folders {
            live: true,
            ..Folders::with(&[("boot", disk.path())])
        };
        let kept = Storage::Usual.recall_by(&secret(1), Path::new("/nonexistent"), &disks);
        assert!(kept.unwrap().is_none() && disks.mounted.borrow().is_empty());
        // Unless somebody says so.
        assert!(recall(&Storage::Label("boot".to_owned()), 1, &disks).is_ok());
    }

    #[test]
    fn waits_for_udev_to_find_the_disk() {
        let disk = tempfile::tempdir().unwrap();
        let disks = Folders::default();
        disks.late.borrow_mut().insert("boot".to_owned(), disk.path().to_owned());
        assert_eq!(recall(&Storage::Usual, 1, &disks), Ok((secret(1), "boot".to_owned())));
        assert_eq!(disks.settled.get(), 1);
    }

    #[test]
    fn storage_errors_name_the_cause() {
        let disk = tempfile::tempdir().unwrap();
        let says = |storage: &Storage, disks: &Folders, said: &str| {
            let error = recall(storage, 1, disks).unwrap_err();
            assert!(error.contains(said), "{error}");
        };
        let shared = Folders {
            shared: true,
            ..Folders::with(&[("boot", disk.path())])
        };
        says(&Storage::Usual, &shared, "shares its mount namespace with other programs");
        assert_eq!(shared.mounted.borrow().len(), 0);
        let broken = Folders {
            broken: true,
            ..Folders::with(&[("boot", disk.path())])
        };
        says(&Storage::Usual, &broken, "the filesystem labelled boot: wrong fs type");
        // Nothing can be made below /proc, also not by root: as on a filesystem that is read-only.
        let read_only = Folders::with(&[("boot", Path::new("/proc/self"))]);
        says(&Storage::Usual, &read_only, "the filesystem labelled boot: ");
        says(&Storage::Folder("/nonexistent".into()), &Folders::default(), "/nonexistent: ");
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
    }

    #[test]
    fn storage_option_is_none_a_label_or_folder() {
        let check = |text: &str, expect: Option<Storage>| assert_eq!(text.parse::<Storage>().ok(), expect, "{text}");
        check("none", Some(Storage::Nowhere));
        check("boot", Some(Storage::Label("boot".to_owned())));
        check("EFI-SYSTEM", Some(Storage::Label("EFI-SYSTEM".to_owned())));
        check("/mnt/x", Some(Storage::Folder("/mnt/x".into())));
        for wrong in ["", "..", ".x", "a/b", "a b", "x\\x20y", "ü", &"x".repeat(256)] {
            check(wrong, None);
        }
    }
}
