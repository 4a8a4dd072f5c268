//! Installation of an initrd on one boot filesystem, and its removal.
//!
//! The initrd becomes one more file of each boot entry that has an initrd. The steps keep the system bootable after each of them: first the
//! manifest, which names what an interrupted run leaves; then the file; then the entries; last, what an earlier installation left.

use std::collections::BTreeMap;
use std::io;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde::Serialize;

use super::entry::BootEntry;
use super::filesystem::{BootFilesystem, PARTIAL};
use crate::failure::{Failure, printable};

/// Folder of the boot entries.
pub(super) const ENTRIES: &str = "loader/entries";
const ENTRY_SUFFIX: &str = ".conf";
/// Folder of the initrd, and of the manifest.
const FOLDER: &str = "attest-node";
/// List of the installed files, in the form of sha256sum(1).
const MANIFEST: &str = "attest-node/installed.sha256";
/// Folder of an OSTree deployment's further initrds. OSTree reads no entry whose further initrds are not named after a SHA-256 digest
/// (`list_deployments_process_one_boot_entry`), and removes those that no entry names.
const OVERLAYS: &str = "ostree/initramfs-overlays";
/// Prefix of paths in entries where `/boot` is no filesystem of its own, or the boot loader expects a full path.
const BOOT: &str = "/boot";
/// Map of zipl, the boot loader of s390x: it reads the entries when it is installed, not when it boots.
const ZIPL_MAP: &str = "bootmap";
/// Folder of unified kernel images.
const UNIFIED: &str = "EFI/Linux";
/// Folder of Flatcar's kernels, on its EFI system partition.
const FLATCAR: &str = "flatcar";
/// Configs of GRUB, relative to the boot filesystem.
const GRUB: [&str; 2] = ["grub2/grub.cfg", "grub/grub.cfg"];

/// Layout of the boot entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Layout {
    Ostree,
    Plain,
}

/// File that was created, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ChangedFile {
    /// Path on the boot filesystem.
    pub path: String,
    /// SHA-256 before; `None` if the file did not exist.
    pub before: Option<String>,
    /// SHA-256 now; `None` if the file was removed.
    pub after: Option<String>,
}

/// Result of an installation or a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct BootMenuChange {
    pub layout: Layout,
    /// Paths of the entries that load the initrd, or did.
    pub entries: Vec<String>,
    /// Changed files, none if everything was in place.
    pub changes: Vec<ChangedFile>,
}

/// Reason for which a filesystem was not changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BootMenuError {
    /// No boot loader entries: other filesystems of the disk may have some.
    #[error("{0}")]
    NoEntries(String),
    #[error("{reason}")]
    Unsupported { reason: String, next_step: &'static str },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
}

impl From<BootMenuError> for Failure {
    fn from(error: BootMenuError) -> Self {
        let reason = printable(&error.to_string());
        match error {
            BootMenuError::NoEntries(_) => Self::new("install-unsupported", reason, NO_ENTRIES),
            BootMenuError::Unsupported { next_step, .. } => Self::new("install-unsupported", reason, next_step),
            // A file that does not exist is no error: a program is missing, or a link leads to nothing.
            BootMenuError::File { error, .. } if error.kind() == io::ErrorKind::NotFound => Self::new(
                "install-target",
                reason,
                "correct this, and run the command again; nothing is changed",
            ),
            BootMenuError::File { .. } => Self::new(
                "install-failed",
                reason,
                "make the boot filesystem writable, with free space for the initrd, and run the command again; the system boots as before",
            ),
        }
    }
}

/// Next step for a disk without entries.
const NO_ENTRIES: &str =
    "append the initrd to the one that the boot loader loads, or build attest-node into the image with its dracut module";

/// Boot filesystem with its entries, read before anything is changed.
pub(super) struct BootMenu<'f, F> {
    filesystem: &'f F,
    layout: Layout,
    entries: Vec<(String, BootEntry)>,
    /// Installed files by path, with their digests, as the manifest has them.
    installed: BTreeMap<String, String>,
}

impl<'f, F: BootFilesystem> BootMenu<'f, F> {
    /// # Errors
    /// [`BootMenuError`].
    pub(super) fn read(filesystem: &'f F) -> Result<Self, BootMenuError> {
        let mut entries = Vec::new();
        for name in names(filesystem, ENTRIES)?.iter().filter(|name| name.ends_with(ENTRY_SUFFIX)) {
            let path = format!("{ENTRIES}/{name}");
            let Some(content) = read(filesystem, &path)? else { continue };
            let text = String::from_utf8(content).map_err(|_| unsupported(format!("{path} is not UTF-8"), "restore this boot entry"))?;
            let entry = BootEntry::new(text);
            if entry.has_initrd() {
                entries.push((path, entry));
            }
        }
        let is_ostree = entries.iter().any(|(_, entry)| entry.is_ostree());
        Ok(Self {
            filesystem,
            layout: if is_ostree { Layout::Ostree } else { Layout::Plain },
            entries,
            installed: manifest(filesystem)?,
        })
    }

    /// Adds the initrd to each entry, in place of one that was installed before.
    ///
    /// # Errors
    /// [`BootMenuError`]; the system boots as before, or with the initrd.
    pub(super) fn install(&self, initrd: &[u8]) -> Result<BootMenuChange, BootMenuError> {
        let Some(prefix) = prefix(self.filesystem, &self.entries)? else {
            return Err(no_entries(self.filesystem)?);
        };
        self.check_layout()?;
        let sha256 = hex(initrd);
        let path = match self.layout {
            Layout::Ostree => format!("{OVERLAYS}/{sha256}.img"),
            Layout::Plain => format!("{FOLDER}/{sha256}.img"),
        };
        let former: Vec<&String> = self.installed.keys().filter(|former| **former != path).collect();
        let line = format!("{prefix}/{path}");
        let ours = self.ours();
        let changed: Vec<_> = self.entries.iter().map(|(_, entry)| entry.with_initrd(&line, &ours)).collect();
        if let Some((name, _)) = self.entries.iter().find(|(_, entry)| !entry.without_initrds(&ours).has_initrd()) {
            return Err(unsupported(format!("{name} has no initrd of its own"), "restore this boot entry"));
        }
        self.check_unnamed(&former, &changed)?;

        let mut installed = self.installed.clone();
        installed.insert(path.clone(), sha256);
        self.remove_partials()?;
        let mut changes = Changes::new(self.filesystem);
        let begun = changes
            .write(MANIFEST, manifest_text(&installed).as_bytes())
            .and_then(|()| changes.write(&path, initrd));
        if let Err(error) = begun {
            // Nothing names the file yet.
            let _ = self.restore_manifest();
            return Err(error);
        }
        self.write_entries(&changed, &mut changes)?;
        for former in former {
            changes.remove(former)?;
        }
        installed.retain(|kept, _| *kept == path);
        changes.write(MANIFEST, manifest_text(&installed).as_bytes())?;
        Ok(self.finished(changes))
    }

    /// Removes what was installed. Without an installation, nothing changes.
    ///
    /// # Errors
    /// [`BootMenuError`]; the system boots as before, or without the initrd.
    pub(super) fn uninstall(&self) -> Result<BootMenuChange, BootMenuError> {
        if self.entries.is_empty() && self.installed.is_empty() {
            return Err(no_entries(self.filesystem)?);
        }
        let ours = self.ours();
        let changed: Vec<_> = self.entries.iter().map(|(_, entry)| entry.without_initrds(&ours)).collect();
        self.check_unnamed(&self.installed.keys().collect::<Vec<_>>(), &changed)?;
        self.remove_partials()?;
        let mut changes = Changes::new(self.filesystem);
        self.write_entries(&changed, &mut changes)?;
        for path in self.installed.keys() {
            changes.remove(path)?;
        }
        if !self.installed.is_empty() {
            changes.remove(MANIFEST)?;
            self.filesystem.remove_folder(FOLDER);
            self.filesystem.remove_folder(OVERLAYS);
        }
        Ok(self.finished(changes))
    }

    /// Checks that the boot loader reads the entries, and that all of them have one layout.
    fn check_layout(&self) -> Result<(), BootMenuError> {
        if exists(self.filesystem, ZIPL_MAP)? {
            return Err(unsupported(
                "zipl has read the boot entries already: a change has no effect until it is run".to_owned(),
                "build attest-node into the image with its dracut module",
            ));
        }
        if self.layout == Layout::Ostree && !self.entries.iter().all(|(_, entry)| entry.is_ostree()) {
            let reason = "some boot entries are OSTree deployments, and some are not".to_owned();
            return Err(unsupported(reason, "remove the entries that are not booted"));
        }
        Ok(())
    }

    /// Checks that no changed entry names one of these files, which are to be removed.
    fn check_unnamed(&self, files: &[&String], changed: &[BootEntry]) -> Result<(), BootMenuError> {
        for ((name, _), entry) in self.entries.iter().zip(changed) {
            let file = files
                .iter()
                .find(|path| path.rsplit('/').next().is_some_and(|file| entry.text().contains(file)));
            if let Some(file) = file {
                let reason = format!("{name} names {file} not on a line of its own");
                return Err(unsupported(reason, "remove this file from the entry"));
            }
        }
        Ok(())
    }

    /// Paths of installed initrds in entries: those of the manifest, and all in this program's own folder, also if the manifest is lost.
    fn ours(&self) -> Vec<String> {
        let is_own = |path: &str| {
            let file = path.strip_prefix(BOOT).unwrap_or(path).trim_start_matches('/');
            let digest = file
                .strip_prefix(FOLDER)
                .and_then(|rest| rest.strip_prefix('/')?.strip_suffix(".img"));
            digest.is_some_and(is_digest)
        };
        let named = self
            .entries
            .iter()
            .flat_map(|(_, entry)| entry.initrds())
            .filter(|path| is_own(path));
        let of_manifest = self
            .installed
            .keys()
            .flat_map(|path| ["", BOOT].map(|prefix| format!("{prefix}/{path}")));
        named.map(str::to_owned).chain(of_manifest).collect()
    }

    fn write_entries(&self, changed: &[BootEntry], changes: &mut Changes<'_, F>) -> Result<(), BootMenuError> {
        for ((name, _), entry) in self.entries.iter().zip(changed) {
            changes.write(name, entry.text().as_bytes())?;
        }
        Ok(())
    }

    /// Removes files that a killed run was writing.
    fn remove_partials(&self) -> Result<(), BootMenuError> {
        for folder in [ENTRIES, FOLDER, OVERLAYS] {
            for name in names(self.filesystem, folder)?.iter().filter(|name| name.ends_with(PARTIAL)) {
                let path = format!("{folder}/{name}");
                self.filesystem.remove(&path).map_err(|error| file_error(&path, error))?;
            }
        }
        Ok(())
    }

    fn finished(&self, changes: Changes<'_, F>) -> BootMenuChange {
        BootMenuChange {
            layout: self.layout,
            entries: self.entries.iter().map(|(path, _)| path.clone()).collect(),
            changes: changes.files(),
        }
    }

    fn restore_manifest(&self) -> io::Result<()> {
        if self.installed.is_empty() {
            self.filesystem.remove(MANIFEST)?;
            self.filesystem.remove_folder(FOLDER);
            self.filesystem.remove_folder(OVERLAYS);
            return Ok(());
        }
        self.filesystem.write(MANIFEST, manifest_text(&self.installed).as_bytes())
    }
}

/// Reads the manifest: installed files by path, with their digests.
fn manifest<F: BootFilesystem>(filesystem: &F) -> Result<BTreeMap<String, String>, BootMenuError> {
    let content = read(filesystem, MANIFEST)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&content);
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    // Only what this program can have installed may be removed.
    let is_ours = |sha256: &str, path: &str| [FOLDER, OVERLAYS].iter().any(|folder| path == format!("{folder}/{sha256}.img"));
    let installed = lines.filter(|(sha256, path)| is_digest(sha256) && is_ours(sha256, path));
    Ok(installed.map(|(sha256, path)| (path.to_owned(), sha256.to_owned())).collect())
}

/// Changes that were made, with the digests of the files.
struct Changes<'f, F> {
    filesystem: &'f F,
    files: BTreeMap<String, (Option<String>, Option<String>)>,
}

impl<'f, F: BootFilesystem> Changes<'f, F> {
    fn new(filesystem: &'f F) -> Self {
        Self {
            filesystem,
            files: BTreeMap::new(),
        }
    }

    fn write(&mut self, path: &str, content: &[u8]) -> Result<(), BootMenuError> {
        let before = read(self.filesystem, path)?;
        if before.as_deref() == Some(content) {
            return Ok(());
        }
        self.filesystem.write(path, content).map_err(|error| file_error(path, error))?;
        self.note(path, before.as_deref(), Some(content));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), BootMenuError> {
        let Some(before) = read(self.filesystem, path)? else {
            return Ok(());
        };
        self.filesystem.remove(path).map_err(|error| file_error(path, error))?;
        self.note(path, Some(&before), None);
        Ok(())
    }

    fn note(&mut self, path: &str, before: Option<&[u8]>, after: Option<&[u8]>) {
        let file = self.files.entry(path.to_owned()).or_insert_with(|| (before.map(hex), None));
        file.1 = after.map(hex);
    }

    fn files(self) -> Vec<ChangedFile> {
        let changed = self.files.into_iter().filter(|(_, (before, after))| before != after);
        changed.map(|(path, (before, after))| ChangedFile { path, before, after }).collect()
    }
}

/// Returns the part of the entries' paths that is not on this filesystem; `None` if there is no entry.
fn prefix<F: BootFilesystem>(filesystem: &F, entries: &[(String, BootEntry)]) -> Result<Option<&'static str>, BootMenuError> {
    let mut missing = None;
    for (name, entry) in entries {
        let Some(initrd) = entry.first_initrd() else { continue };
        let below_boot = initrd.strip_prefix(BOOT).filter(|rest| rest.starts_with('/'));
        for (prefix, path) in [("", Some(initrd)), (BOOT, below_boot)] {
            let Some(path) = path else { continue };
            if exists(filesystem, path.trim_start_matches('/'))? {
                return Ok(Some(prefix));
            }
        }
        missing.get_or_insert(format!("the initrd {initrd} of {name} is not on this filesystem"));
    }
    match missing {
        None => Ok(None),
        // An entry that is left over keeps no other partition from being changed.
        Some(reason) => Err(BootMenuError::NoEntries(reason)),
    }
}

/// Builds the error for a filesystem without an entry that can be changed.
fn no_entries<F: BootFilesystem>(filesystem: &F) -> Result<BootMenuError, BootMenuError> {
    let unified = names(filesystem, UNIFIED)?;
    if unified.iter().any(|name| name.to_ascii_lowercase().ends_with(".efi")) {
        let reason = format!("the initrd of a unified kernel image ({UNIFIED}) is a part of the image");
        return Ok(unsupported(reason, "build attest-node into the image with its dracut module"));
    }
    if names(filesystem, FLATCAR)?.iter().any(|name| name.starts_with("vmlinuz")) {
        let reason = "Flatcar's initrd is a part of its kernel, and only opens a second one".to_owned();
        return Ok(unsupported(reason, "attest by a cloud's evidence or a provisioning token"));
    }
    for config in GRUB {
        if exists(filesystem, config)? {
            return Ok(BootMenuError::NoEntries(format!(
                "{ENTRIES} has no entry with an initrd: only {config} names the kernel"
            )));
        }
    }
    Ok(BootMenuError::NoEntries(format!("{ENTRIES} has no entry with an initrd")))
}

fn unsupported(reason: String, next_step: &'static str) -> BootMenuError {
    BootMenuError::Unsupported { reason, next_step }
}

fn file_error(path: &str, error: io::Error) -> BootMenuError {
    BootMenuError::File {
        path: path.to_owned(),
        error,
    }
}

fn names<F: BootFilesystem>(filesystem: &F, folder: &str) -> Result<Vec<String>, BootMenuError> {
    filesystem.names(folder).map_err(|error| file_error(folder, error))
}

fn exists<F: BootFilesystem>(filesystem: &F, path: &str) -> Result<bool, BootMenuError> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok(names(filesystem, folder)?.iter().any(|found| found == name))
}

fn read<F: BootFilesystem>(filesystem: &F, path: &str) -> Result<Option<Vec<u8>>, BootMenuError> {
    filesystem.read(path).map_err(|error| file_error(path, error))
}

fn manifest_text(installed: &BTreeMap<String, String>) -> String {
    installed.iter().map(|(path, sha256)| format!("{sha256}  {path}\n")).collect()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests;
