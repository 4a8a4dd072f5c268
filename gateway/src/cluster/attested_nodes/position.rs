//! The position in the log up to which its records were handled, in a file. It is written afterwards, so that a crash repeats some records
//! and loses none.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use attest_log::reading::Position;
use attest_system::files::{self, PRIVATE, SMALL_FILE_LIMIT_BYTES, WriteError};
use serde::{Deserialize, Serialize};

/// The version of the file's format.
pub(crate) const VERSION: u32 = 1;

/// It cannot be read, or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PositionError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] WriteError),
    /// The file holds something else.
    #[error("{path} holds no position in the attestation log: {problem}")]
    Malformed { path: PathBuf, problem: String },
}

/// The last line that was handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadPosition {
    /// The line's chain and its number there; `None` for a line without a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The line's place in the log's files.
    pub position: Position,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PositionDocument {
    v: u32,
    last: ReadPosition,
}

/// The file that holds it.
#[derive(Debug, Clone)]
pub(crate) struct PositionFile(PathBuf);

impl PositionFile {
    /// Returns the file of a reader, in the folder of the files of all readers.
    #[must_use]
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        Self(folder.join(format!("{name}.json")))
    }

    /// Returns the last line that was handled; `None` if none was.
    ///
    /// # Errors
    /// [`PositionError`].
    pub(crate) fn read(&self) -> Result<Option<ReadPosition>, PositionError> {
        let path = || self.0.clone();
        let malformed = |problem: String| PositionError::Malformed { path: path(), problem };
        let text = match files::read_text(&self.0, SMALL_FILE_LIMIT_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(malformed(error.to_string())),
            Err(source) => return Err(PositionError::Io { path: path(), source }),
        };
        let PositionDocument { v, last } = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if v != VERSION {
            return Err(malformed(format!("it has version {v}, and this release reads {VERSION}")));
        }
        Ok(Some(last))
    }

    /// Writes, durably, that this line was handled.
    ///
    /// # Errors
    /// [`PositionError`]: then it is read again after a restart.
    pub(crate) fn write(&self, last: &ReadPosition) -> Result<(), PositionError> {
        let document = PositionDocument {
            v: VERSION,
            last: last.clone(),
        };
        let text = serde_json::to_string(&document).map_err(|error| PositionError::Malformed {
            path: self.0.clone(),
            problem: error.to_string(),
        })?;
        Ok(files::replace(&self.0, PRIVATE, &format!("{text}\n"))?)
    }
}

impl ReadPosition {
    /// Returns whether it is this line of this chain, or one after it.
    pub(super) fn is_at_least(&self, chain: &str, number: u64) -> bool {
        self.chain.as_deref() == Some(chain) && self.number.is_some_and(|own| own >= number)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;

    fn place() -> ReadPosition {
        let position = r#"{"offset":7,"sha256":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"}"#;
        ReadPosition {
            chain: Some("c".to_owned()),
            number: Some(5),
            position: serde_json::from_str(position).unwrap(),
        }
    }

    #[test]
    fn reads_a_saved_position_and_refuses_malformed_files() {
        let folder = tempfile::tempdir().unwrap();
        let kept = PositionFile::new(folder.path(), "reader");
        assert_eq!(kept.read().unwrap(), None);
        kept.write(&place()).unwrap();
        assert_eq!(kept.read().unwrap(), Some(place()));
        let path = folder.path().join("reader.json");
        let text = fs::read_to_string(&path).unwrap();
        for wrong in [
            String::new(),
            text.replace("\"v\":1", "\"v\":2"),
            text.replace("\"number\"", "\"line\""),
            text.replace("0a0a", "0A0A"),
            text.replace("\"offset\":7", "\"offset\":-7"),
            text.get(..text.len() / 2).unwrap().to_owned(),
        ] {
            fs::write(&path, &wrong).unwrap();
            assert!(matches!(kept.read(), Err(PositionError::Malformed { .. })), "{wrong}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(kept.read(), Err(PositionError::Malformed { .. })));
    }
}
