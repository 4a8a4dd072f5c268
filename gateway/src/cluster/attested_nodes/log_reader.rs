//! Records of the log, some at a time, as far as they are on disk.

use std::path::{Path, PathBuf};

use attest_log::Durable;
use attest_log::reading::{FollowedLine, LogFollower, LogReadError, Position};
use attest_system::files::folder;
use serde::Deserialize;
use tokio::sync::watch;

use super::position::ReadPosition;

/// Records that are read at once.
const RECORDS: usize = 500;
/// Bytes after which no more is read at once.
const BYTES: usize = 1024 * 1024;

/// A record, as its line has it.
#[derive(Debug, Clone)]
pub(crate) struct RecordLine {
    pub line: Vec<u8>,
    pub place: ReadPosition,
}

#[derive(Deserialize)]
struct Chained {
    chain: Option<ChainHead>,
}

#[derive(Deserialize)]
struct ChainHead {
    id: String,
    number: u64,
}

/// Reads the log, as far as it is on disk. It may wait for that.
#[derive(Debug)]
pub(crate) struct LogReader {
    log: PathBuf,
    follower: LogFollower,
    durable: watch::Receiver<Durable>,
    /// Number of cuts of the log when the follower began.
    cuts: u64,
    /// Position of the line that was returned last.
    last: Option<ReadPosition>,
    /// Set if the files were listed again because of the next line.
    listed_anew: bool,
    /// Files that are damaged: the follower passes over the rest of them.
    left_out: Vec<PathBuf>,
    /// Error that the next read returns.
    failed: Option<LogReadError>,
    /// Set if the log no longer holds the lines that were returned, so that all of it is returned again.
    pub is_set_back: bool,
}

impl LogReader {
    /// Reads from the line that follows the one at this place. If the log has no such line, it begins with the first: all of it is read
    /// again.
    pub(crate) fn after(log: &Path, place: Option<&ReadPosition>, durable: watch::Receiver<Durable>) -> Result<Self, LogReadError> {
        let cuts = durable.borrow().cuts;
        let position = place.map(|place| &place.position);
        let found = position.map(|position| LogFollower::after(log, position)).transpose()?.flatten();
        let reader = Self {
            log: log.to_owned(),
            last: place.filter(|_| found.is_some()).cloned(),
            follower: found.unwrap_or_else(|| LogFollower::from_beginning(log)),
            durable,
            cuts,
            listed_anew: false,
            left_out: Vec::new(),
            failed: None,
            is_set_back: false,
        };
        Ok(reader)
    }

    /// Returns the next records: some, one, or none at the moment.
    pub(crate) fn read(&mut self) -> Result<Vec<RecordLine>, LogReadError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        loop {
            let record = match self.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) if records.is_empty() => return Err(error),
                // What was read before is given first.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            bytes += record.line.len();
            records.push(record);
            if records.len() == RECORDS || bytes >= BYTES {
                break;
            }
        }
        Ok(records)
    }

    fn next(&mut self) -> Result<Option<RecordLine>, LogReadError> {
        let durable = self.durable.borrow().clone();
        if durable.cuts != self.cuts {
            // What was read ahead may be gone.
            self.relist()?;
            self.cuts = durable.cuts;
        }
        loop {
            if self
                .last
                .as_ref()
                .is_some_and(|last| last.is_at_least(&durable.chain, durable.number))
            {
                return Ok(None);
            }
            let record = match self.follower.follow()? {
                FollowedLine::Nothing => return Ok(None),
                FollowedLine::SetBack => {
                    // What was read ahead may be gone, and nothing else.
                    if !self.relist()? {
                        self.follower = LogFollower::from_beginning(&self.log);
                        self.left_out.iter().for_each(|path| self.follower.skip_file(path));
                        self.last = None;
                        self.is_set_back = true;
                    }
                    return Ok(None);
                }
                FollowedLine::Line(line, position) => record(line, position),
                FollowedLine::TooLong(_) => None,
            };
            // What is no record is the auditor's to report.
            let Some(record) = record else { continue };
            if record.place.is_at_least(&durable.chain, durable.number.saturating_add(1)) {
                self.relist()?;
                return Ok(None);
            }
            // A file may have got another name while the files were listed.
            if self.is_gap(&record) && !std::mem::replace(&mut self.listed_anew, true) {
                self.relist()?;
                continue;
            }
            self.listed_anew = false;
            self.last = Some(record.place.clone());
            return Ok(Some(record));
        }
    }

    /// Returns whether lines are missing between the one that was returned last and this one.
    fn is_gap(&self, next: &RecordLine) -> bool {
        let last = self.last.as_ref().and_then(|last| last.chain.as_ref().zip(last.number));
        let next = next.place.chain.as_ref().zip(next.place.number);
        last.zip(next)
            .is_some_and(|((chain, last), (of, next))| chain == of && next != last.saturating_add(1))
    }

    /// Continues after the line that was returned last, in whatever file it is by then. Returns whether it still exists.
    fn relist(&mut self) -> Result<bool, LogReadError> {
        let follower = match &self.last {
            Some(last) => LogFollower::after(&self.log, &last.position)?,
            None => Some(LogFollower::from_beginning(&self.log)),
        };
        // If its file was removed, what comes after that is read already.
        let is_there = follower.is_some();
        if let Some(mut follower) = follower {
            self.left_out.iter().for_each(|path| follower.skip_file(path));
            self.follower = follower;
        }
        Ok(is_there)
    }

    /// Passes over a file that is damaged, what is left of it: whether it is one, and not what is written.
    pub(crate) fn pass_over(&mut self, error: &LogReadError) -> bool {
        let can = error.is_for_good() && error.path != self.log && error.path != folder(&self.log);
        if can {
            self.follower.skip_file(&error.path);
            self.left_out.push(error.path.clone());
        }
        can
    }
}

fn record(line: Vec<u8>, position: Position) -> Option<RecordLine> {
    let Chained { chain } = serde_json::from_slice(&line).ok()?;
    let (chain, number) = chain.map(|link| (link.id, link.number)).unzip();
    let place = ReadPosition { chain, number, position };
    Some(RecordLine { line, place })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;

    const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    struct Site {
        folder: tempfile::TempDir,
        durable: watch::Sender<Durable>,
    }

    impl Site {
        fn new() -> Self {
            let (folder, durable) = (tempfile::tempdir().unwrap(), watch::channel(durable(0, 0)).0);
            Self { folder, durable }
        }

        fn log(&self) -> PathBuf {
            self.folder.path().join("attestation.jsonl")
        }

        fn write(&self, name: &str, lines: &[&str]) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            fs::write(self.folder.path().join(name), text).unwrap();
        }

        fn reader(&self) -> LogReader {
            LogReader::after(&self.log(), None, self.durable.subscribe()).unwrap()
        }
    }

    fn durable(number: u64, cuts: u64) -> Durable {
        let chain = "a".to_owned();
        Durable { chain, number, cuts }
    }

    fn line(number: u64, id: &str) -> String {
        format!("{{\"at\":{number},\"id\":\"{id}\",\"chain\":{{\"id\":\"a\",\"number\":{number},\"previous\":\"{NONE}\"}}}}")
    }

    fn read(reader: &mut LogReader) -> Vec<String> {
        let records = reader.read().unwrap();
        records.into_iter().map(|record| String::from_utf8(record.line).unwrap()).collect()
    }

    #[test]
    fn reads_only_durable_lines() {
        let site = Site::new();
        let [a, b, c] = [1, 2, 3].map(|number| line(number, "x"));
        let mut reader = site.reader();
        // Read before it is on disk, and cut off.
        site.write("attestation.jsonl", &[&a]);
        assert!(read(&mut reader).is_empty());
        let other = line(1, "y");
        site.write("attestation.jsonl", &[&other, &b, &c]);
        site.durable.send_replace(durable(2, 1));
        assert_eq!(read(&mut reader), [other.as_str(), &b]);
        assert!(read(&mut reader).is_empty());
        // Read ahead, and cut off: what took its place is shorter, and longer.
        for (cuts, id) in [(2, ""), (3, "a longer one")] {
            let [c, d] = [3, 4].map(|number| line(number, id));
            site.write("attestation.jsonl", &[&other, &b, &c, &d]);
            site.durable.send_replace(durable(2, cuts));
            assert!(read(&mut reader).is_empty());
        }
        let [c, d] = [3, 4].map(|number| line(number, "z"));
        site.write("attestation.jsonl", &[&other, &b, &c, &d]);
        site.durable.send_replace(durable(4, 4));
        assert_eq!(read(&mut reader), [c, d]);
    }

    #[test]
    fn skips_the_unreadable_rest_of_a_segment() {
        let site = Site::new();
        let [a, b, c] = [1, 2, 3].map(|number| line(number, "x"));
        site.write("attestation.jsonl", &[&c]);
        site.durable.send_replace(durable(3, 0));
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        std::io::Write::write_all(&mut zipped, format!("{a}\n{b}\n").as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        let file = site.folder.path().join("attestation.jsonl.1.gz");
        fs::write(&file, &zipped[..zipped.len() - 12]).unwrap();
        fs::create_dir(site.folder.path().join("attestation.jsonl.d")).unwrap();
        let mut reader = site.reader();
        assert_eq!(read(&mut reader), [a]);
        let error = reader.read().unwrap_err();
        assert_eq!(error.path, file);
        assert!(reader.pass_over(&error));
        assert_eq!(read(&mut reader), [c]);
        // What is written is not passed over, and nothing that may be read yet.
        for (path, kind) in [
            (site.log(), std::io::ErrorKind::InvalidData),
            (file, std::io::ErrorKind::PermissionDenied),
        ] {
            let source = kind.into();
            assert!(!reader.pass_over(&LogReadError { path, source }));
        }
    }

    #[test]
    fn reads_an_overlooked_segment_before_later_lines() {
        let site = Site::new();
        let [a, b, c] = [1, 2, 3].map(|number| line(number, "x"));
        site.write("attestation.jsonl.1", &[&a]);
        site.durable.send_replace(durable(1, 0));
        let mut reader = site.reader();
        assert_eq!(read(&mut reader), [a]);
        // It had no name when the files were listed, and has one when what comes after it is read.
        site.write("attestation.jsonl", &[&c]);
        site.write("attestation.jsonl.2", &[&b]);
        reader.follower = LogFollower::from_beginning(&site.log());
        for overlooked in ["attestation.jsonl.1", "attestation.jsonl.2"] {
            reader.follower.skip_file(&site.folder.path().join(overlooked));
        }
        site.durable.send_replace(durable(3, 0));
        assert_eq!(read(&mut reader), [b, c]);
    }

    #[test]
    fn rereads_a_rolled_back_log_from_the_beginning() {
        let site = Site::new();
        let [a, b, c, d] = [1, 2, 3, 4].map(|number| line(number, "x"));
        site.write("attestation.jsonl", &[&a, &b, &c]);
        site.durable.send_replace(durable(3, 0));
        let mut reader = site.reader();
        assert_eq!(read(&mut reader), [a.as_str(), &b, &c]);
        // Read ahead: only that is gone.
        site.durable.send_replace(durable(4, 0));
        let other = line(4, "another, longer");
        site.write("attestation.jsonl", &[&a, &b, &c, &d]);
        reader.follower = LogFollower::from_beginning(&site.log());
        while reader.follower.follow().unwrap() != FollowedLine::Nothing {}
        site.write("attestation.jsonl", &[&a, &b, &c, &other]);
        assert!(read(&mut reader).is_empty() && !reader.is_set_back);
        assert_eq!(read(&mut reader), [other]);
        // What was given is gone, too.
        site.durable.send_replace(durable(9, 0));
        let new = line(3, "new");
        site.write("attestation.jsonl", &[&a, &b, &new]);
        assert!(read(&mut reader).is_empty() && reader.is_set_back);
        assert_eq!(read(&mut reader), [a, b, new]);
    }

    #[test]
    fn missing_lines_do_not_block_the_reader() {
        let site = Site::new();
        let [a, b, e] = [1, 2, 5].map(|number| line(number, "x"));
        site.write("attestation.jsonl.1", &[&a, &b]);
        site.write("attestation.jsonl", &[&e]);
        site.durable.send_replace(durable(5, 0));
        assert_eq!(read(&mut site.reader()), [a, b, e]);
    }
}
