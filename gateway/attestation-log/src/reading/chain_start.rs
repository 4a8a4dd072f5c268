//! Beginning of a log's file: its first line, which no other file of the log has.

use std::io;

use serde::Deserialize;

use super::lines::{FileLines, LineContent};
use super::shared_file::SharedFile;
use crate::LineHash;

/// Identity of a log's file, by its first line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileBeginning {
    /// Time of the first line, in seconds since 1970; 0 for a file without a whole line.
    pub(super) at: u64,
    /// Identifier of the record, or the line's hash if the line is not a record.
    pub(super) id: String,
    /// Place of the line in its chain; `None` for lines of older releases.
    pub(super) chain: Option<ChainStart>,
    /// Set if the line is a record.
    pub(super) is_record: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ChainStart {
    pub(super) id: String,
    pub(super) number: u64,
}

/// Members of a line that order files.
#[derive(Deserialize)]
struct FirstLine {
    at: u64,
    #[serde(default)]
    id: String,
    chain: Option<ChainStart>,
}

impl FileBeginning {
    /// Reads a file's first line; if that is not a record, the file's date gives the time.
    pub(super) fn read(file: &SharedFile) -> io::Result<Self> {
        let mut lines = FileLines::new(file.bytes(0)?, 0);
        let line = match lines.read()? {
            Some(LineContent::Line(line)) => line,
            Some(LineContent::TooLong(_)) => b"",
            None | Some(LineContent::Cut) => return Ok(Self::default()),
        };
        if let Ok(FirstLine { at, id, chain }) = serde_json::from_slice(line) {
            return Ok(Self {
                at: at.max(1),
                id,
                chain,
                is_record: true,
            });
        }
        let modified = file
            .metadata()?
            .modified()?
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            at: modified.as_secs().max(1),
            id: LineHash::of(line).to_string(),
            chain: None,
            is_record: false,
        })
    }

    /// Returns whether this file comes after the other one: in a chain by its number, whatever the clock said.
    pub(super) fn is_after(&self, other: &Self) -> bool {
        match (&self.chain, &other.chain) {
            (Some(here), Some(there)) if here.id == there.id => here.number > there.number,
            _ => self.at >= other.at && self != other,
        }
    }
}
