//! Files before the log that is written, for the needs of a start: closed segments, and files that another program has moved there.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::files::{LogFile, LogFiles, all_log_files};
use super::lines::{FileLines, LineContent};
use super::shared_file::{Bytes, SharedFile};
use crate::chain::link_of;

/// Returns the files next to the log, the oldest first. A file that exists twice, for example while it is compressed, is returned twice.
/// Files without a record are left out. Files that cannot be read are logged, and count as missing.
pub(in super::super) fn rotated(log: &Path) -> io::Result<Vec<LogFile>> {
    let LogFiles { files, unreadable } = try_rotated(log)?;
    for error in &unreadable {
        warn(&error.path, &error.source);
    }
    Ok(files)
}

/// Like [`rotated`], but also returns the errors of files that cannot be read.
pub(in super::super) fn try_rotated(log: &Path) -> io::Result<LogFiles> {
    let mut listed = match all_log_files(log) {
        Err(error) if error.source.kind() == ErrorKind::NotFound => return Ok(LogFiles::default()),
        listed => listed.map_err(|error| error.source)?,
    };
    listed.files.retain(|file| file.path() != log && file.begins.is_record);
    Ok(listed)
}

/// Returns the lines of a segment, even if it was compressed since it was listed.
pub(in super::super) fn lines_of(segment: &Path) -> io::Result<FileLines<Bytes>> {
    Ok(FileLines::new(SharedFile::find(segment)?.bytes(0)?, 0))
}

/// Returns the last line of these files; `None` also if it cannot be read.
pub(in super::super) fn last_line(files: &[LogFile]) -> Option<Vec<u8>> {
    let newest = files.last()?;
    // Of one that is there twice not each need be whole.
    let there = files.iter().rev().take_while(|file| file.begins == newest.begins);
    let ends: io::Result<Vec<Option<Vec<u8>>>> = there.map(|file| file.last_line().inspect_err(|error| file.warn(error))).collect();
    let number = |line: &Vec<u8>| link_of(line).ok().flatten().map(|link| link.number);
    ends.ok()?.into_iter().flatten().max_by_key(number)
}

impl LogFile {
    /// Returns the time of its first line, in seconds since 1970.
    pub(in super::super) const fn began(&self) -> u64 {
        self.begins.at
    }

    /// Returns whether it begins with this line of the chain, or with one before it.
    pub(in super::super) fn begins_before(&self, chain: &str, number: u64) -> bool {
        self.begins
            .chain
            .as_ref()
            .is_some_and(|place| place.id == chain && place.number <= number)
    }

    /// Returns its last whole line, without its end.
    pub(in super::super) fn last_line(&self) -> io::Result<Option<Vec<u8>>> {
        let (mut lines, mut last) = (self.lines(0)?, None);
        while let Some(found) = lines.read()? {
            if let LineContent::Line(line) = found {
                last = Some(line.to_owned());
            }
        }
        Ok(last)
    }

    /// Warns that the file cannot be read, so that its records count as missing.
    pub(in super::super) fn warn(&self, error: &io::Error) {
        warn(self.path(), error);
    }
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(%error, "cannot read {}; treating its records as missing", path.display());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn line(at: u64, number: u64) -> String {
        let (id, previous) = ("0a".repeat(16), "0".repeat(64));
        format!("{{\"at\":{at},\"chain\":{{\"id\":\"{id}\",\"number\":{number},\"previous\":\"{previous}\"}}}}\n")
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn finds_preceding_files_of_any_rotation_scheme() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let segment = "attestation.jsonl.19700101T000005Z-0a0a0a0a-000000000003";
        write("attestation.jsonl", line(7, 9).as_bytes());
        write("attestation.jsonl-20261122", format!("{}torn", line(6, 7)).as_bytes());
        write(segment, format!("{}{}", line(5, 3), line(5, 4)).as_bytes());
        write(&format!("{segment}.gz"), &compressed(&line(5, 3)));
        write("attestation.jsonl.2.gz", &compressed(&format!("{}{}", line(5, 1), line(5, 2))));
        write("attestation.jsonl.empty", b"");
        write("attestation.jsonl.other", b"something else\n");
        write("attestation.jsonl.bad.gz", b"something else\n");
        write("attestation.lock", b"");
        let found = rotated(&log).unwrap();
        let last = |file: &LogFile| String::from_utf8(file.last_line().unwrap().unwrap()).unwrap() + "\n";
        let ends: Vec<String> = found.iter().map(last).collect();
        assert_eq!(ends, [line(5, 2), line(5, 4), line(5, 3), line(6, 7)]);
        let chain = "0a".repeat(16);
        assert!(found[1].begins_before(&chain, 3) && !found[1].begins_before(&chain, 2) && !found[1].begins_before("0a", 3));
    }

    /// Returns the end of files with these names and contents.
    fn end(files: &[(&str, &[u8])]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(format!("log.{name}")), bytes).unwrap();
        }
        last_line(&rotated(&folder.path().join("log")).unwrap()).map(|line| String::from_utf8(line).unwrap() + "\n")
    }

    #[test]
    fn rotated_files_end_with_the_highest_line_number() {
        let [first, second] = [line(9000, 1), line(5, 2)];
        assert_eq!(end(&[("1", first.as_bytes()), ("2", second.as_bytes())]).unwrap(), second);
        // Of two chains the one that begins later.
        let other = line(6, 1).replace("0a", "0b");
        assert_eq!(end(&[("1", second.as_bytes()), ("2", other.as_bytes())]).unwrap(), other);
        // A copy that was made before it was whole.
        let whole = format!("{second}{}", line(6, 3));
        for (copy, name) in [("1", "2"), ("2", "1")] {
            assert_eq!(end(&[(copy, second.as_bytes()), (name, whole.as_bytes())]).unwrap(), line(6, 3));
        }
        assert_eq!(end(&[]), None);
    }

    #[test]
    fn end_is_unknown_if_last_file_is_damaged() {
        let (first, second) = (compressed(&line(5, 1)), compressed(&format!("{}{}", line(6, 2), line(6, 3))));
        assert_eq!(end(&[("1.gz", &first), ("2.gz", &second)]).unwrap(), line(6, 3));
        assert_eq!(end(&[("1.gz", &first), ("2.gz", &second[..second.len() - 4])]), None);
        assert_eq!(end(&[("1.gz", &first[..first.len() - 4]), ("2.gz", &second)]).unwrap(), line(6, 3));
    }
}
