//! New files: whole, or not there.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use attest_system::files::{self, PRIVATE};

use super::output::Output;

/// Writes a new file, durably and completely, or not at all.
///
/// # Errors
/// Those of `write`, and of files; also if there is such a file.
pub fn into_file<T>(path: &Path, write: impl FnOnce(&mut Output<File>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    if path.symlink_metadata().is_ok() {
        bail!("{} exists: left unchanged", path.display());
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let opened = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&part);
    let opened = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!(
            "{} exists: another command is writing it, or was interrupted; if no command is running, remove it",
            part.display()
        ),
        _ => anyhow!("{}: {error}", part.display()),
    });
    let mut output = Output::new(opened?, part.display().to_string());
    let written = write(&mut output).and_then(|written| {
        output.into_inner().sync_all().with_context(|| part.display().to_string())?;
        files::rename(&part, path)?;
        Ok(written)
    });
    if written.is_err() {
        // What is there of it is of no use; why it failed is said.
        drop(std::fs::remove_file(&part));
    }
    written
}
