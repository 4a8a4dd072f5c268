//! Lines of one file, each in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line that is read: several times as long as the largest evidence makes it. No gateway has written a longer one.
pub const LINE_LIMIT_BYTES: usize = 16 * 1024 * 1024;
/// Bytes that are read from the file at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum LineContent<'l> {
    /// A line, without its end.
    Line(&'l [u8]),
    /// A line of that many bytes, more than [`LINE_LIMIT_BYTES`].
    TooLong(u64),
    /// A last line without its end: it is being written, or was cut off.
    Cut,
}

/// The lines of a file, one after the other.
#[derive(Debug)]
pub struct FileLines<R> {
    reader: BufReader<R>,
    offset: u64,
    line: Vec<u8>,
}

impl<R: Read> FileLines<R> {
    /// Reads the lines of `reader`, which begins at this byte of its file.
    pub fn new(reader: R, offset: u64) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER_BYTES, reader),
            offset,
            line: Vec::new(),
        }
    }

    /// Returns the offset of the next line, in bytes from the file's beginning.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    /// The file's.
    pub fn read(&mut self) -> io::Result<Option<LineContent<'_>>> {
        self.line = Vec::new();
        let mut length: u64 = 0;
        loop {
            let chunk = self.reader.fill_buf()?;
            if chunk.is_empty() {
                return Ok((length > 0).then_some(LineContent::Cut));
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = end.and_then(|end| chunk.get(..end)).unwrap_or(chunk);
            if self.line.len() + part.len() <= LINE_LIMIT_BYTES {
                self.line.extend_from_slice(part);
            }
            length = length.saturating_add(bytes(part.len()));
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                self.offset = self.offset.saturating_add(length).saturating_add(1);
                let whole = length == bytes(self.line.len());
                return Ok(Some(if whole {
                    LineContent::Line(&self.line)
                } else {
                    LineContent::TooLong(length)
                }));
            }
        }
    }
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Returns the results of reading a text: a line's length, `too long` or `cut`, each with the offset of the next line.
    fn found(text: &[u8]) -> Vec<(String, u64)> {
        let mut lines = FileLines::new(text, 7);
        let mut found = Vec::new();
        loop {
            let said = match lines.read().unwrap() {
                None => return found,
                Some(LineContent::Line(line)) => line.len().to_string(),
                Some(LineContent::TooLong(length)) => format!("too long: {length}"),
                Some(LineContent::Cut) => "cut".to_owned(),
            };
            let cut = said == "cut";
            found.push((said, lines.offset()));
            if cut {
                return found;
            }
        }
    }

    fn owned_findings(found: &[(&str, u64)]) -> Vec<(String, u64)> {
        found.iter().map(|(said, offset)| ((*said).to_owned(), *offset)).collect()
    }

    #[test]
    fn yields_lines_with_their_positions() {
        assert_eq!(found(b""), owned_findings(&[]));
        assert_eq!(found(b"ab\n\ncde\n"), owned_findings(&[("2", 10), ("0", 11), ("3", 15)]));
        // What has no end yet is read again from where it begins.
        assert_eq!(found(b"ab\ncd"), owned_findings(&[("2", 10), ("cut", 10)]));
    }

    #[test]
    fn skips_an_oversized_line_without_buffering_it() {
        let text = |length: usize| [vec![b'x'; length], b"\nab\n".to_vec()].concat();
        let limit = LINE_LIMIT_BYTES;
        let after = |length: usize| bytes(length) + 8;
        assert_eq!(
            found(&text(limit)),
            owned_findings(&[(&limit.to_string(), after(limit)), ("2", after(limit) + 3)])
        );
        let more = limit + 1;
        assert_eq!(
            found(&text(more)),
            owned_findings(&[(&format!("too long: {more}"), after(more)), ("2", after(more) + 3)])
        );
        let mut lines = FileLines::new(io::repeat(b'x').take(4 * bytes(limit)), 0);
        assert_eq!(lines.read().unwrap(), Some(LineContent::Cut));
        assert!(lines.line.capacity() <= 2 * limit, "{}", lines.line.capacity());
    }
}
