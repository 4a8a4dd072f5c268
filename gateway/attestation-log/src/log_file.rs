//! The log's file: it has whole lines at its end, even if another program moves or empties it meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest;

use super::chain::{ChainBeginning, ChainProgress, LineHash, LinesBefore, Why};
use super::checkpoint::CheckpointLine;
use super::journal_error::JournalError;
use super::log_end::{end_of_last_line, last_line};
use super::log_key::LogPublicKey;
use super::log_version::newer_log;
use super::reading;
use super::segment_name::written_at;
use super::segments::{self, SegmentLimits};
use super::writer_lock::lock;

/// Bytes of a file that are hashed at a time.
const HASHED_BYTES: usize = 1024 * 1024;
/// Bytes that are written next to the log to check that there is room: a record of a TPM with its claims, and some more.
const PROBE_BYTES: usize = 64 * 1024;
/// Time for which the result of a check is reused: requests for it cost no more than one write in that time.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The file, locked: two writers would cut off each other's lines. The lock is released with the file, however the process ends.
#[derive(Debug)]
pub(super) struct LockedLog {
    path: PathBuf,
    file: File,
    /// Offset of a failed write that could not be undone: it is cut off before anything else is written.
    torn: Option<u64>,
    /// Folder, until the names of a closed file and of the next one are durable in it.
    unsynced: Option<File>,
    /// Set if the last write succeeded.
    writable: bool,
    probed: Option<(Instant, bool)>,
}

impl LockedLog {
    /// Opens the file, and makes it if it does not exist. A last line without its end was never acknowledged: it is cut off, and the number
    /// of bytes cut is returned.
    pub(super) fn open(path: &Path) -> std::result::Result<(Self, u64), JournalError> {
        let io = |source| JournalError::Io {
            path: path.to_owned(),
            source,
        };
        // Before anything is changed.
        if let Some(newer) = newer_log(path).map_err(io)? {
            return Err(newer.into());
        }
        segments::finish_closing(path).map_err(io)?;
        Self::at(path)
    }

    fn at(path: &Path) -> std::result::Result<(Self, u64), JournalError> {
        let io = |source| JournalError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(io)?;
        lock(&file, path, path)?;
        let length = file.metadata().map_err(io)?.len();
        let whole = end_of_last_line(&mut file, length).map_err(io)?;
        if whole < length {
            file.set_len(whole).map_err(io)?;
        }
        file.sync_all().map_err(io)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
        }
        let log = Self {
            path: path.to_owned(),
            file,
            torn: None,
            unsynced: None,
            writable: true,
            probed: None,
        };
        Ok((log, length - whole))
    }

    /// Returns the chain that the next line belongs to, according to the file's end.
    pub(super) fn chain(&mut self) -> std::result::Result<ChainProgress, JournalError> {
        let io = |source| JournalError::Io {
            path: self.path.clone(),
            source,
        };
        let last = last_line(&mut self.file).map_err(io)?;
        // An empty one goes on where the file ends that was rotated before it.
        let last = match last {
            None => reading::rotated(&self.path).map(|files| reading::last_line(&files)),
            last => Ok(last),
        };
        if let Some(chain) = last.map_err(io)?.as_deref().and_then(ChainProgress::after) {
            return Ok(chain);
        }
        let before = self.before().map_err(io)?;
        let why = if before.is_some() { Why::Unchained } else { Why::New };
        let after = Vec::new();
        ChainProgress::begin(ChainBeginning { why, before, after })
    }

    /// Returns the last line, if it is a checkpoint by this key.
    pub(super) fn last_checkpoint(&mut self, key: LogPublicKey) -> std::result::Result<Option<Arc<str>>, JournalError> {
        let last = last_line(&mut self.file).map_err(|source| JournalError::Io {
            path: self.path.clone(),
            source,
        })?;
        let last = last.filter(|last| CheckpointLine::signed_by(key, last).is_some());
        Ok(last.and_then(|last| String::from_utf8(last).ok()).map(Into::into))
    }

    /// Returns length and digest of the file's contents; `None` if it is empty.
    pub(super) fn before(&self) -> Result<Option<LinesBefore>> {
        let mut reader = &self.file;
        reader.seek(SeekFrom::Start(0))?;
        let (mut hash, mut bytes) = (digest::Context::new(&digest::SHA256), 0);
        let mut reader = BufReader::with_capacity(HASHED_BYTES, reader);
        loop {
            let chunk = reader.fill_buf()?;
            let length = chunk.len();
            if length == 0 {
                break;
            }
            hash.update(chunk);
            bytes += u64::try_from(length).unwrap_or(0);
            reader.consume(length);
        }
        let sha256 = LineHash::from_digest(hash.finish());
        Ok((bytes > 0).then_some(LinesBefore { bytes, sha256 }))
    }

    /// Continues in the file that has the log's name now: another one, if this was moved. Returns whether it was.
    pub(super) fn reopen(&mut self) -> std::result::Result<bool, JournalError> {
        if !self.is_moved() {
            return Ok(false);
        }
        // Nothing was closed: what is there of that was given up, and the chain goes on from the last line that was written.
        segments::discard_next(&self.path).map_err(|source| JournalError::Io {
            path: self.path.clone(),
            source,
        })?;
        *self = Self::at(&self.path)?.0;
        Ok(true)
    }

    /// Returns the first line of the file, if the file has become a segment to be closed. A file of a single line is not, nor one that was
    /// moved, or that a link leads to.
    pub(super) fn to_be_closed(&self, limits: SegmentLimits, now: u64) -> Result<Option<Vec<u8>>> {
        if self.is_moved() || fs::symlink_metadata(&self.path)?.is_symlink() {
            return Ok(None);
        }
        let Some(first) = segments::beginning(&self.path)? else {
            return Ok(None);
        };
        let length = self.file.metadata()?.len();
        let is_one = u64::try_from(first.len()).is_ok_and(|line| length <= line.saturating_add(1));
        let began = written_at(&first).unwrap_or(now);
        Ok((!is_one && limits.are_reached(length, began, now)).then_some(first))
    }

    /// Closes the file, and continues in another one, which has these lines already. `first` is the result of [`LockedLog::to_be_closed`].
    /// Returns whether this is durable; until it is, nothing else is written.
    pub(super) fn close(&mut self, first: &[u8], lines: &[u8]) -> std::result::Result<bool, JournalError> {
        let path = self.path.clone();
        let io = |source| JournalError::Io {
            path: path.clone(),
            source,
        };
        // What a failed write has left is no part of a segment.
        self.mend().map_err(io)?;
        let next = segments::begin_next(&path, lines).map_err(io)?;
        if let Err(error) = lock(&next, &path, &path) {
            segments::discard_next(&path).map_err(io)?;
            return Err(error);
        }
        let folder = segments::close(&path, first).map_err(io)?;
        Ok(self.go_on_in(next, folder))
    }

    /// Continues in the file that has the log's name now, even if something fails: its lines would be written twice otherwise.
    fn go_on_in(&mut self, next: File, folder: File) -> bool {
        self.file = next;
        self.unsynced = Some(folder);
        let mended = self.mend();
        self.writable = mended.is_ok();
        self.probed = None;
        if let Err(error) = mended {
            tracing::error!(%error, "cannot sync the folder of the attestation log after closing a segment; recording nothing until it is synced");
        }
        self.writable
    }

    /// Returns whether the file that is written no longer has the log's name: then readers of the log do not see new lines.
    pub(super) fn is_moved(&self) -> bool {
        let same = |there: fs::Metadata| {
            let here = self.file.metadata()?;
            Ok::<_, std::io::Error>((here.dev(), here.ino()) == (there.dev(), there.ino()))
        };
        !fs::metadata(&self.path).and_then(same).unwrap_or(false)
    }

    /// Begins a new file if this one was deleted: its contents would vanish when the program ends.
    fn have_a_name(&mut self) -> Result<()> {
        if self.file.metadata()?.nlink() == 0 && self.reopen().map_err(std::io::Error::other)? {
            tracing::error!("the attestation log was deleted; started a new file");
        }
        Ok(())
    }

    /// Appends whole lines, durably, and returns the duration of the fsync. What a failed write may have left is cut off: none of it was
    /// acknowledged.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<Duration> {
        let written = self.try_append(lines);
        self.writable = written.is_ok();
        self.probed = None;
        written
    }

    fn try_append(&mut self, lines: &[u8]) -> Result<Duration> {
        self.have_a_name()?;
        self.mend()?;
        // The real end: somebody may have emptied the file since the last write.
        let begin = self.file.metadata()?.len();
        let written = self.file.write_all(lines).and_then(|()| {
            let begun = Instant::now();
            self.file.sync_data().map(|()| begun.elapsed())
        });
        if written.is_err() {
            self.torn = Some(begin);
            if let Err(error) = self.mend() {
                tracing::error!(%error, "cannot truncate the incomplete end of the attestation log after a failed write; retrying before the next write");
            }
        }
        written
    }

    /// Makes names durable that are not yet. Cuts off the rest of a failed write, and no more; a file that is shorter by now is never made
    /// longer.
    fn mend(&mut self) -> Result<()> {
        if let Some(folder) = &self.unsynced {
            folder.sync_all()?;
            self.unsynced = None;
        }
        let Some(begin) = self.torn else { return Ok(()) };
        let length = self.file.metadata()?.len();
        let whole = end_of_last_line(&mut self.file, length.min(begin))?;
        if whole < length {
            self.file.set_len(whole)?;
            self.file.sync_all()?;
        }
        self.torn = None;
        Ok(())
    }

    /// Opens a device, which cannot be a log.
    #[cfg(test)]
    pub(super) fn on_device(path: &Path) -> Self {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        Self {
            path: path.to_owned(),
            file,
            torn: None,
            unsynced: None,
            writable: true,
            probed: None,
        }
    }

    /// Acts as if a write had failed after these bytes, and could not be undone.
    #[cfg(test)]
    pub(super) fn tear(&mut self, bytes: &[u8]) {
        self.torn = self.file.metadata().ok().map(|metadata| metadata.len());
        self.writable = false;
        drop(self.file.write_all(bytes));
    }

    /// Checks whether a record could be written. After a failure only a write to the log can tell; otherwise a file next to the log is
    /// written and removed.
    pub(super) fn is_writable(&mut self) -> bool {
        if let Some((at, found)) = self.probed
            && at.elapsed() < PROBE_EVERY
        {
            return found;
        }
        let found = self
            .try_writing()
            .inspect_err(|error| tracing::error!(%error, "cannot write to the attestation log; not ready until it can be written"));
        self.writable = found.is_ok();
        self.probed = Some((Instant::now(), self.writable));
        self.writable
    }

    fn try_writing(&mut self) -> Result<()> {
        let room = vec![b' '; PROBE_BYTES];
        if !self.writable {
            // Without a line's end: whatever becomes of it is cut off, at the next start if not now.
            self.mend()?;
            self.torn = Some(self.file.metadata()?.len());
            let written = self.file.write_all(&room).and_then(|()| self.file.sync_data());
            self.mend()?;
            return written;
        }
        let beside = self.path.with_extension("probe");
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| file.write_all(&room).and_then(|()| file.sync_data()));
        fs::remove_file(&beside)?;
        written
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::segment_name::SegmentName;
    use super::*;

    struct Site {
        folder: tempfile::TempDir,
        log: LockedLog,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (log, _) = LockedLog::open(&folder.path().join("attestation.jsonl")).unwrap();
            Self { folder, log }
        }

        /// Returns the contents of the files, in the order of their names.
        fn files(&self) -> Vec<String> {
            let mut files: Vec<PathBuf> = fs::read_dir(self.folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            files.sort();
            files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
        }
    }

    #[test]
    fn closed_segment_excludes_a_torn_write() {
        let mut site = Site::new();
        site.log.append(b"a\nb\n").unwrap();
        site.log.tear(b"c");
        assert!(site.log.close(b"a", b"d\n").unwrap());
        assert_eq!(site.files(), ["d\n", "a\nb\n"]);
        site.log.append(b"e\n").unwrap();
        assert_eq!(site.files(), ["d\ne\n", "a\nb\n"]);
    }

    #[test]
    fn discards_the_next_file_of_a_failed_close() {
        let mut site = Site::new();
        site.log.append(b"a\n").unwrap();
        segments::begin_next(&site.log.path, b"b\n").unwrap();
        fs::rename(&site.log.path, site.folder.path().join("attestation.jsonl-moved")).unwrap();
        assert!(site.log.reopen().unwrap());
        assert_eq!(site.files(), ["", "a\n"]);
        // The log is closed in the place of a segment: that is not written over, and nothing of the next one stays.
        site.log.append(b"c\n").unwrap();
        let name = format!("attestation.jsonl.{}", SegmentName::from_first_line(b"c"));
        fs::write(site.folder.path().join(name), "d\n").unwrap();
        site.log.close(b"c", b"e\n").unwrap_err();
        site.log.append(b"f\n").unwrap();
        assert_eq!(site.files(), ["c\nf\n", "a\n", "d\n"]);
    }

    #[test]
    fn writes_to_the_next_file_only_once_durable() {
        let mut site = Site::new();
        site.log.append(b"a\n").unwrap();
        let path = site.log.path.clone();
        let next = segments::begin_next(&path, b"b\n").unwrap();
        let folder = segments::close(&path, b"a").unwrap();
        // What no fsync is for.
        assert!(!site.log.go_on_in(next, File::open("/dev/null").unwrap()));
        assert!(!site.log.is_moved() && !site.log.is_writable());
        site.log.append(b"c\n").unwrap_err();
        assert_eq!(site.files(), ["b\n", "a\n"]);
        site.log.unsynced = Some(folder);
        site.log.append(b"c\n").unwrap();
        assert!(site.log.unsynced.is_none() && site.log.is_writable());
        assert_eq!(site.files(), ["b\nc\n", "a\n"]);
    }
}
