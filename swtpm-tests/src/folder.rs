//! Folder of a test: removed if the test passes, kept if it fails, with logs, consoles and disks for analysis.

use std::path::{Path, PathBuf};
use std::{env, thread};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Environment variable: if it is 1, the folders of tests that pass are kept, too.
const KEEP: &str = "ATTEST_KEEP";

/// Temporary folder that is removed when it is dropped, unless the test fails.
#[derive(Debug)]
pub struct TestFolder(Option<TempDir>);

impl TestFolder {
    /// Creates a folder in the system's temporary folder.
    pub fn new() -> Result<Self> {
        tempfile::tempdir()
            .map(|folder| Self(Some(folder)))
            .context("making a test's folder")
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.as_ref().map(TempDir::path).unwrap_or(Path::new(""))
    }

    fn keep(&mut self, kept: bool) -> Option<PathBuf> {
        self.0.take().filter(|_| kept).map(TempDir::keep)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        if let Some(path) = self.keep(thread::panicking() || env::var_os(KEEP).is_some_and(|keep| keep == "1")) {
            eprintln!("what this test has left is in {}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_kept_where_a_test_fails() {
        let passed = TestFolder::new().unwrap();
        let path = passed.path().to_path_buf();
        assert!(path.is_dir());
        drop(passed);
        assert!(!path.exists());
        let failed = thread::spawn(|| {
            let folder = TestFolder::new().unwrap();
            std::fs::write(folder.path().join("console.log"), folder.path().to_str().unwrap()).unwrap();
            std::panic::panic_any(folder.path().to_path_buf());
        });
        let kept = failed.join().unwrap_err().downcast::<PathBuf>().unwrap();
        assert!(kept.join("console.log").is_file());
        std::fs::remove_dir_all(*kept).unwrap();
    }
}
