//! Position of a log's last lines: only the needed part is read, as far as files can be read from their end.

use std::collections::VecDeque;
use std::io;

use super::LogFile;
use super::lines::{FileLines, LINE_LIMIT_BYTES, LineContent};
use super::shared_file::SharedFile;

/// Bytes of a file's end that are read at a time.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Most bytes that are read at a time, for a long line.
const LARGEST_CHUNK_BYTES: u64 = 1024 * 1024;

/// Returns a position after which at most `count` lines follow for which `is_wanted` holds: the index of a file, and an offset in it. Lines
/// that were searched for them follow, too. Files that cannot be read are included, so that a reader that starts there gets the error.
pub fn last_of(files: &[LogFile], count: usize, mut is_wanted: impl FnMut(&[u8]) -> bool) -> (usize, u64) {
    let mut left = count;
    let mut begin = (files.len(), 0);
    for (place, file) in files.iter().enumerate().rev() {
        if left == 0 {
            break;
        }
        let mut offsets = VecDeque::new();
        let looked = file.opened().and_then(|opened| match opened.is_zipped() {
            true => forwards(&opened, left, &mut is_wanted, &mut offsets),
            false => backwards(opened, left, &mut is_wanted, &mut offsets),
        });
        left = left.saturating_sub(offsets.len());
        let first = offsets.front().copied().filter(|_| looked.is_ok() && left == 0);
        begin = (place, first.unwrap_or(0));
    }
    begin
}

/// Finds the offsets of the last of them, in a file that can only be read from its beginning.
fn forwards(file: &SharedFile, count: usize, is_wanted: &mut impl FnMut(&[u8]) -> bool, offsets: &mut VecDeque<u64>) -> io::Result<()> {
    let mut lines = FileLines::new(file.bytes(0)?, 0);
    loop {
        let offset = lines.offset();
        match lines.read()? {
            None | Some(LineContent::Cut) => return Ok(()),
            Some(LineContent::Line(line)) if is_wanted(line) => {
                offsets.push_back(offset);
                if offsets.len() > count {
                    offsets.pop_front();
                }
            }
            Some(_) => {}
        }
    }
}

fn backwards(file: SharedFile, count: usize, is_wanted: &mut impl FnMut(&[u8]) -> bool, offsets: &mut VecDeque<u64>) -> io::Result<()> {
    let mut lines = FromEnd::open(file)?;
    while offsets.len() < count
        && let Some((offset, line)) = lines.next()?
    {
        if line.is_some_and(|line| is_wanted(&line)) {
            offsets.push_front(offset);
        }
    }
    Ok(())
}

/// Whole lines of a file, the last one first.
struct FromEnd {
    file: SharedFile,
    /// Offset in the file of the first byte that was read.
    begin: u64,
    /// Bytes that were read and not returned; of a line that is too long they are dropped.
    rest: Vec<u8>,
    passed_over: bool,
    done: bool,
}

impl FromEnd {
    fn open(file: SharedFile) -> io::Result<Self> {
        let begin = file.metadata()?.len();
        let mut from_end = Self {
            file,
            begin,
            rest: Vec::new(),
            passed_over: false,
            done: false,
        };
        // What has no end is no line yet.
        from_end.back_to_line_feed()?;
        Ok(from_end)
    }

    /// Returns the offset of the next line, with the line itself unless it is too long.
    fn next(&mut self) -> io::Result<Option<(u64, Option<Vec<u8>>)>> {
        if self.done {
            return Ok(None);
        }
        let (line, whole) = self.back_to_line_feed()?;
        let offset = self.begin.saturating_add(u64::try_from(self.rest.len()).unwrap_or(0));
        // The line feed that was found is the end of the one before.
        let offset = if self.done { 0 } else { offset.saturating_add(1) };
        Ok(Some((offset, whole.then_some(line))))
    }

    /// Removes and returns the bytes after the last line feed of the rest; and whether they are a complete line.
    fn back_to_line_feed(&mut self) -> io::Result<(Vec<u8>, bool)> {
        loop {
            if let Some(newline) = memchr::memrchr(b'\n', &self.rest) {
                let line = self.rest.split_off(newline + 1);
                self.rest.truncate(newline);
                let whole = !std::mem::take(&mut self.passed_over) && line.len() <= LINE_LIMIT_BYTES;
                return Ok((line, whole));
            }
            if self.rest.len() > LINE_LIMIT_BYTES {
                (self.rest, self.passed_over) = (Vec::new(), true);
            }
            if self.begin == 0 {
                self.done = true;
                return Ok((std::mem::take(&mut self.rest), !self.passed_over));
            }
            self.read_before()?;
        }
    }

    fn read_before(&mut self) -> io::Result<()> {
        // As much as there is already, so that a long line is not moved often.
        let size = u64::try_from(self.rest.len()).unwrap_or(0).clamp(CHUNK_BYTES, LARGEST_CHUNK_BYTES);
        let start = self.begin.saturating_sub(size);
        let length = usize::try_from(self.begin - start).unwrap_or(usize::MAX);
        let mut chunk = self.file.read_at(start, length)?;
        chunk.append(&mut self.rest);
        (self.rest, self.begin) = (chunk, start);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs::{self, File};

    use super::super::files_of;
    use super::*;

    #[test]
    fn reads_the_last_lines_backwards_whatever_their_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let chunk = usize::try_from(CHUNK_BYTES).unwrap();
        for lengths in [
            &[][..],
            &[0],
            &[0, 0],
            &[1, 2, 3],
            &[chunk, 0, chunk - 1, chunk + 1, 3 * chunk, 5],
            &[3, LINE_LIMIT_BYTES, 4],
            &[3, LINE_LIMIT_BYTES + 1, 4],
            &[LINE_LIMIT_BYTES + 1],
        ] {
            let text: String = lengths.iter().map(|length| "x".repeat(*length) + "\n").collect();
            let mut begins = Vec::new();
            let mut offset = 0;
            for length in lengths {
                if *length <= LINE_LIMIT_BYTES {
                    begins.push((u64::try_from(offset).unwrap(), *length));
                }
                offset += length + 1;
            }
            for torn in ["", "torn"] {
                fs::write(&path, format!("{text}{torn}")).unwrap();
                let mut from_end = FromEnd::open(SharedFile::open(&path).unwrap()).unwrap();
                let mut found = Vec::new();
                while let Some((offset, line)) = from_end.next().unwrap() {
                    found.extend(line.map(|line| (offset, line.len())));
                }
                found.reverse();
                assert_eq!(found, begins, "{lengths:?}");
            }
        }
    }

    #[test]
    fn reads_the_last_lines_across_rotated_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, lines: &[&str]| {
            let path = folder.path().join(name);
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            if name.ends_with("gz") {
                let mut gz = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
                io::Write::write_all(&mut gz, text.as_bytes()).unwrap();
                gz.finish().unwrap();
            } else {
                fs::write(&path, text).unwrap();
            }
        };
        let line = |at: u64, word: &str| format!("{{\"at\":{at},\"is\":\"{word}\"}}");
        write("attestation.jsonl", &[&line(5, "wanted"), &line(6, "not")]);
        write(
            "attestation.jsonl.1.gz",
            &[&line(1, "wanted"), &line(2, "not"), &line(3, "wanted"), &line(4, "wanted")],
        );
        // What is being compressed is none of them.
        write("attestation.jsonl.1.gz.new", &["x"]);
        let files = files_of(&[folder.path().to_owned()]).unwrap().files;
        let names: Vec<_> = files
            .iter()
            .map(|file| file.path().file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["attestation.jsonl.1.gz", "attestation.jsonl"]);
        let last = |count| last_of(&files, count, |line| line.windows(6).any(|word| word == b"wanted"));
        let length = |word: &str| u64::try_from(line(1, word).len() + 1).unwrap();
        assert_eq!(last(0), (2, 0));
        assert_eq!(last(1), (1, 0));
        assert_eq!(last(2), (0, 2 * length("wanted") + length("not")));
        assert_eq!(last(3), (0, length("wanted") + length("not")));
        assert_eq!(last(100), (0, 0));
    }
}
