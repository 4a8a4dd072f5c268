//! An open file, which stays the same even if it is renamed or deleted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

/// Reader of a file's bytes, as they were written.
pub type Bytes = Box<dyn Read + Send>;

/// An open file that may be compressed. Each reader has a position of its own.
#[derive(Debug, Clone)]
pub(super) struct SharedFile {
    file: Arc<File>,
    zipped: bool,
}

impl SharedFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // A pipe would have it wait.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(Self {
            file: Arc::new(File::open(path)?),
            zipped: is_zipped(path),
        })
    }

    /// Opens the file of this name, or its compressed form if it was compressed since.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_zipped(path) => Self::open(&path.with_added_extension("gz")),
            opened => opened,
        }
    }

    pub(super) const fn is_zipped(&self) -> bool {
        self.zipped
    }

    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.file.metadata()
    }

    /// Returns whether this is the file that a path leads to.
    pub(super) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let here = self.metadata()?;
        match fs::metadata(path) {
            Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns a reader of its uncompressed contents from that byte on, also of bytes that are appended later.
    pub(super) fn bytes(&self, offset: u64) -> io::Result<Bytes> {
        let from = |offset| From {
            file: Arc::clone(&self.file),
            offset,
        };
        if self.zipped {
            let mut bytes = MultiGzDecoder::new(from(0));
            io::copy(&mut Read::by_ref(&mut bytes).take(offset), &mut io::sink())?;
            return Ok(Box::new(bytes));
        }
        Ok(Box::new(from(offset)))
    }

    /// Returns the bytes of the file itself at this offset, as far as they exist.
    pub(super) fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let from = From {
            file: Arc::clone(&self.file),
            offset,
        };
        from.take(u64::try_from(length).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

pub(super) fn is_zipped(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// Reader of a file from one byte on, independent of its other readers.
struct From {
    file: Arc<File>,
    offset: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64::try_from(read).unwrap_or(0));
        Ok(read)
    }
}
