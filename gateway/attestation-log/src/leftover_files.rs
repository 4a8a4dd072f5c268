//! Leftover temporary files of a kill: no line can name them, and they are removed at the next start.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::blobs::Blobs;
use super::segments;

/// Removes temporary files next to this log and in its folder of evidence, before the log is written. Only names are looked at, however
/// many files there are.
pub(super) fn remove_unfinished(log: &Path, evidence: &Blobs) {
    let (mut removed, mut first) = (0_u64, None);
    let mut found: Vec<PathBuf> = segments::unfinished(log).into_iter().collect();
    match evidence.unfinished() {
        Ok(unfinished) => found.extend(unfinished),
        Err(error) => tracing::warn!(%error, "cannot list leftover temporary files next to the attestation log"),
    }
    for path in found {
        match fs::remove_file(&path) {
            Ok(()) => {
                removed += 1;
                first.get_or_insert(path);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "cannot remove leftover temporary file {}", path.display()),
        }
    }
    if let Some(first) = first {
        let others = match removed {
            1 => String::new(),
            _ => format!(" and {} others", removed - 1),
        };
        tracing::info!(
            "removed temporary files left when the gateway was killed: {}{others}",
            first.display()
        );
    }
}
