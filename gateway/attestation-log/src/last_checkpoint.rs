//! Checkpoints kept outside the log: the last one of each chain by each key. They reveal a log that has lost lines, or was signed again.

use std::collections::BTreeSet;
use std::path::Path;

use attest_system::newer_format::NewerFormat;
use serde::{Deserialize, Serialize};

use super::chain::{LineHash, Point, link_of};
use super::checkpoint::CheckpointLine;
use super::log_end::lines_from_end;
use super::log_key::LogPublicKey;
use super::reading::{LineContent, LogFile, rotated};

/// The version of what is kept.
const VERSION: u32 = 1;

/// A kept checkpoint as JSON: the last one of a chain by one key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointFile {
    v: u32,
    /// Identifier under which its gateway serves, if several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serves_as: Option<String>,
    /// Chains that this chain has replaced.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    after: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    abandoned: Option<Abandoned>,
    /// Last checkpoint: the line, as the log has it.
    checkpoint: String,
}

/// The command by which a checkpoint was abandoned: from then on no log has to hold it, and `audit` always shows the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abandoned {
    /// Time of the command, in seconds since 1970.
    pub at: u64,
    /// The user and host that ran the command.
    pub by: String,
}

/// The last checkpoint of a chain by one key.
#[derive(Debug, Clone)]
pub struct LastCheckpoint {
    /// Line of the log, unchanged.
    pub text: String,
    pub line: CheckpointLine,
    pub abandoned: Option<Abandoned>,
    /// Identifier under which its gateway serves, if several share the store.
    pub serves_as: Option<String>,
    /// Chains that this chain has replaced.
    pub after: BTreeSet<String>,
}

/// Error of a kept checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum LastCheckpointError {
    /// It is JSON of another form, or no JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A newer release has written it.
    #[error("it has {0}")]
    Newer(#[source] NewerFormat),
}

impl LastCheckpoint {
    /// Returns a checkpoint that is to be kept: a line of the log.
    ///
    /// # Errors
    /// The line is not a checkpoint.
    pub fn new(text: &str, serves_as: Option<String>) -> Result<Self, serde_json::Error> {
        let line: CheckpointLine = serde_json::from_str(text)?;
        let begins = line.chain.begins.iter().flat_map(|begins| &begins.after);
        Ok(Self {
            text: text.to_owned(),
            after: begins.map(|point| point.chain.clone()).collect(),
            line,
            abandoned: None,
            serves_as,
        })
    }

    /// Parses a kept checkpoint.
    ///
    /// # Errors
    /// [`LastCheckpointError`] if it cannot be read, or a newer release has written it.
    pub fn read(value: &str) -> Result<Self, LastCheckpointError> {
        if let Some(newer) = NewerFormat::in_json("checkpoint version", VERSION.into(), value.as_bytes()) {
            return Err(LastCheckpointError::Newer(newer));
        }
        let CheckpointFile {
            v,
            serves_as,
            after,
            abandoned,
            checkpoint,
        } = serde_json::from_str(value)?;
        if v != VERSION {
            let problem = format!("it has version {v}, and this release reads {VERSION}");
            return Err(<serde_json::Error as serde::de::Error>::custom(problem).into());
        }
        let line = serde_json::from_str(&checkpoint)?;
        Ok(Self {
            text: checkpoint,
            line,
            abandoned,
            serves_as,
            after,
        })
    }

    /// Returns the text that [`LastCheckpoint::read`] reads: one line of JSON.
    ///
    /// # Errors
    /// Those of serde.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&CheckpointFile {
            v: VERSION,
            serves_as: self.serves_as.clone(),
            after: self.after.clone(),
            abandoned: self.abandoned.clone(),
            checkpoint: self.text.clone(),
        })
    }

    /// Returns the name of the chain and the key: a key that replaces another has a checkpoint of its own.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}.{}", self.line.chain.id, self.key().hex())
    }

    /// Returns the line's place in its chain.
    #[must_use]
    pub fn point(&self) -> Point {
        Point {
            chain: self.line.chain.id.clone(),
            number: self.line.chain.number,
            sha256: LineHash::of(self.text.as_bytes()),
        }
    }

    #[must_use]
    pub const fn key(&self) -> LogPublicKey {
        self.line.checkpoint.key
    }

    /// Returns whether this checkpoint was signed after another one of its chain. Of two of the same second the one on the later line is the later one.
    #[must_use]
    pub fn is_later_than(&self, other: &Self) -> bool {
        let moment = |kept: &Self| (kept.line.at, kept.line.chain.number);
        moment(self) > moment(other)
    }

    /// Returns whether this chain has replaced that of another checkpoint by the same key. A chain of another gateway replaces none.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        let chain = &other.line.chain.id;
        self.key() == other.key() && self.line.chain.id != *chain && self.after.contains(chain)
    }

    /// Returns whether the chain of one of these has replaced this one's.
    #[must_use]
    pub fn is_superseded(&self, all: &[Self]) -> bool {
        all.iter().any(|other| other.supersedes(self))
    }

    /// Returns whether the log holds this checkpoint, also in a rotated file, or begins after it.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn is_in(&self, log: &Path) -> std::io::Result<bool> {
        holds(log, self)
    }
}

/// Returns the checkpoints that a log has to hold: those that were not given up, of chains that no other chain has replaced. A chain that
/// replaces another names the lines that are missing of it.
pub fn required_checkpoints(all: &[LastCheckpoint]) -> impl Iterator<Item = &LastCheckpoint> {
    all.iter().filter(|kept| kept.abandoned.is_none() && !kept.is_superseded(all))
}

/// Returns the last line of the log, if it is in a chain.
///
/// # Errors
/// The log cannot be read.
pub fn log_head(log: &Path) -> std::io::Result<Option<Point>> {
    let last = lines_from_end(log)?.next().transpose()?;
    Ok(last.and_then(|line| {
        let link = link_of(&line).ok()??;
        let sha256 = LineHash::of(&line);
        Some(Point {
            chain: link.id,
            number: link.number,
            sha256,
        })
    }))
}

fn holds(log: &Path, kept: &LastCheckpoint) -> std::io::Result<bool> {
    let wanted = &kept.line.chain;
    let mut later = false;
    for line in lines_from_end(log)? {
        let line = line?;
        match link_of(&line) {
            Ok(Some(link)) if link.id == wanted.id => {
                if link.number <= wanted.number {
                    return Ok(line == kept.text.as_bytes());
                }
                later = true;
            }
            _ => {}
        }
    }
    let mut altered = false;
    // A copy that was made before a file was whole does not say what that holds.
    for file in rotated(log)?
        .iter()
        .rev()
        .filter(|file| file.begins_before(&wanted.id, wanted.number))
    {
        match held_by(file, kept) {
            Ok(Some(true)) => return Ok(true),
            Ok(held) => altered |= held.is_some(),
            Err(error) => file.warn(&error),
        }
    }
    if altered {
        return Ok(false);
    }
    // The file that held it was moved away.
    Ok(later)
}

/// Returns whether a file's line of this number is the kept one; `None` if it has no such line.
fn held_by(file: &LogFile, kept: &LastCheckpoint) -> std::io::Result<Option<bool>> {
    let wanted = &kept.line.chain;
    let mut lines = file.lines(0)?;
    while let Some(read) = lines.read()? {
        let LineContent::Line(line) = read else { continue };
        let link = link_of(line).ok().flatten().filter(|link| link.id == wanted.id);
        if link.is_some_and(|link| link.number == wanted.number) {
            return Ok(Some(line == kept.text.as_bytes()));
        }
    }
    Ok(None)
}
