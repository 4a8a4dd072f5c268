//! How far a receiver has come, kept outside of memory: written when what was sent was taken, so that a crash doubles some records and loses none.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::audit::reading::{Position, ReadError, has_read_past};
use crate::files::{self, FileError, PRIVATE, SMALL_FILE_LIMIT_BYTES};

/// The document's version.
const VERSION: u32 = 1;

/// It cannot be read, or written.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    /// Something else stands there.
    #[error("{path} says of no line that it was sent: {problem}")]
    Malformed { path: PathBuf, problem: String },
}

/// The last line that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Which line of which chain, unless an older release wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// When it was recorded, seconds since 1970.
    pub at: u64,
    /// Where it stands.
    pub position: Position,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    v: u32,
    last: Place,
}

/// The file that says it.
#[derive(Debug, Clone)]
pub struct Kept(PathBuf);

impl Kept {
    /// That of a receiver, in the folder where those of all are.
    #[must_use]
    pub fn of(folder: &Path, name: &str) -> Self {
        Self(folder.join(format!("{name}.json")))
    }

    /// The last line that was taken; `None` if none was.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn read(&self) -> Result<Option<Place>, KeptError> {
        let path = || self.0.clone();
        let malformed = |problem: String| KeptError::Malformed { path: path(), problem };
        let text = match files::read_text(&self.0, SMALL_FILE_LIMIT_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(malformed(error.to_string())),
            Err(source) => return Err(KeptError::Io { path: path(), source }),
        };
        let Document { v, last } = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if v != VERSION {
            return Err(malformed(format!("version {v}, of another release")));
        }
        Ok(Some(last))
    }

    /// Says, durably, that this line was taken.
    ///
    /// # Errors
    /// [`KeptError`]: then it is sent again after a restart.
    pub fn write(&self, last: &Place) -> Result<(), KeptError> {
        let document = Document {
            v: VERSION,
            last: last.clone(),
        };
        let text = serde_json::to_string(&document).map_err(|error| KeptError::Malformed {
            path: self.0.clone(),
            problem: error.to_string(),
        })?;
        Ok(files::replace(&self.0, PRIVATE, &format!("{text}\n"))?)
    }
}

impl Place {
    /// Whether it is this line of this chain, or one after it.
    pub(super) fn is_at_least(&self, chain: &str, number: u64) -> bool {
        self.chain.as_deref() == Some(chain) && self.number.is_some_and(|own| own >= number)
    }

    /// Whether all was sent up to this line of the log: by the numbers of its chain. Of two chains one comes after the other as their files do, whatever the
    /// clock said when their lines were written.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn covers(&self, log: &Path, chain: &str, number: u64) -> Result<bool, ReadError> {
        let read = self.chain.as_deref().zip(self.number);
        match read {
            Some((here, sent)) if here == chain => Ok(number <= sent),
            read => has_read_past(log, chain, number, read, &self.position),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::audit::LineHash;

    fn place() -> Place {
        let position = r#"{"offset":7,"sha256":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"}"#;
        Place {
            chain: Some("c".to_owned()),
            number: Some(5),
            at: 100,
            position: serde_json::from_str(position).unwrap(),
        }
    }

    #[test]
    fn what_was_kept_is_read_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::of(folder.path(), "siem");
        assert_eq!(kept.read().unwrap(), None);
        kept.write(&place()).unwrap();
        assert_eq!(kept.read().unwrap(), Some(place()));
        let path = folder.path().join("siem.json");
        let text = fs::read_to_string(&path).unwrap();
        for wrong in [
            String::new(),
            text.replace("\"v\":1", "\"v\":2"),
            text.replace("\"at\"", "\"when\""),
            text.replace("0a0a", "0A0A"),
            text.replace("\"offset\":7", "\"offset\":-7"),
            text.get(..text.len() / 2).unwrap().to_owned(),
        ] {
            fs::write(&path, &wrong).unwrap();
            assert!(matches!(kept.read(), Err(KeptError::Malformed { .. })), "{wrong}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(kept.read(), Err(KeptError::Malformed { .. })));
    }

    /// A line of a chain, and where it stands if it begins a file.
    fn line(chain: &str, number: u64, at: u64) -> (String, Place) {
        let line = format!(r#"{{"at":{at},"id":"{chain}{number}","chain":{{"id":"{chain}","number":{number}}}}}"#);
        let place = Place {
            chain: Some(chain.to_owned()),
            number: Some(number),
            at,
            position: Position {
                offset: 0,
                sha256: LineHash::of(line.as_bytes()),
            },
        };
        (line, place)
    }

    #[test]
    fn a_line_is_covered_when_it_or_a_later_one_was_taken() {
        let log = Path::new("/nowhere/log");
        let covers = |number| place().covers(log, "c", number).unwrap();
        assert!(covers(4) && covers(5) && !covers(6));
    }

    #[test]
    fn of_two_chains_that_of_the_earlier_file_was_taken_first_whatever_the_clock_said() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let write = |name: &str, lines: &[&str]| {
            fs::write(
                folder.path().join(name),
                lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>(),
            )
            .unwrap();
        };
        // The clock was ahead in the second file of the first chain, and set back in the second one; then no line has a place, and then there is the log.
        let (first, _) = line("a", 1, 10);
        let (second, of_first) = line("a", 2, 900);
        let (third, of_second) = line("b", 1, 20);
        let (fourth, of_log) = line("b", 7, 15);
        write("log.1", &[&first]);
        write("log.2", &[&second]);
        write("log.3", &[&third]);
        write("log", &[&fourth]);
        let covers = |place: &Place, chain, number| place.covers(&log, chain, number).unwrap();
        for place in [&of_second, &of_log] {
            assert!(covers(place, "a", 1) && covers(place, "a", 2));
        }
        assert!(covers(&of_first, "a", 1) && covers(&of_first, "a", 2));
        // What comes later was not sent, however old it says it is.
        assert!(!covers(&of_first, "b", 1) && !covers(&of_first, "b", 7));
        // An older release wrote it down: it is found where it stands.
        let unnamed = |place: &Place| Place {
            chain: None,
            number: None,
            ..place.clone()
        };
        assert!(covers(&unnamed(&of_log), "a", 2) && covers(&unnamed(&of_log), "b", 1));
        assert!(!covers(&unnamed(&of_first), "b", 1) && !covers(&unnamed(&of_first), "a", 2));
        // Nobody knows of what is not there.
        assert!(!covers(&place(), "a", 1) && !covers(&of_log, "x", 1));
        // A chain that begins in the midst of a file.
        write("log.3", &[&third, &fourth]);
        fs::write(&log, "").unwrap();
        let in_midst = Position {
            offset: u64::try_from(third.len()).unwrap() + 1,
            ..of_log.position.clone()
        };
        let in_midst = Place {
            position: in_midst,
            chain: Some("x".to_owned()),
            ..of_log
        };
        assert!(covers(&in_midst, "a", 2) && !covers(&in_midst, "b", 1));
    }
}
