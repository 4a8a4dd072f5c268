//! A log's file, read from its end.

use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom};
use std::path::Path;

/// Bytes that are read at a time from the file's end when looking for a torn line.
pub(super) const CHUNK_BYTES: u64 = 64 * 1024;

/// Returns the last line, without its end; `None` if no line is whole.
pub(super) fn last_line(file: &mut File) -> Result<Option<Vec<u8>>> {
    let length = file.metadata()?.len();
    let Some(end) = end_of_last_line(file, length)?.checked_sub(1) else {
        return Ok(None);
    };
    let start = end_of_last_line(file, end)?;
    file.seek(SeekFrom::Start(start))?;
    let mut line = Vec::new();
    Read::by_ref(file).take(end - start).read_to_end(&mut line)?;
    Ok(Some(line))
}

/// Returns the lines of a file, the last one first, without their ends.
pub(super) fn lines_from_end(path: &Path) -> Result<LinesFromEnd> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let end = end_of_last_line(&mut file, length)?;
    Ok(LinesFromEnd {
        file,
        begin: end.saturating_sub(1),
        rest: (end > 0).then(Vec::new),
    })
}

/// Iterator of [`lines_from_end`] over a file.
#[derive(Debug)]
pub(super) struct LinesFromEnd {
    file: File,
    /// Offset in the file of the first byte that was read.
    begin: u64,
    /// Bytes that were read and not returned; `None` at the end.
    rest: Option<Vec<u8>>,
}

impl Iterator for LinesFromEnd {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.rest.take()?;
        loop {
            if let Some(newline) = memchr::memrchr(b'\n', &rest) {
                let line = rest.split_off(newline + 1);
                rest.truncate(newline);
                self.rest = Some(rest);
                return Some(Ok(line));
            }
            if self.begin == 0 {
                return Some(Ok(rest));
            }
            let start = self.begin.saturating_sub(CHUNK_BYTES);
            let mut chunk = Vec::new();
            let read = self.file.seek(SeekFrom::Start(start));
            let read = read.and_then(|_| Read::by_ref(&mut self.file).take(self.begin - start).read_to_end(&mut chunk));
            if let Err(error) = read {
                return Some(Err(error));
            }
            chunk.append(&mut rest);
            (rest, self.begin) = (chunk, start);
        }
    }
}

/// Returns the offset of the end of the last whole line, in bytes from the start.
pub(super) fn end_of_last_line(file: &mut File, length: u64) -> Result<u64> {
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut chunk = Vec::new();
        Read::by_ref(file).take(end - start).read_to_end(&mut chunk)?;
        if let Some(newline) = memchr::memrchr(b'\n', &chunk) {
            let newline = u64::try_from(newline).unwrap_or(0);
            return Ok(start + newline + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_long_lines_backwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let chunk = usize::try_from(CHUNK_BYTES).unwrap();
        for lengths in [&[][..], &[0], &[0, 0], &[1, 2, 3], &[chunk, 0, chunk - 1, chunk + 1, 3 * chunk, 5]] {
            let lines: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            for torn in ["", "torn"] {
                fs::write(&path, format!("{text}{torn}")).unwrap();
                let read = lines_from_end(&path).unwrap().map(|line| String::from_utf8(line.unwrap()).unwrap());
                let mut read: Vec<String> = read.collect();
                read.reverse();
                assert!(read == lines, "{lengths:?}");
            }
        }
    }
}
