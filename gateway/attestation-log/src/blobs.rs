//! Large parts of records, each kept once: compressed files named by the SHA-256 of their content.
//!
//! A blob is removed when no record names it. A record may come to name one at that very moment. So the writer of a record holds
//! [`Writing`] from its blobs to its line. Blobs that were written since a [`Sweep`] began to look for the named ones stay.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::file_type::is_file;

/// Longest content that is read back, in bytes. The longest one is the CAs of all TPM manufacturers.
pub const BLOB_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// Most of what [`Blobs::remembering`] holds: the event logs of a thousand models, and the CAs of all makers.
const READ_ONCE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Extension of a file that is not complete yet.
const UNFINISHED: &str = "gz.new";

/// Most names that are known to exist durably. Beyond it all are forgotten, and checked again.
const WHOLE_LIMIT: usize = 65_536;

/// Folder of blobs. All writers in one process use the same value or its clones.
#[derive(Debug, Clone)]
pub struct Blobs {
    folder: PathBuf,
    named: Arc<Mutex<ReferencedBlobs>>,
    read: Option<Arc<Mutex<ReadOnce>>>,
}

/// Cache of contents, for readers of many records that name the same ones.
#[derive(Debug, Default)]
struct ReadOnce {
    contents: HashMap<String, Arc<[u8]>>,
    bytes: usize,
}

/// Blobs that are not removed, whatever the log says.
#[derive(Debug, Default)]
struct ReferencedBlobs {
    /// Written with [`Blobs::put`]: they stay for as long as the process lives, for records that name them without bringing them.
    lasting: BTreeSet<String>,
    /// Written since the current sweep began; `None` without a sweep.
    since: Option<BTreeSet<String>>,
    /// Names that this process has seen to exist durably, with the right content.
    whole: BTreeSet<String>,
}

/// Guard for the blobs of records that are being written: until it is dropped no sweep begins.
#[derive(Debug)]
pub(super) struct Writing<'b> {
    blobs: &'b Blobs,
    named: MutexGuard<'b, ReferencedBlobs>,
}

/// A search for the blobs that are named. Blobs that are written meanwhile count as named.
#[derive(Debug)]
pub(super) struct Sweep(Blobs);

/// A blob cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The content does not have the SHA-256 of its name.
    #[error("{0}: the content does not have the SHA-256 of its name")]
    Altered(PathBuf),
}

impl Blobs {
    /// Opens the folder, and makes it if it does not exist.
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

    /// Returns a folder for readers; it need not exist.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            named: Arc::default(),
            read: None,
        }
    }

    /// Returns the same folder with a cache, for readers of many machines' records. A blob that several of them name is read once, as far
    /// as there is room.
    #[must_use]
    pub fn remembering(self) -> Self {
        Self {
            read: Some(Arc::default()),
            ..self
        }
    }

    /// Returns the name of a blob with this content.
    #[must_use]
    pub fn name(content: &[u8]) -> String {
        HEXLOWER.encode(digest::digest(&digest::SHA256, content).as_ref())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.gz"))
    }

    fn named(&self) -> MutexGuard<'_, ReferencedBlobs> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `content`, durably, unless the file has it already. It stays for as long as the process lives, whether a record names it or
    /// not.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn put(&self, name: &str, content: &[u8]) -> Result<(), BlobError> {
        let mut named = self.named();
        named.lasting.insert(name.to_owned());
        self.write(&mut named.whole, name, content)
    }

    /// Begins to write records that bring their blobs.
    pub(super) fn writing(&self) -> Writing<'_> {
        Writing {
            blobs: self,
            named: self.named(),
        }
    }

    /// Begins a sweep, when no record is being written. There is one at a time.
    pub(super) fn sweep(&self) -> Sweep {
        self.named().since = Some(BTreeSet::new());
        Sweep(self.clone())
    }

    /// Returns whether there is a blob of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns files that are not complete: one is being written, or its writer was killed.
    pub(super) fn unfinished(&self) -> Result<Vec<PathBuf>, BlobError> {
        let io = |source| BlobError::Io {
            path: self.folder.clone(),
            source,
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            if is_unfinished(&entry.file_name()) && is_file(entry.file_type()) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    fn write(&self, whole: &mut BTreeSet<String>, name: &str, content: &[u8]) -> Result<(), BlobError> {
        let path = self.path(name);
        if path.exists() && whole.contains(name) {
            return Ok(());
        }
        let io = |source| BlobError::Io {
            path: path.clone(),
            source,
        };
        // One that an earlier process has left may have been altered since, and its name may not be durable.
        match holds(&path, content) {
            Ok(true) => {}
            Ok(false) => self.replace(&path, content).map_err(io)?,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, "cannot read evidence file {}; rewriting it", path.display());
                }
                self.replace(&path, content).map_err(io)?;
            }
        }
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(io)?;
        if whole.len() >= WHOLE_LIMIT {
            whole.clear();
        }
        whole.insert(name.to_owned());
        Ok(())
    }

    /// Replaces a file by one with this content; its name is not durable yet.
    fn replace(&self, path: &Path, content: &[u8]) -> std::io::Result<()> {
        let temporary = path.with_extension(UNFINISHED);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let compressed = encoder.write_all(content).and_then(|()| encoder.finish())?;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&compressed)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    }

    /// Reads what [`Blobs::put`] wrote, and checks that it is unaltered.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn get(&self, name: &str) -> Result<Vec<u8>, BlobError> {
        let read = || self.read.as_ref().map(|read| read.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(content) = read().and_then(|read| read.contents.get(name).cloned()) {
            return Ok(content.to_vec());
        }
        let path = self.path(name);
        let mut content = Vec::new();
        File::open(&path)
            .and_then(|file| GzDecoder::new(file).take(BLOB_LIMIT_BYTES).read_to_end(&mut content))
            .map_err(|source| BlobError::Io {
                path: path.clone(),
                source,
            })?;
        if Self::name(&content) == name {
            if let Some(mut read) = read().filter(|read| read.bytes.saturating_add(content.len()) <= READ_ONCE_LIMIT_BYTES) {
                read.bytes += content.len();
                read.contents.insert(name.to_owned(), content.as_slice().into());
            }
            Ok(content)
        } else {
            Err(BlobError::Altered(path))
        }
    }
}

/// Returns whether this is the name of an incomplete blob.
fn is_unfinished(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_suffix(UNFINISHED)?.strip_suffix('.'));
    digits.is_some_and(|digits| digits.len() == 2 * digest::SHA256_OUTPUT_LEN && HEXLOWER.decode(digits.as_bytes()).is_ok())
}

/// Returns whether a file holds exactly this content.
fn holds(path: &Path, content: &[u8]) -> std::io::Result<bool> {
    let limit = u64::try_from(content.len()).unwrap_or(u64::MAX).saturating_add(1);
    let mut found = Vec::new();
    GzDecoder::new(File::open(path)?).take(limit).read_to_end(&mut found)?;
    let same = found == content;
    if !same {
        tracing::warn!(
            "evidence file {} does not match the digest in its name; rewriting it",
            path.display()
        );
    }
    Ok(same)
}

impl Writing<'_> {
    /// Like [`Blobs::put`], but only for a record that is written before this guard is dropped.
    pub(super) fn put(&mut self, name: &str, content: &[u8]) -> Result<(), BlobError> {
        if let Some(since) = &mut self.named.since {
            since.insert(name.to_owned());
        }
        self.blobs.write(&mut self.named.whole, name, content)
    }
}

impl Sweep {
    /// Removes a blob that no record names, if it was there when the sweep began. Returns whether it was removed.
    pub(super) fn remove(&self, name: &str) -> Result<bool, BlobError> {
        let Self(blobs) = self;
        let mut named = blobs.named();
        if named.lasting.contains(name) || named.since.as_ref().is_none_or(|since| since.contains(name)) {
            return Ok(false);
        }
        named.whole.remove(name);
        let path = blobs.path(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(BlobError::Io { path, source }),
        }
    }

    /// Makes the removals durable.
    pub(super) fn sync(&self) -> Result<(), BlobError> {
        let Self(blobs) = self;
        let synced = File::open(&blobs.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| BlobError::Io {
            path: blobs.folder.clone(),
            source,
        })
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.0.named().since = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Returns those of these blobs that exist.
    fn existing<'n>(blobs: &Blobs, names: &[&'n str]) -> Vec<&'n str> {
        names.iter().copied().filter(|name| blobs.has(name)).collect()
    }

    #[test]
    fn sweep_keeps_blobs_written_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let write = |name: &str| blobs.writing().put(name, b"content").unwrap();
        blobs.put("lasting", b"content").unwrap();
        ["old", "again"].iter().for_each(|name| write(name));
        let sweep = blobs.sweep();
        // One that is there already, which a record names at this moment; and one that is new.
        ["again", "new"].iter().for_each(|name| write(name));
        let all = ["lasting", "old", "again", "new", "never"];
        let removed: Vec<&str> = all.into_iter().filter(|name| sweep.remove(name).unwrap()).collect();
        assert_eq!((removed, existing(&blobs, &all)), (vec!["old"], vec!["lasting", "again", "new"]));
        sweep.sync().unwrap();
        drop(sweep);
        // In the next one it is a blob as any other.
        let sweep = blobs.sweep();
        assert!(sweep.remove("again").unwrap() && !sweep.remove("lasting").unwrap());
    }

    #[test]
    fn sweep_waits_for_a_record_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        blobs.writing().put("old", b"content").unwrap();
        let mut writing = blobs.writing();
        // It is there, so nothing is written; its record's line comes next.
        writing.put("old", b"content").unwrap();
        assert!(blobs.named.try_lock().is_err());
        drop(writing);
        assert!(blobs.sweep().remove("old").unwrap());
    }

    #[test]
    fn rewrites_an_altered_blob_of_an_earlier_process() {
        let folder = tempfile::tempdir().unwrap();
        let name = Blobs::name(b"content");
        let blobs = || Blobs::open(folder.path()).unwrap();
        blobs().put(&name, b"content").unwrap();
        let path = blobs().path(&name);
        let good = fs::read(&path).unwrap();
        let other = {
            let other = Blobs::name(b"other");
            blobs().put(&other, b"other").unwrap();
            fs::read(blobs().path(&other)).unwrap()
        };
        for bad in [other.as_slice(), b"no gzip", b"", &good[..good.len() - 3], &good[..12]] {
            for put in [
                |blobs: &Blobs, name: &str| blobs.put(name, b"content"),
                |blobs: &Blobs, name: &str| blobs.writing().put(name, b"content"),
            ] {
                fs::write(&path, bad).unwrap();
                put(&blobs(), &name).unwrap();
                assert_eq!(blobs().get(&name).unwrap(), b"content", "{bad:?}");
            }
        }
        // One that is what it must be is not written again; one that is gone is.
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
        let before = inode();
        let blobs = blobs();
        blobs.put(&name, b"content").unwrap();
        blobs.put(&name, b"content").unwrap();
        assert_eq!(inode(), before);
        fs::remove_file(&path).unwrap();
        blobs.put(&name, b"content").unwrap();
        assert_eq!(blobs.get(&name).unwrap(), b"content");
    }

    #[test]
    fn blob_not_yet_durable_is_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let name = Blobs::name(b"content");
        let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
        // Its file cannot be made.
        fs::create_dir(blobs.path(&name).with_extension("gz.new")).unwrap();
        blobs.put(&name, b"content").unwrap_err();
        assert!(blobs.named().whole.is_empty());
        fs::remove_dir(blobs.path(&name).with_extension("gz.new")).unwrap();
        blobs.put(&name, b"content").unwrap();
        assert!(blobs.named().whole.contains(&name));
    }

    #[test]
    fn recognizes_only_unfinished_blob_files_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
        let name = Blobs::name(b"content");
        blobs.put(&name, b"content").unwrap();
        let unfinished = blobs.path(&name).with_extension(UNFINISHED);
        for other in [
            "x.gz.new",
            "gz.new",
            &format!("{}.gz.new", name.to_uppercase()),
            &format!("{}.gz.new", &name[1..]),
        ] {
            fs::write(blobs.folder.join(other), "").unwrap();
        }
        fs::create_dir(&unfinished).unwrap();
        assert!(blobs.unfinished().unwrap().is_empty());
        fs::remove_dir(&unfinished).unwrap();
        fs::write(&unfinished, "").unwrap();
        assert_eq!(blobs.unfinished().unwrap(), [unfinished]);
        fs::remove_dir_all(&blobs.folder).unwrap();
        blobs.unfinished().unwrap_err();
    }

    #[test]
    fn stores_identical_content_once_and_detects_altered_blobs() {
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
