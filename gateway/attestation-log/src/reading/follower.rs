//! Reader that follows the log as it grows, over files that are moved, compressed, copied or emptied meanwhile. No line is lost or returned
//! twice.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::chain_start::FileBeginning;
use super::files::next_of;
use super::lines::{FileLines, LineContent};
use super::shared_file::{Bytes, SharedFile};
use super::{LogFile, LogFiles, LogReadError, log_files};
use crate::LineHash;

/// Bytes of a file's beginning that distinguish it from a file that took its place: time and id of its first record, and more.
const HEAD_BYTES: usize = 256;

/// Position of the line that was read last. It is found again in any file that has the line by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Offset of the line in its file, in bytes, uncompressed.
    pub offset: u64,
    /// The hash of the line, without its line feed.
    pub sha256: LineHash,
}

/// Result of asking for the next line.
#[derive(Debug, PartialEq, Eq)]
pub enum FollowedLine {
    Line(Vec<u8>, Position),
    /// A line of that many bytes, which no gateway has written.
    TooLong(u64),
    /// No further line has been written yet.
    Nothing,
    /// There is nothing to follow: the log begins like the file that was read, and no longer has the rest. It was cut, or an older copy is
    /// in its place.
    SetBack,
}

/// A reader that continues at its last position.
#[derive(Debug)]
pub struct LogFollower {
    log: PathBuf,
    reading: Option<OpenSegment>,
    /// Beginning of the file that was read last.
    begins: Option<FileBeginning>,
    /// Last line that was read in that file.
    last: Option<Position>,
    /// Files that are skipped.
    left_out: BTreeSet<PathBuf>,
}

struct OpenSegment {
    path: PathBuf,
    /// The open file; by now it may have another name, or none.
    file: SharedFile,
    head: Vec<u8>,
    lines: FileLines<Bytes>,
    /// Set if its end was seen: contents after it may be another file's.
    at_end: bool,
}

impl std::fmt::Debug for OpenSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} from {}", self.path.display(), self.lines.offset())
    }
}

impl LogFollower {
    /// Starts at the first line that exists.
    #[must_use]
    pub fn from_beginning(log: &Path) -> Self {
        Self {
            log: log.to_owned(),
            reading: None,
            begins: None,
            last: None,
            left_out: BTreeSet::new(),
        }
    }

    /// Skips a file that cannot be read, or not to its end.
    pub fn skip_file(&mut self, path: &Path) {
        self.reading.take_if(|reading| reading.path == path);
        self.left_out.insert(path.to_owned());
    }

    /// Starts at this byte of one of the log's files.
    ///
    /// # Errors
    /// [`LogReadError`].
    pub fn from(log: &Path, file: &LogFile, offset: u64) -> Result<Self, LogReadError> {
        let mut follower = Self::from_beginning(log);
        follower.open(file, offset)?;
        Ok(follower)
    }

    /// Starts at the line after this position; `None` if no file of the log has the line there.
    ///
    /// # Errors
    /// [`LogReadError`].
    pub fn after(log: &Path, position: &Position) -> Result<Option<Self>, LogReadError> {
        let LogFiles { files, unreadable } = log_files(log)?;
        for file in files.iter().rev() {
            match next_offset(file, position) {
                Ok(Some(offset)) => return Self::from(log, file, offset).map(Some),
                // Removed since, or damaged before that line.
                Err(error) if !is_for_good(&error) => return Err(LogReadError::at(file.path())(error)),
                _ => {}
            }
        }
        unreadable
            .into_iter()
            .find(|error| !is_for_good(&error.source))
            .map_or(Ok(None), Err)
    }

    fn open(&mut self, file: &LogFile, offset: u64) -> Result<(), LogReadError> {
        let opened = OpenSegment::open(file, offset).map_err(LogReadError::at(file.path()))?;
        let begins = Some(file.begins.clone());
        if self.begins != begins {
            self.last = None;
        }
        self.begins = begins;
        self.reading = Some(opened);
        Ok(())
    }

    /// Returns the next line, or the reason for its absence.
    ///
    /// # Errors
    /// [`LogReadError`]: it can be asked again.
    pub fn follow(&mut self) -> Result<FollowedLine, LogReadError> {
        loop {
            if let Some(next) = self.next_here()? {
                return Ok(next);
            }
            if self.is_on_what_is_written()? {
                return Ok(FollowedLine::Nothing);
            }
            // Looked for first: whoever begins a file has written all that stands in the one before.
            let successor = self.successor()?;
            if let Some(next) = self.next_here()? {
                return Ok(next);
            }
            if self.goes_on_in_a_copy()? {
                continue;
            }
            let Some(successor) = successor else {
                return Ok(if self.is_set_back()? {
                    FollowedLine::SetBack
                } else {
                    FollowedLine::Nothing
                });
            };
            match self.open(&successor, 0) {
                // Removed since: what comes next is looked for again.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
                opened => opened?,
            }
        }
    }

    /// Returns whether new lines will be in the file that is read. If not, each call searches all files for the next line.
    pub fn is_at_the_end(&mut self) -> bool {
        self.is_on_what_is_written().unwrap_or(false)
    }

    /// Returns the next line of the file that is read, unless it was emptied or overwritten.
    fn next_here(&mut self) -> Result<Option<FollowedLine>, LogReadError> {
        let last = self.last.clone();
        let next = self.with_segment(|reading| match reading.at_end && reading.is_another(last.as_ref())? {
            true => Ok(None),
            false => reading.next(),
        });
        let next = next?.flatten();
        if let Some(FollowedLine::Line(_, position)) = &next {
            self.last = Some(position.clone());
        }
        Ok(next)
    }

    /// Returns whether the file that is read is the one that is written.
    fn is_on_what_is_written(&mut self) -> Result<bool, LogReadError> {
        let (log, last) = (self.log.clone(), self.last.clone());
        let written = self.with_segment(|reading| Ok(reading.file.is_at(&log)? && !reading.is_another(last.as_ref())?))?;
        Ok(written.unwrap_or(false))
    }

    /// Looks for a copy of a file that was emptied, in which the unread rest may be. Returns whether there is one.
    fn goes_on_in_a_copy(&mut self) -> Result<bool, LogReadError> {
        let last = self.last.clone();
        if self.with_segment(|reading| reading.is_another(last.as_ref()))? != Some(true) {
            return Ok(false);
        }
        let offset = self.reading.take().map_or(0, |reading| reading.lines.offset());
        let copy = log_files(&self.log)?
            .files
            .into_iter()
            .find(|file| self.begins.as_ref() == Some(&file.begins));
        if let Some(copy) = copy {
            self.open(&copy, offset)?;
            if self.with_segment(|reading| reading.is_another(last.as_ref()))? == Some(false) {
                return Ok(true);
            }
            self.reading = None;
        }
        Ok(false)
    }

    /// Returns whether the file with the log's name begins like the file that was read, but is another one.
    fn is_set_back(&self) -> Result<bool, LogReadError> {
        // One that was empty when it was read first has begun since.
        let Some(begins) = self.begins.as_ref().filter(|begins| begins.at > 0) else {
            return Ok(false);
        };
        let found = match SharedFile::open(&self.log).and_then(|file| FileBeginning::read(&file)) {
            // It is being moved.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found.map_err(LogReadError::at(&self.log))?,
        };
        // What is moved meanwhile is what was read, under another name.
        let is_moved = |reading: &OpenSegment| reading.file.is_at(&self.log).unwrap_or(true);
        Ok(found == *begins && !self.reading.as_ref().is_some_and(is_moved))
    }

    fn with_segment<T>(&mut self, ask: impl FnOnce(&mut OpenSegment) -> io::Result<T>) -> Result<Option<T>, LogReadError> {
        let Some(reading) = &mut self.reading else { return Ok(None) };
        let asked = ask(reading);
        asked.map(Some).map_err(LogReadError::at(&reading.path))
    }

    /// Returns the file that begins next after the one that was read last. A file that cannot be read at the moment might be it.
    fn successor(&self) -> Result<Option<LogFile>, LogReadError> {
        let LogFiles { mut files, unreadable } = log_files(&self.log)?;
        let is_in = |path: &Path| !self.left_out.contains(path);
        if let Some(error) = unreadable
            .into_iter()
            .find(|error| is_in(&error.path) && !is_for_good(&error.source))
        {
            return Err(error);
        }
        files.retain(|file| is_in(file.path()) || self.begins.as_ref() == Some(&file.begins));
        Ok(match &self.begins {
            Some(begins) => next_of(files, begins, &self.log),
            None => files.into_iter().next(),
        })
    }
}

impl OpenSegment {
    fn open(file: &LogFile, offset: u64) -> io::Result<Self> {
        let opened = file.opened()?;
        let head = match opened.is_zipped() {
            true => Vec::new(),
            false => opened.read_at(0, HEAD_BYTES)?,
        };
        Ok(Self {
            path: file.path().to_owned(),
            head,
            lines: FileLines::new(opened.bytes(offset)?, offset),
            file: opened,
            at_end: false,
        })
    }

    fn next(&mut self) -> io::Result<Option<FollowedLine>> {
        let offset = self.lines.offset();
        self.at_end = true;
        let next = match self.lines.read()? {
            Some(LineContent::Line(line)) => {
                let sha256 = LineHash::of(line);
                FollowedLine::Line(line.to_owned(), Position { offset, sha256 })
            }
            Some(LineContent::TooLong(length)) => FollowedLine::TooLong(length),
            // Its end is still to come: it is read again then.
            Some(LineContent::Cut) if !self.file.is_zipped() => {
                self.lines = FileLines::new(self.file.bytes(offset)?, offset);
                return Ok(None);
            }
            Some(LineContent::Cut) => return Ok(None),
            None => return Ok(None),
        };
        self.at_end = false;
        Ok(Some(next))
    }

    /// Returns whether the file no longer has the contents that were read of it, of which `last` was the last line.
    fn is_another(&mut self, last: Option<&Position>) -> io::Result<bool> {
        if self.file.read_at(0, self.head.len())? != self.head {
            return Ok(true);
        }
        match last {
            _ if self.file.is_zipped() => Ok(false),
            _ if self.file.metadata()?.len() < self.lines.offset() => Ok(true),
            // It may have been cut, and have grown again.
            Some(last) => Ok(!holds(&self.file, last)?),
            None => Ok(false),
        }
    }
}

/// Returns whether a file cannot be read, or not further, even if it is tried again: it is gone, or its contents are damaged.
pub(super) fn is_for_good(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | InvalidData | InvalidInput | UnexpectedEof)
}

/// Returns the offset of the line after this one, if the file has it.
pub(super) fn next_offset(file: &LogFile, position: &Position) -> io::Result<Option<u64>> {
    let opened = file.opened()?;
    if !opened.is_zipped() && opened.metadata()?.len() <= position.offset {
        return Ok(None);
    }
    next_in(&opened, position)
}

/// Like [`next_offset`], but for an open file.
fn next_in(opened: &SharedFile, position: &Position) -> io::Result<Option<u64>> {
    let mut lines = FileLines::new(opened.bytes(position.offset)?, position.offset);
    let same = matches!(lines.read()?, Some(LineContent::Line(line)) if LineHash::of(line) == position.sha256);
    Ok(same.then(|| lines.offset()))
}

fn holds(opened: &SharedFile, position: &Position) -> io::Result<bool> {
    next_in(opened, position).map(|next| next.is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;
