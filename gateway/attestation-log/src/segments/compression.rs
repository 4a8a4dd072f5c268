//! Compression of closed segments, as a background task. After a kill at any step, nothing is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use attest_system::clock::Clock;
use attest_system::files::folder;
use aws_lc_rs::digest;
use flate2::GzBuilder;
use flate2::read::MultiGzDecoder;

use super::super::file_type::is_file;
use super::super::journal_error::JournalError;
use super::super::writer_lock::WriterLock;
use super::{closed, zipped};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Bytes that are left free on the disk, for records that come meanwhile.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;
/// Pause before another attempt for a segment that was locked. Readers lock it for a moment.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for a segment that is too young: the clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// Work on closed segments, done one after the other.
pub(in super::super) enum Aside {
    /// There may be segments to be compressed.
    Closed,
    Work(Box<dyn FnOnce() + Send>),
}

/// Thread that compresses closed segments, and does other work on them.
pub(in super::super) struct Compression {
    pub(in super::super) log: PathBuf,
    /// Least age of a segment that is compressed, from its last write.
    pub(in super::super) after: Duration,
    /// Keeps other processes from working on the segments until this thread has ended.
    pub(in super::super) _lock: Arc<WriterLock>,
}

impl Compression {
    /// Starts the thread, which compresses segments whenever it gets [`Aside::Closed`].
    pub(in super::super) fn begin(self) -> Result<mpsc::Sender<Aside>, JournalError> {
        let (sender, receiver) = mpsc::channel();
        let path = self.log.clone();
        thread::Builder::new()
            .name("attestation-log-segments".to_owned())
            .spawn(move || {
                let mut next: Option<Instant> = None;
                loop {
                    let told = match next {
                        Some(next) => receiver.recv_timeout(next.saturating_duration_since(Instant::now())),
                        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    };
                    match told {
                        Ok(Aside::Closed) | Err(RecvTimeoutError::Timeout) => {
                            next = self.compress_all().and_then(|wait| Instant::now().checked_add(wait));
                        }
                        Ok(Aside::Work(work)) => work(),
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            })
            .map_err(|source| JournalError::Io { path, source })?;
        Ok(sender)
    }

    /// Compresses the segments that are old enough. Returns the pause until the next check, if there are others.
    fn compress_all(&self) -> Option<Duration> {
        let mut again: Option<Duration> = None;
        let mut look_after = |wait: Duration| again = Some(again.map_or(wait, |again| again.min(wait)));
        let segments = closed(&self.log).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the closed segments of {}; not compressing them", self.log.display());
            Vec::new()
        });
        for segment in segments.iter().filter(|segment| !segment.zipped) {
            let left = self.left(&segment.path);
            if !left.is_zero() {
                look_after(left.min(LOOK_EVERY));
                continue;
            }
            match compress(&self.log, &segment.path, room) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => look_after(AGAIN_AFTER),
                Err(error) => {
                    tracing::warn!(%error, "cannot compress segment {}; keeping it uncompressed and retrying later", segment.path.display());
                }
            }
        }
        again
    }

    /// Returns the time for which a segment is still to stay uncompressed. It depends on the segment's last write, and so on the system's
    /// clock.
    fn left(&self, segment: &Path) -> Duration {
        // One that is there compressed, too, was old enough when that was begun.
        if self.after.is_zero() || fs::symlink_metadata(zipped(segment)).is_ok() {
            return Duration::ZERO;
        }
        let written = fs::symlink_metadata(segment).map_or(0, |metadata| u64::try_from(metadata.mtime()).unwrap_or(0));
        // A file of the future was written while the clock was ahead: it waits no longer than others.
        let age = Clock::System.now().as_secs().abs_diff(written);
        self.after.saturating_sub(Duration::from_secs(age))
    }
}

/// Returns the path of a compressed segment until it is complete.
fn temporary_file(log: &Path) -> PathBuf {
    log.with_extension("gz.new")
}

/// Returns the incomplete compressed segment, if the process that made one was killed.
pub(in super::super) fn unfinished(log: &Path) -> Option<PathBuf> {
    let path = temporary_file(log);
    is_file(fs::symlink_metadata(&path).map(|found| found.file_type())).then_some(path)
}

/// Returns the number of free bytes on the file's disk.
fn room(file: &Path) -> io::Result<u64> {
    let there = rustix::fs::statvfs(file)?;
    Ok(there.f_bavail.saturating_mul(there.f_frsize))
}

/// Puts a compressed segment in the place of this one. This one is removed when the other is complete, on disk, and reads the same.
fn compress(log: &Path, segment: &Path, room: impl FnOnce(&Path) -> io::Result<u64>) -> io::Result<()> {
    let held = File::open(segment)?;
    // Nobody writes to it, as to one that was moved and could not be given its name back.
    held.try_lock()?;
    let was = FileFingerprint::from_metadata(&held.metadata()?);
    let zipped = zipped(segment);
    if fs::symlink_metadata(&zipped).is_ok() {
        reads_the_same(&zipped, &digest_of(&held)?)?;
        // Whoever has made it may not have waited until it was on disk.
        File::open(&zipped)?.sync_all()?;
    } else {
        let free = room(segment)?;
        // Compressed it is hardly ever larger.
        let wanted = was.length.saturating_add(RESERVE_BYTES);
        if free < wanted {
            let said = format!("{free} bytes are free on its disk, of {wanted} that are wanted for it");
            return Err(io::Error::new(io::ErrorKind::StorageFull, said));
        }
        let temporary = temporary_file(log);
        let written = write(&held, &temporary)
            .and_then(|digest| reads_the_same(&temporary, &digest))
            .and_then(|()| was.stands(segment))
            .and_then(|()| fs::rename(&temporary, &zipped));
        if let Err(error) = written {
            drop(fs::remove_file(&temporary));
            return Err(error);
        }
    }
    let sync = || File::open(folder(log)).and_then(|folder| folder.sync_all());
    sync()?;
    was.stands(segment)?;
    fs::remove_file(segment)?;
    sync()
}

/// Identity of a file, and its state when it was read: another process without a lock may be unpacking it.
#[derive(PartialEq, Eq)]
struct FileFingerprint {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

impl FileFingerprint {
    fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Checks that the file is unchanged.
    fn stands(&self, segment: &Path) -> io::Result<()> {
        if Self::from_metadata(&fs::symlink_metadata(segment)?) == *self {
            return Ok(());
        }
        Err(io::Error::other("it was written to while it was read"))
    }
}

fn reads_the_same(zipped: &Path, digest: &digest::Digest) -> io::Result<()> {
    if digest_of(MultiGzDecoder::new(File::open(zipped)?))?.as_ref() == digest.as_ref() {
        return Ok(());
    }
    let name = zipped.display();
    Err(io::Error::other(format!(
        "{name} does not read as it does; look which one is whole, and remove the other"
    )))
}

/// Compresses the segment, durably; returns the digest of its contents. The header has neither time nor name, so that the same contents
/// always give the same file.
fn write(segment: &File, to: &Path) -> io::Result<digest::Digest> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let mut encoder = GzBuilder::new().write(file, flate2::Compression::default());
    let mut hash = digest::Context::new(&digest::SHA256);
    each_chunk(segment, |chunk| {
        hash.update(chunk);
        encoder.write_all(chunk)
    })?;
    encoder.finish()?.sync_all()?;
    Ok(hash.finish())
}

fn digest_of(reader: impl Read) -> io::Result<digest::Digest> {
    let mut hash = digest::Context::new(&digest::SHA256);
    each_chunk(reader, |chunk| {
        hash.update(chunk);
        Ok(())
    })?;
    Ok(hash.finish())
}

fn each_chunk(reader: impl Read, mut with: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    use io::BufRead;
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
    loop {
        let chunk = reader.fill_buf()?;
        let length = chunk.len();
        if length == 0 {
            return Ok(());
        }
        with(chunk)?;
        reader.consume(length);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const SEGMENT: &str = "attestation.jsonl.20261122T204412Z-0a1b2c3d-000000000007";

    fn compression(log: PathBuf, after_seconds: u64) -> Compression {
        Compression {
            _lock: Arc::new(WriterLock::take(&log).unwrap()),
            after: Duration::from_secs(after_seconds),
            log,
        }
    }

    fn unzipped(file: &Path) -> String {
        io::read_to_string(MultiGzDecoder::new(File::open(file).unwrap())).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn compression_restarts_with_identical_output() {
        let text = "a line\n".repeat(100_000);
        let mut before: Option<Vec<u8>> = None;
        // What is there when it was killed: half of what it wrote; or the whole of it, and the segment as well.
        for left in [&[][..], &["attestation.gz.new"], &["zipped"]] {
            let folder = tempfile::tempdir().unwrap();
            let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
            fs::write(&segment, &text).unwrap();
            for name in left {
                match *name {
                    "zipped" => fs::write(zipped(&segment), before.as_ref().unwrap()).unwrap(),
                    name => fs::write(folder.path().join(name), &before.as_ref().unwrap()[..100]).unwrap(),
                }
            }
            compress(&log, &segment, room).unwrap();
            assert_eq!(names(folder.path()), [format!("{SEGMENT}.gz")]);
            assert!(unzipped(&zipped(&segment)) == text);
            let bytes = fs::read(zipped(&segment)).unwrap();
            assert!(before.is_none_or(|before| before == bytes), "{left:?}");
            before = Some(bytes);
        }
    }

    #[test]
    fn compression_does_not_overwrite_a_differing_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
        fs::write(&segment, "a\nb\n").unwrap();
        compress(&log, &segment, room).unwrap();
        let whole = fs::read(zipped(&segment)).unwrap();
        // Somebody unpacks it, and has not come to its end, or never will; or it is what is packed that is not whole.
        let cases = [
            ("", &whole[..]),
            ("a\n", &whole),
            ("a\nb\nc\n", &whole),
            ("a\nb\n", &whole[..whole.len() - 9]),
            ("a\n", b""),
        ];
        for (text, packed) in cases {
            fs::write(&segment, text).unwrap();
            fs::write(zipped(&segment), packed).unwrap();
            compress(&log, &segment, room).unwrap_err();
            assert_eq!(fs::read_to_string(&segment).unwrap(), text);
            assert!(fs::read(zipped(&segment)).unwrap() == packed, "{text:?}");
            assert_eq!(names(folder.path()).len(), 2);
        }
        // By another program, and the same.
        fs::write(&segment, "a\nb\n").unwrap();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(b"a\nb\n").unwrap();
        let packed = encoder.finish().unwrap();
        fs::write(zipped(&segment), &packed).unwrap();
        compress(&log, &segment, room).unwrap();
        assert!(!segment.exists() && fs::read(zipped(&segment)).unwrap() == packed);
    }

    #[test]
    fn fingerprint_detects_writes_since_the_read() {
        let folder = tempfile::tempdir().unwrap();
        let segment = folder.path().join(SEGMENT);
        fs::write(&segment, "a\n").unwrap();
        let was = FileFingerprint::from_metadata(&fs::metadata(&segment).unwrap());
        was.stands(&segment).unwrap();
        let mut appended = OpenOptions::new().append(true).open(&segment).unwrap();
        appended.write_all(b"b\n").unwrap();
        was.stands(&segment).unwrap_err();
        let was = FileFingerprint::from_metadata(&fs::metadata(&segment).unwrap());
        appended.set_modified(std::time::UNIX_EPOCH).unwrap();
        was.stands(&segment).unwrap_err();
        // Another one took its place.
        let was = FileFingerprint::from_metadata(&fs::metadata(&segment).unwrap());
        let other = folder.path().join("other");
        fs::write(&other, "a\nb\n").unwrap();
        File::open(&other).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::rename(&other, &segment).unwrap();
        was.stands(&segment).unwrap_err();
        fs::remove_file(&segment).unwrap();
        was.stands(&segment).unwrap_err();
    }

    #[test]
    fn failed_compression_keeps_the_segment() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
        fs::write(&segment, "a\n").unwrap();
        fs::create_dir(folder.path().join("attestation.gz.new")).unwrap();
        compress(&log, &segment, room).unwrap_err();
        assert_eq!(fs::read_to_string(&segment).unwrap(), "a\n");
    }

    #[test]
    fn does_not_compress_without_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
        fs::write(&segment, "a\n").unwrap();
        let error = compress(&log, &segment, |_| Ok(RESERVE_BYTES + 1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(folder.path()), [SEGMENT]);
        assert!(room(&segment).unwrap() > 0);
        compress(&log, &segment, |_| Ok(RESERVE_BYTES + 2)).unwrap();
        assert_eq!(names(folder.path()), [format!("{SEGMENT}.gz")]);
    }

    #[test]
    fn compression_retries_while_a_reader_holds_the_segment() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
        fs::write(&segment, "a\n").unwrap();
        let compression = compression(log, 0);
        let reader = File::open(&segment).unwrap();
        reader.lock_shared().unwrap();
        assert_eq!(compression.compress_all(), Some(AGAIN_AFTER));
        drop(reader);
        assert!(compression.compress_all().is_none() && !segment.exists());
    }

    #[test]
    fn does_not_compress_a_recently_written_segment() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join(SEGMENT));
        let compression = compression(log, 300);
        let written = |seconds_ago: u64| {
            fs::write(&segment, "a\n").unwrap();
            let at = std::time::UNIX_EPOCH + Duration::from_secs(Clock::System.now().as_secs() - seconds_ago);
            OpenOptions::new().append(true).open(&segment).unwrap().set_modified(at).unwrap();
        };
        written(200);
        let wait = compression.compress_all().unwrap();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(100), "{wait:?}");
        assert_eq!(names(folder.path()), [SEGMENT, "attestation.lock"]);
        // It is there compressed, too: a kill has left both.
        fs::write(zipped(&segment), "no gzip").unwrap();
        assert_eq!(compression.left(&segment), Duration::ZERO);
        fs::remove_file(zipped(&segment)).unwrap();
        written(300);
        assert!(compression.compress_all().is_none());
        assert_eq!(names(folder.path()), [format!("{SEGMENT}.gz"), "attestation.lock".to_owned()]);
    }
}
