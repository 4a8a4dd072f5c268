//! Location of the test vectors. They are not part of the repository.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test uses its own part, and may panic"
)]

use std::path::{Path, PathBuf};

/// Returns the folder `ATTEST_VECTORS`, by default `../shared/vectors` next to the repository. Prints a note if it does not exist.
pub fn vectors() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors");
    let folder = std::env::var_os("ATTEST_VECTORS").map_or_else(beside, PathBuf::from);
    if folder.join("MANIFEST.json").is_file() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no test vectors in {} (set ATTEST_VECTORS)", folder.display());
    None
}

/// Reads one file of the vectors.
pub fn vector(path: &str) -> Option<Vec<u8>> {
    let file = vectors()?.join(path);
    Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// The files directly in a folder whose names end so, sorted.
pub fn files_under(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.is_file() && path.to_str().unwrap().ends_with(end))
        .collect();
    files.sort();
    files
}
