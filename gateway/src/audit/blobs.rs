//! Large parts of records, each kept once: compressed files named by the SHA-256 of their content.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Largest evidence that is read back: larger was never accepted.
const CONTENT_LIMIT_BYTES: u64 = 4 * 1024 * 1024;

/// The folder of blobs.
#[derive(Debug, Clone)]
pub struct Blobs {
    folder: PathBuf,
}

/// A blob cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The content is not what its name says.
    #[error("{0}: the content does not have the SHA-256 of its name")]
    Altered(PathBuf),
}

impl Blobs {
    /// Opens the folder, and makes it if there is none.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn open(folder: &Path) -> Result<Self, BlobError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| BlobError::Io {
                path: folder.to_owned(),
                source,
            })?;
        Ok(Self::at(folder))
    }

    /// A folder that may not be there, for whoever only reads.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The name that `content` has.
    #[must_use]
    pub fn name(content: &[u8]) -> String {
        HEXLOWER.encode(digest::digest(&digest::SHA256, content).as_ref())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.gz"))
    }

    /// Writes `content`, durably, unless it is there already.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn put(&self, name: &str, content: &[u8]) -> Result<(), BlobError> {
        let path = self.path(name);
        if path.exists() {
            return Ok(());
        }
        let io = |source| BlobError::Io {
            path: path.clone(),
            source,
        };
        let temporary = path.with_extension("gz.new");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).map_err(io)?;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(io)?;
        file.write_all(&compressed).and_then(|()| file.sync_all()).map_err(io)?;
        fs::rename(&temporary, &path).map_err(io)?;
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(io)
    }

    /// Reads what [`Blobs::put`] wrote, and checks that it is unaltered.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn get(&self, name: &str) -> Result<Vec<u8>, BlobError> {
        self.get_up_to(name, CONTENT_LIMIT_BYTES)
    }

    /// The same, of what can be so large.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn get_up_to(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>, BlobError> {
        let path = self.path(name);
        let mut content = Vec::new();
        File::open(&path)
            .and_then(|file| GzDecoder::new(file).take(limit_bytes).read_to_end(&mut content))
            .map_err(|source| BlobError::Io {
                path: path.clone(),
                source,
            })?;
        if Self::name(&content) == name {
            Ok(content)
        } else {
            Err(BlobError::Altered(path))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_is_kept_once_and_an_altered_one_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let name = Blobs::name(b"log");
        blobs.put(&name, b"log").unwrap();
        blobs.put(&name, b"log").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(blobs.get(&name).unwrap(), b"log");
        let other = Blobs::name(b"other");
        blobs.put(&other, b"other").unwrap();
        fs::copy(blobs.path(&other), blobs.path(&name)).unwrap();
        assert!(matches!(blobs.get(&name), Err(BlobError::Altered(_))));
        fs::write(blobs.path(&name), b"no gzip").unwrap();
        assert!(matches!(blobs.get(&name), Err(BlobError::Io { .. })));
        assert!(matches!(blobs.get(&Blobs::name(b"missing")), Err(BlobError::Io { .. })));
    }
}
