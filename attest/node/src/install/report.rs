//! Output of an installation: what changed, and what follows from it for reference values.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::boot_menu::BootMenuChange;
use super::{InstallOptions, InstallTarget};
use crate::failure::printable;

/// Boot filesystem with what was changed on it.
#[derive(Debug, Serialize)]
pub(super) struct InstalledFilesystem {
    /// Partition, or folder of the mounted filesystem.
    on: PathBuf,
    #[serde(flatten)]
    change: BootMenuChange,
}

impl InstalledFilesystem {
    pub(super) fn new(on: &Path, change: BootMenuChange) -> Self {
        Self { on: on.to_owned(), change }
    }

    pub(super) fn is_changed(&self) -> bool {
        !self.change.changes.is_empty()
    }
}

/// Result for all filesystems of a target.
#[derive(Debug)]
pub(super) struct ChangedTarget {
    pub filesystems: Vec<InstalledFilesystem>,
    /// Set for an image that can be read as a raw one.
    pub is_raw_image: bool,
}

/// Returns the output, for a person or for programs.
pub(super) fn text(settings: &InstallOptions, changed: &ChangedTarget) -> String {
    let filesystems = &changed.filesystems;
    if settings.json {
        return format!("{:#}\n", json!({"filesystems": filesystems}));
    }
    let mut text = String::new();
    for InstalledFilesystem { on, change } in filesystems {
        for file in &change.changes {
            let (word, digests) = match (&file.before, &file.after) {
                (Some(before), Some(after)) => ("changed", format!("{after}, before {before}")),
                (Some(only), None) => ("removed", only.clone()),
                (None, after) => ("created", after.clone().unwrap_or_default()),
            };
            // Writing to a String cannot fail.
            let path = printable(&format!("{}/{}", on.display(), file.path));
            let _ = writeln!(text, "{word} {path} (sha256 {digests})");
        }
    }
    let entries: usize = filesystems.iter().map(|filesystem| filesystem.change.entries.len()).sum();
    let is_changed = filesystems.iter().any(InstalledFilesystem::is_changed);
    let _ = match (settings.initrd.is_some(), is_changed) {
        (true, true) => writeln!(text, "installed; boot entries that load attest-node: {entries}"),
        (true, false) => writeln!(text, "nothing to do; boot entries that load this attest-node: {entries}"),
        (false, true) => writeln!(text, "removed; boot entries as before the installation: {entries}"),
        (false, false) => writeln!(text, "nothing to do; attest-node is not installed"),
    };
    if is_changed {
        text.push_str(&next_steps(settings, changed.is_raw_image));
    }
    text
}

fn next_steps(settings: &InstallOptions, is_raw_image: bool) -> String {
    let (option, path) = settings.target.option();
    let path = path.display();
    if settings.initrd.is_none() {
        return "Reference values from before the installation apply again.\n".to_owned();
    }
    let predict = "attest-audit reference-values predict --secure-boot on --disk";
    let predict = match &settings.target {
        InstallTarget::Image(_) if is_raw_image => format!(":\n  {predict} {path}"),
        InstallTarget::Image(_) => format!(":\n  qemu-img convert -O raw {path} {path}.raw\n  {predict} {path}.raw"),
        InstallTarget::Disk(_) | InstallTarget::Boot(_) => String::new(),
    };
    format!(
        "Boot loaders measure entries and initrds into PCR 9, GRUB also into PCR 8: with reference values, predict those of the new \
         boot{predict}\nTo revert:\n  attest-node uninstall {option} {path}\n"
    )
}

/// Writes to stdout. A reader that has gone away is no failure.
///
/// # Errors
/// Another error of the operating system.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
