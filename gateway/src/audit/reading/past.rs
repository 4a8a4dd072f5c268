//! Whether a reader has come past a line, in whatever order clocks have named the files.

use std::path::Path;

use super::follower::next_offset;
use super::{Position, ReadError, files_beside};

/// Whether a reader who has read the line at `position` last, which is that line of that chain unless an older release wrote it, has read all of the file with line
/// `number` of `chain`, too. Where either is not found it is not known, and so he has not.
///
/// # Errors
/// The folder's.
pub fn has_read_past(log: &Path, chain: &str, number: u64, read: Option<(&str, u64)>, position: &Position) -> Result<bool, ReadError> {
    let files = files_beside(log)?.files;
    let Some(file) = files.iter().rposition(|file| file.begins_before(chain, number)) else {
        return Ok(false);
    };
    let mut later = files.iter().skip(file + 1);
    // What cannot be read of a file is not found in it.
    Ok(later.any(|file| {
        let begins_before = read.is_some_and(|(chain, number)| file.begins_before(chain, number));
        begins_before || matches!(next_offset(file, position), Ok(Some(_)))
    }))
}
