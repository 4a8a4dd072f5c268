//! A line, as it is read from whatever holds it.

use std::io::{BufRead, Read, Result};

/// More than the longest line has that a gateway writes.
const LINE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// The next line; `None` where there is no whole one.
pub(super) fn next_line(reader: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(LINE_LIMIT_BYTES).read_until(b'\n', &mut line)?;
    Ok(line.pop_if(|byte| *byte == b'\n').map(|_| line))
}
