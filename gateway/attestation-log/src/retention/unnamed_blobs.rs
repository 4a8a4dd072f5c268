//! Note of the blobs that may go with a segment, written before the segment is removed: after a kill in between, only the note tells which
//! they were.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use attest_system::files::{self, PRIVATE};
use attest_system::newer_format::NewerFormat;
use serde::{Deserialize, Serialize};

use super::RetentionError;
use crate::newer_log::NewerLog;

/// Version of the document.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnnamedBlobsFile {
    v: u32,
    blobs: BTreeSet<String>,
}

fn file(log: &Path) -> PathBuf {
    log.with_extension("unnamed")
}

/// Returns the error of a note that a newer release has written next to this log.
#[must_use]
pub fn newer_note(log: &Path) -> Option<NewerLog> {
    let path = file(log);
    // An error is reported by the pass that reads it.
    let newer = NewerFormat::in_json("version", VERSION.into(), &files::read(&path, u64::MAX).ok()?)?;
    Some(NewerLog { path, newer })
}

/// Returns the blobs that are noted.
pub(super) fn noted(log: &Path) -> Result<BTreeSet<String>, RetentionError> {
    let path = file(log);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(source) => return Err(RetentionError::Io { path, source }),
    };
    let malformed = |problem: String| RetentionError::Malformed { path: file(log), problem };
    let UnnamedBlobsFile { v, blobs } = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if v != VERSION {
        return Err(malformed(format!("it has version {v}, and this release reads {VERSION}")));
    }
    Ok(blobs)
}

/// Adds these blobs to the note, durably.
pub(super) fn note(log: &Path, mut blobs: BTreeSet<String>) -> Result<(), RetentionError> {
    if blobs.is_empty() {
        return Ok(());
    }
    blobs.extend(noted(log)?);
    let text = serde_json::to_string(&UnnamedBlobsFile { v: VERSION, blobs }).map_err(|error| RetentionError::Malformed {
        path: file(log),
        problem: error.to_string(),
    })?;
    Ok(files::replace(&file(log), PRIVATE, &text)?)
}

/// Removes the note: the blobs that no record names are gone.
pub(super) fn forget(log: &Path) -> Result<(), RetentionError> {
    match files::remove(&file(log)) {
        Err(error) if error.source.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn unreferenced_blobs_stay_listed_until_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(noted(&log).unwrap(), set(&[]));
        note(&log, set(&[])).unwrap();
        assert!(!file(&log).exists());
        note(&log, set(&["a"])).unwrap();
        note(&log, set(&["b", "a"])).unwrap();
        assert_eq!(noted(&log).unwrap(), set(&["a", "b"]));
        let text = fs::read_to_string(file(&log)).unwrap();
        for wrong in [
            text.replace(":1", ":2"),
            text.replace("blobs", "names"),
            text[1..].to_owned(),
            String::new(),
        ] {
            fs::write(file(&log), &wrong).unwrap();
            assert!(matches!(noted(&log), Err(RetentionError::Malformed { .. })), "{wrong}");
        }
        forget(&log).unwrap();
        forget(&log).unwrap();
        assert_eq!(noted(&log).unwrap(), set(&[]));
    }
}
