//! `attest-node first-boot-secret remove`: removes the secret by which gateways recognise this node, from the disk and from memory, before a workload can
//! look for it.
//!
//! It runs when Ignition has written everything, and so cannot start over, and before the real root takes over. It searches every possible
//! location of the secret, regardless of this boot's state: an earlier part of this first boot may have put it there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::console::print_line;
use crate::disk::{DiskPrograms, Disks};
use crate::first_boot_secret::folder;
use crate::first_boot_secret::state::{self, ClaimFolder};
use crate::first_boot_secret::storage::{MOUNT_POINT, Storage};
use crate::platform::NodePlatform;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct ForgetOptions {
    /// Possible location of the secret.
    pub storage: Storage,
    /// Folder for state that is kept until the next boot.
    pub state: PathBuf,
    /// The kernel command line.
    pub cmdline: PathBuf,
}

/// Runs, prints a message for each remainder on stderr, and returns 1 only if the secret still exists.
#[must_use]
pub fn run(settings: &ForgetOptions) -> ExitCode {
    let storage = NodePlatform::storage_in(&settings.cmdline)
        .0
        .unwrap_or_else(|| settings.storage.clone());
    let said = forget(&storage, &ClaimFolder::new(&settings.state), Path::new(MOUNT_POINT), &DiskPrograms);
    said.lines.iter().for_each(|line| print_line(line));
    if said.left { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Messages of a run, and the flag for a remaining secret.
#[derive(Debug, Default, PartialEq, Eq)]
struct ForgetReport {
    lines: Vec<String>,
    left: bool,
}

fn forget(storage: &Storage, state: &ClaimFolder, mount_point: &Path, disks: &impl Disks) -> ForgetReport {
    let mut said = ForgetReport::default();
    // Where this boot knows it to be: there, what cannot be looked at is left.
    let kept = state.place();
    let known: BTreeSet<String> = kept.iter().flat_map(Storage::labels).collect();
    // As when it was kept: a live system leaves the disks alone.
    let usual = !(*storage == Storage::Usual && disks.are_anothers());
    let looked_at = storage.labels().into_iter().filter(|_| usual);
    let labels: BTreeSet<String> = looked_at.chain(known.iter().cloned()).collect();
    for label in labels.iter().filter(|label| disks.exists(label)) {
        match on_disk(label, mount_point, disks) {
            Ok(()) => {}
            Err(NotForgotten::Unseen(error)) if !known.contains(label) => said.unseen(label, &error),
            Err(NotForgotten::Unseen(error) | NotForgotten::Left(error)) => {
                said.left(&format!("the filesystem labelled {label}: {error}"), &by_hand(label));
            }
        }
    }
    let unmounted = known.iter().filter(|label| !disks.exists(label));
    unmounted.for_each(|label| said.left(&format!("the filesystem labelled {label} no longer exists"), &by_hand(label)));
    for folder in [Some(storage), kept.as_ref()].into_iter().flatten() {
        if let Storage::Folder(root) = folder
            && let Err(error) = folder::erase(root)
        {
            said.left(&error.to_string(), &format!("rm -r {}", root.join(folder::FOLDER).display()));
        }
    }
    if let Err(error) = state.empty() {
        said.left(&format!("{}: {error}", state::FOLDER), &format!("rm -r {}", state::FOLDER));
    }
    said
}

/// Reason why a secret may still exist.
enum NotForgotten {
    /// The filesystem cannot be mounted.
    Unseen(String),
    /// The secret was found, and could not be removed.
    Left(String),
}

/// Mounted for reading first: most have nothing there, and are not written to.
fn on_disk(label: &str, mount_point: &Path, disks: &impl Disks) -> Result<(), NotForgotten> {
    let look = |root: &Path| Ok(folder::exists(root));
    // Who has it mounted for writing keeps it from being mounted for reading only.
    let is_there = disks
        .with(label, mount_point, true, look)
        .or_else(|_| disks.with(label, mount_point, false, look))
        .map_err(|error| NotForgotten::Unseen(error.to_string()))?;
    if is_there {
        disks
            .with(label, mount_point, false, folder::erase)
            .map_err(|error| NotForgotten::Left(error.to_string()))?;
    }
    Ok(())
}

fn by_hand(label: &str) -> String {
    format!("mount LABEL={label} /mnt && rm -r /mnt/{}; umount /mnt", folder::FOLDER)
}

impl ForgetReport {
    /// Most likely there is nothing: this boot has not kept it there.
    fn unseen(&mut self, label: &str, error: &str) {
        self.lines.push(format!(
            "note: the filesystem labelled {label} cannot be read ({error}); if an earlier part of this first boot stored the first-boot secret \
             there, remove it with `{}`",
            by_hand(label)
        ));
    }

    fn left(&mut self, what: &str, command: &str) {
        self.left = true;
        self.lines.push(format!(
            "THE FIRST-BOOT SECRET IS LEFT OVER: {what}; on the booted system, remove it before a workload reads it: `{command}`"
        ));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::first_boot_secret::ClaimSecret;
    use crate::first_boot_secret::storage::tests::Folders;

    /// A machine: its disk, and its memory.
    struct Machine {
        disk: tempfile::TempDir,
        memory: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                disk: tempfile::tempdir().unwrap(),
                memory: tempfile::tempdir().unwrap(),
            }
        }

        fn keeps(self) -> Self {
            folder::write(self.disk.path(), &ClaimSecret::from_bytes([7; 32])).unwrap();
            self
        }

        fn state(&self) -> ClaimFolder {
            ClaimFolder::new(&self.memory.path().join("state"))
        }

        fn forget(&self, storage: &Storage, disks: &Folders) -> ForgetReport {
            forget(storage, &self.state(), Path::new("/nonexistent"), disks)
        }

        #[track_caller]
        fn is_clean(&self) {
            assert_eq!(fs::read_dir(self.disk.path()).unwrap().count(), 0);
            assert_eq!(fs::read_dir(self.memory.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn forget_erases_the_secret_from_every_label() {
        for label in crate::first_boot_secret::storage::LABELS {
            let machine = Machine::new().keeps();
            machine.state().set_secret(&ClaimSecret::from_bytes([7; 32]));
            let disks = Folders::with(&[(label, machine.disk.path())]);
            assert_eq!(machine.forget(&Storage::Usual, &disks), ForgetReport::default());
            machine.is_clean();
            assert_eq!(*disks.mounted.borrow(), [(label.to_owned(), true), (label.to_owned(), false)]);
        }
        // Where this boot has put it, though nobody says so any more.
        let machine = Machine::new().keeps();
        machine.state().set_place("other");
        assert_eq!(
            machine.forget(&Storage::Usual, &Folders::with(&[("other", machine.disk.path())])),
            ForgetReport::default()
        );
        machine.is_clean();
        let machine = Machine::new().keeps();
        machine.state().set_place(machine.disk.path().to_str().unwrap());
        assert_eq!(machine.forget(&Storage::Nowhere, &Folders::default()), ForgetReport::default());
        machine.is_clean();
        let machine = Machine::new().keeps();
        assert_eq!(
            machine.forget(&Storage::Folder(machine.disk.path().to_owned()), &Folders::default()),
            ForgetReport::default()
        );
        machine.is_clean();
    }

    #[test]
    fn forget_does_not_write_without_a_secret() {
        let machine = Machine::new();
        let disks = Folders::with(&[("boot", machine.disk.path())]);
        assert_eq!(machine.forget(&Storage::Usual, &disks), ForgetReport::default());
        assert_eq!(*disks.mounted.borrow(), [("boot".to_owned(), true)]);
        assert_eq!(machine.forget(&Storage::Usual, &Folders::default()), ForgetReport::default());
        machine.is_clean();
        let live = Folders {
            live: true,
            ..Folders::with(&[("boot", machine.disk.path())])
        };
        assert_eq!(machine.forget(&Storage::Usual, &live), ForgetReport::default());
        assert!(live.mounted.borrow().is_empty());
    }

    #[test]
    fn forget_reports_leftovers_with_next_step() {
        let loud = |said: &ForgetReport, parts: &[&str]| {
            let [line] = said.lines.as_slice() else { panic!("{said:?}") };
            assert!(said.left && line.contains("IS LEFT OVER"), "{line}");
            parts
                .iter()
                .for_each(|part| assert!(line.contains(part), "{part:?} is missing in {line}"));
        };
        let machine = Machine::new().keeps();
        fs::write(machine.disk.path().join("attest-node/other"), "x").unwrap();
        let said = machine.forget(&Storage::Usual, &Folders::with(&[("boot", machine.disk.path())]));
        loud(
            &said,
            &[
                "labelled boot: ",
                "attest-node: ",
                "mount LABEL=boot /mnt && rm -r /mnt/attest-node",
            ],
        );
        // A disk that cannot be looked at is a trouble if it is there, and none if nothing says so.
        let machine = Machine::new().keeps();
        let broken = || Folders {
            broken: true,
            ..Folders::with(&[("boot", machine.disk.path())])
        };
        let said = machine.forget(&Storage::Usual, &broken());
        let [line] = said.lines.as_slice() else { panic!("{said:?}") };
        assert!(!said.left && line.starts_with("note: the filesystem labelled boot "), "{line}");
        assert!(line.contains("wrong fs type") && !line.contains("LEFT OVER"), "{line}");
        machine.state().set_place("boot");
        loud(&machine.forget(&Storage::Usual, &broken()), &["wrong fs type", "LABEL=boot"]);
        machine.state().set_place("boot");
        loud(
            &machine.forget(&Storage::Usual, &Folders::default()),
            &["the filesystem labelled boot no longer exists"],
        );
    }
}
