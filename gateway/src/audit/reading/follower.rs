//! The log as it grows: on over files that are moved, compressed, copied or emptied meanwhile, without losing a line or giving one twice.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::begins::Begins;
use super::files::next_of;
use super::lines::{Found, Lines};
use super::opened::{Bytes, Opened};
use super::{Listed, LogFile, ReadError, files_beside};
use crate::audit::LineHash;

/// Of a file's beginning, what tells it from what took its place: its first record's time and id, and more.
const HEAD_BYTES: usize = 256;

/// Which line was read last: what is found again in whatever file it stands by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Where the line begins, in bytes from its file's beginning, uncompressed.
    pub offset: u64,
    /// The hash of the line, without its line feed.
    pub sha256: LineHash,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Line(Vec<u8>, Position),
    /// A line of that many bytes, which no gateway has written.
    TooLong(u64),
    /// Nothing, at the moment.
    Nothing,
}

/// A reader that goes on where it was.
#[derive(Debug)]
pub struct Follower {
    log: PathBuf,
    reading: Option<Reading>,
    /// How the file begins that was read last.
    begins: Option<Begins>,
    /// What is passed over.
    left_out: BTreeSet<PathBuf>,
}

struct Reading {
    path: PathBuf,
    /// It may have another name by now, or none.
    file: Opened,
    head: Vec<u8>,
    lines: Lines<Bytes>,
    /// Whether its end was seen: what comes after it may be another's.
    at_end: bool,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} from {}", self.path.display(), self.lines.offset())
    }
}

impl Follower {
    /// From the first line that there is.
    #[must_use]
    pub fn from_beginning(log: &Path) -> Self {
        Self {
            log: log.to_owned(),
            reading: None,
            begins: None,
            left_out: BTreeSet::new(),
        }
    }

    /// Has it pass over a file that cannot be read, or not to its end.
    pub fn leave_out(&mut self, path: &Path) {
        self.reading.take_if(|reading| reading.path == path);
        self.left_out.insert(path.to_owned());
    }

    /// From this byte of one of the log's files.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from(log: &Path, file: &LogFile, offset: u64) -> Result<Self, ReadError> {
        let mut follower = Self::from_beginning(log);
        follower.open(file, offset)?;
        Ok(follower)
    }

    /// From the line on that follows this one; `None` if no file of the log has it where it was.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn after(log: &Path, position: &Position) -> Result<Option<Self>, ReadError> {
        let Listed { files, unreadable } = files_beside(log)?;
        for file in files.iter().rev() {
            match next_offset(file, position) {
                Ok(Some(offset)) => return Self::from(log, file, offset).map(Some),
                // Removed since, or damaged before that line.
                Err(error) if !is_for_good(&error) => return Err(ReadError::at(file.path())(error)),
                _ => {}
            }
        }
        unreadable
            .into_iter()
            .find(|error| !is_for_good(&error.source))
            .map_or(Ok(None), Err)
    }

    fn open(&mut self, file: &LogFile, offset: u64) -> Result<(), ReadError> {
        let opened = Reading::open(file, offset).map_err(ReadError::at(file.path()))?;
        self.begins = Some(file.begins.clone());
        self.reading = Some(opened);
        Ok(())
    }

    /// The next line.
    ///
    /// # Errors
    /// [`ReadError`]: it can be asked again.
    pub fn follow(&mut self) -> Result<Next, ReadError> {
        loop {
            if let Some(next) = self.next_here()? {
                return Ok(next);
            }
            if self.is_on_what_is_written()? {
                return Ok(Next::Nothing);
            }
            // Looked for first: whoever begins a file has written all that stands in the one before.
            let successor = self.successor()?;
            if let Some(next) = self.next_here()? {
                return Ok(next);
            }
            if self.goes_on_in_a_copy()? {
                continue;
            }
            let Some(successor) = successor else { return Ok(Next::Nothing) };
            match self.open(&successor, 0) {
                // Removed since: what comes next is looked for again.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
                opened => opened?,
            }
        }
    }

    /// Whether what comes next comes to the file that is read. Otherwise it is looked for in all of them, each time that it is asked for.
    pub fn is_at_the_end(&mut self) -> bool {
        self.is_on_what_is_written().unwrap_or(false)
    }

    /// What comes next in the file that is read, unless it was emptied, or overwritten.
    fn next_here(&mut self) -> Result<Option<Next>, ReadError> {
        self.of_reading(|reading| match reading.at_end && reading.is_another()? {
            true => Ok(None),
            false => reading.next(),
        })
        .map(Option::flatten)
    }

    /// Whether what comes next comes to the file that is read.
    fn is_on_what_is_written(&mut self) -> Result<bool, ReadError> {
        let log = self.log.clone();
        let written = self.of_reading(|reading| Ok(reading.file.is_at(&log)? && !reading.is_another()?))?;
        Ok(written.unwrap_or(false))
    }

    /// What was not read of a file that was emptied may stand in a copy; whether there is one.
    fn goes_on_in_a_copy(&mut self) -> Result<bool, ReadError> {
        if self.of_reading(Reading::is_another)? != Some(true) {
            return Ok(false);
        }
        let offset = self.reading.take().map_or(0, |reading| reading.lines.offset());
        let copy = files_beside(&self.log)?
            .files
            .into_iter()
            .find(|file| self.begins.as_ref() == Some(&file.begins));
        if let Some(copy) = copy {
            self.open(&copy, offset)?;
            if self.of_reading(Reading::is_another)? == Some(false) {
                return Ok(true);
            }
            self.reading = None;
        }
        Ok(false)
    }

    fn of_reading<T>(&mut self, ask: impl FnOnce(&mut Reading) -> io::Result<T>) -> Result<Option<T>, ReadError> {
        let Some(reading) = &mut self.reading else { return Ok(None) };
        let asked = ask(reading);
        asked.map(Some).map_err(ReadError::at(&reading.path))
    }

    /// The file that begins next after the one that was read last. One that cannot be read at the moment might be it.
    fn successor(&self) -> Result<Option<LogFile>, ReadError> {
        let Listed { mut files, unreadable } = files_beside(&self.log)?;
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

impl Reading {
    fn open(file: &LogFile, offset: u64) -> io::Result<Self> {
        let opened = file.opened()?;
        let head = match opened.is_zipped() {
            true => Vec::new(),
            false => opened.read_at(0, HEAD_BYTES)?,
        };
        Ok(Self {
            path: file.path().to_owned(),
            head,
            lines: Lines::new(opened.bytes(offset)?, offset),
            file: opened,
            at_end: false,
        })
    }

    fn next(&mut self) -> io::Result<Option<Next>> {
        let offset = self.lines.offset();
        self.at_end = true;
        let next = match self.lines.read()? {
            Some(Found::Line(line)) => {
                let sha256 = LineHash::of(line);
                Next::Line(line.to_owned(), Position { offset, sha256 })
            }
            Some(Found::TooLong(length)) => Next::TooLong(length),
            // Its end is still to come: it is read again then.
            Some(Found::Cut) if !self.file.is_zipped() => {
                self.lines = Lines::new(self.file.bytes(offset)?, offset);
                return Ok(None);
            }
            Some(Found::Cut) => return Ok(None),
            None => return Ok(None),
        };
        self.at_end = false;
        Ok(Some(next))
    }

    /// Whether it does not hold any more what was read of it.
    fn is_another(&mut self) -> io::Result<bool> {
        let shorter = !self.file.is_zipped() && self.file.metadata()?.len() < self.lines.offset();
        Ok(shorter || self.file.read_at(0, self.head.len())? != self.head)
    }
}

/// Whether a file cannot be read, or not further, whoever tries again: it is gone, or what it holds is damaged.
fn is_for_good(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | InvalidData | InvalidInput | UnexpectedEof)
}

/// Where the line after this one begins, if the file has it.
fn next_offset(file: &LogFile, position: &Position) -> io::Result<Option<u64>> {
    let opened = file.opened()?;
    if !opened.is_zipped() && opened.metadata()?.len() <= position.offset {
        return Ok(None);
    }
    let mut lines = Lines::new(opened.bytes(position.offset)?, position.offset);
    let same = matches!(lines.read()?, Some(Found::Line(line)) if LineHash::of(line) == position.sha256);
    Ok(same.then(|| lines.offset()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    /// A log in a folder of its own, and who writes it.
    struct Written {
        folder: tempfile::TempDir,
        number: u64,
        chain: &'static str,
    }

    impl Written {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            Self {
                folder,
                number: 0,
                chain: "a",
            }
        }

        fn log(&self) -> PathBuf {
            self.path("attestation.jsonl")
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn append_to(&self, name: &str, text: &str) {
            let mut file = File::options().append(true).create(true).open(self.path(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        /// The next line of the chain, written at that time.
        fn line_at(&mut self, at: u64) -> String {
            self.number += 1;
            let (chain, number) = (self.chain, self.number);
            format!("{{\"at\":{at},\"id\":\"{number:032}\",\"chain\":{{\"id\":\"{chain}\",\"number\":{number}}}}}\n")
        }

        fn write(&mut self, lines: u64) {
            for _ in 0..lines {
                let line = self.line_at(1000);
                self.append_to("attestation.jsonl", &line);
            }
        }

        fn rotate(&self, name: &str) {
            fs::rename(self.log(), self.path(name)).unwrap();
        }

        fn compress(&self, name: &str) {
            let mut gz =
                flate2::write::GzEncoder::new(File::create(self.path(&format!("{name}.gz"))).unwrap(), flate2::Compression::fast());
            gz.write_all(&fs::read(self.path(name)).unwrap()).unwrap();
            gz.finish().unwrap();
            fs::remove_file(self.path(name)).unwrap();
        }
    }

    /// The numbers of what comes until nothing does, and where the last of it stands.
    fn read(follower: &mut Follower) -> (Vec<u64>, Option<Position>) {
        let (mut numbers, mut last) = (Vec::new(), None);
        while let Next::Line(line, position) = follower.follow().unwrap() {
            let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
            numbers.push(line.pointer("/chain/number").unwrap().as_u64().unwrap());
            last = Some(position);
        }
        (numbers, last)
    }

    fn numbers(follower: &mut Follower) -> Vec<u64> {
        read(follower).0
    }

    fn range(from: u64, to: u64) -> Vec<u64> {
        (from..=to).collect()
    }

    #[test]
    fn lines_come_as_they_are_written_and_whole() {
        let mut log = Written::new();
        let mut follower = Follower::from_beginning(&log.log());
        assert_eq!(numbers(&mut follower), range(1, 0));
        log.write(2);
        assert_eq!(numbers(&mut follower), [1, 2]);
        assert_eq!(numbers(&mut follower), range(1, 0));
        let line = log.line_at(1000);
        let (first, second) = line.split_at(20);
        log.append_to("attestation.jsonl", first);
        assert_eq!(numbers(&mut follower), range(1, 0));
        log.append_to("attestation.jsonl", second);
        assert_eq!(numbers(&mut follower), [3]);
    }

    #[test]
    fn no_line_is_lost_or_doubled_over_files_that_are_rotated() {
        let mut log = Written::new();
        let mut follower = Follower::from_beginning(&log.log());
        log.write(2);
        assert_eq!(numbers(&mut follower), [1, 2]);
        // Until the new file is begun, the moved one is written on.
        log.rotate("attestation.jsonl.1");
        assert_eq!(numbers(&mut follower), range(1, 0));
        let line = log.line_at(1000);
        log.append_to("attestation.jsonl.1", &line);
        assert_eq!(numbers(&mut follower), [3]);
        let line = log.line_at(1000);
        log.append_to("attestation.jsonl.1", &line);
        log.write(1);
        assert_eq!(numbers(&mut follower), [4, 5]);
        // Twice, and compressed, while nobody looked.
        log.rotate("attestation.jsonl.2");
        log.write(3);
        log.rotate("attestation.jsonl.3");
        log.compress("attestation.jsonl.2");
        log.compress("attestation.jsonl.3");
        log.write(1);
        assert_eq!(numbers(&mut follower), [6, 7, 8, 9]);
        // Deleted: what is begun next is another file.
        fs::remove_file(log.log()).unwrap();
        log.write(1);
        assert_eq!(numbers(&mut follower), [10]);
        assert_eq!(numbers(&mut Follower::from_beginning(&log.log())), [1, 2, 3, 4, 5, 6, 7, 8, 10]);
    }

    #[test]
    fn a_file_that_was_copied_and_emptied_is_read_on_in_the_copy() {
        let mut log = Written::new();
        let mut follower = Follower::from_beginning(&log.log());
        log.write(3);
        assert_eq!(numbers(&mut follower), range(1, 3));
        log.write(2);
        fs::copy(log.log(), log.path("attestation.jsonl.1")).unwrap();
        fs::write(log.log(), "").unwrap();
        assert_eq!(numbers(&mut follower), [4, 5]);
        // However long the new one is by then.
        log.write(9);
        assert_eq!(numbers(&mut follower), range(6, 14));
        fs::copy(log.log(), log.path("attestation.jsonl.2")).unwrap();
        fs::write(log.log(), "").unwrap();
        log.write(20);
        assert_eq!(numbers(&mut follower), range(15, 34));
        fs::write(log.log(), "").unwrap();
        assert_eq!(numbers(&mut follower), range(1, 0));
        log.write(1);
        assert_eq!(numbers(&mut follower), [35]);
    }

    #[test]
    fn the_order_of_files_is_that_of_their_lines_whatever_the_clock_said() {
        let mut log = Written::new();
        let write = |log: &mut Written, at| {
            let line = log.line_at(at);
            log.append_to("attestation.jsonl", &line);
        };
        for at in [5000, 4000, 6000, 10] {
            write(&mut log, at);
            log.rotate(&format!("attestation.jsonl.{at}"));
        }
        // Another chain, also by a clock that is further back: the file that is written is the last.
        (log.chain, log.number) = ("b", 4);
        write(&mut log, 5);
        let mut follower = Follower::from_beginning(&log.log());
        assert_eq!(numbers(&mut follower), range(1, 5));
        write(&mut log, 3);
        assert_eq!(numbers(&mut follower), [6]);
    }

    #[test]
    fn a_position_is_found_again_wherever_its_line_is_by_then() {
        let mut log = Written::new();
        log.write(4);
        let (_, position) = read(&mut Follower::from_beginning(&log.log()));
        let position = position.unwrap();
        log.write(2);
        let rest = |log: &Written, position: &Position| {
            let follower = Follower::after(&log.log(), position).unwrap();
            follower.map(|mut follower| numbers(&mut follower))
        };
        assert_eq!(rest(&log, &position), Some(vec![5, 6]));
        log.rotate("attestation.jsonl.1");
        assert_eq!(rest(&log, &position), Some(vec![5, 6]));
        log.write(1);
        log.compress("attestation.jsonl.1");
        assert_eq!(rest(&log, &position), Some(vec![5, 6, 7]));
        // No other line is taken for it.
        for other in [
            Position {
                offset: position.offset + 1,
                ..position.clone()
            },
            Position {
                offset: 0,
                ..position.clone()
            },
            Position {
                offset: u64::MAX,
                ..position.clone()
            },
            Position {
                sha256: LineHash::NONE,
                ..position.clone()
            },
        ] {
            assert_eq!(rest(&log, &other), None, "{other:?}");
        }
        fs::remove_file(log.path("attestation.jsonl.1.gz")).unwrap();
        assert_eq!(rest(&log, &position), None);
    }
}
