//! Search of the log for pending decisions: after a kill, or if the store was not told, they may be recorded already.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::chain::Link;
use super::read_range::Reach;
use super::reading::{FileLines, LineContent, LogFile, rotated};

/// A decision that is not known to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDecision {
    /// Id of the decision: the record's.
    pub id: String,
    /// Time of the decision, in seconds since 1970.
    pub at: u64,
}

/// Members of a line with the identifier and the time of a decision.
#[derive(Deserialize)]
struct DecisionHead {
    at: u64,
    id: String,
    /// Any value: a line whose place cannot be read still counts.
    #[serde(default)]
    chain: Value,
}

/// The decisions that were found in the log, of some that were looked for.
#[derive(Debug)]
pub struct FoundDecisions {
    began: Option<u64>,
    recorded: BTreeSet<String>,
}

impl FoundDecisions {
    /// Searches for these decisions in the log, and in the rotated files next to it.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn search(log: &Path, wanted: &[PendingDecision]) -> io::Result<Self> {
        let mut read = DecisionSearch {
            wanted: wanted.iter().map(|wanted| wanted.id.as_str()).collect(),
            reach: Reach::default(),
            recorded: BTreeSet::new(),
        };
        let first = wanted.iter().map(|wanted| wanted.at).min().unwrap_or(0);
        for file in since(&rotated(log)?, first) {
            // What cannot be read of it leaves a gap.
            if let Err(error) = file.lines(0).and_then(|lines| read.all_of(lines)) {
                file.warn(&error);
            }
        }
        read.all_of(FileLines::new(File::open(log)?, 0))?;
        Ok(Self {
            began: read.reach.began(),
            recorded: read.recorded,
        })
    }

    /// Returns whether a decision is in the log.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.recorded.contains(id)
    }

    /// Returns whether the log is complete since the second before this one: a decision of that time that is not in it was never recorded.
    #[must_use]
    pub fn reaches_back_before(&self, at: u64) -> bool {
        self.began.is_some_and(|began| began < at)
    }
}

/// Returns the files that were written from this second on, the one that begins before it, and one more, because clocks are set.
fn since(files: &[LogFile], at: u64) -> &[LogFile] {
    let before = files.iter().rposition(|file| file.began() < at);
    files.get(before.unwrap_or(0).saturating_sub(1)..).unwrap_or_default()
}

struct DecisionSearch<'p> {
    wanted: BTreeSet<&'p str>,
    reach: Reach,
    recorded: BTreeSet<String>,
}

impl DecisionSearch<'_> {
    /// Reads all lines. A line that cannot be read is not this gateway's.
    fn all_of(&mut self, mut lines: FileLines<impl io::Read>) -> io::Result<()> {
        self.reach.another_file();
        while let Some(read) = lines.read()? {
            let LineContent::Line(line) = read else { continue };
            let Ok(DecisionHead { at, id, chain }) = serde_json::from_slice(line) else {
                continue;
            };
            self.reach.line(at, Link::deserialize(&chain).ok().as_ref());
            if self.wanted.contains(id.as_str()) {
                self.recorded.insert(id);
            }
        }
        Ok(())
    }
}
