//! What the log says of decisions of which a gateway does not know what came of them: after a kill, or where the store was not told.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::Verdict;
use super::chain::Link;
use super::reach::Reach;
use super::reading::{Found, Lines, LogFile, rotated};

/// A decision that has used something up, or has claimed something, and is not known to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDecision {
    /// Id of the decision: the record's.
    pub id: String,
    /// When, seconds since 1970.
    pub at: u64,
}

/// Of a line, what says which decision it is, when it was made, and whether anything was given.
#[derive(Deserialize)]
struct Head {
    at: u64,
    id: String,
    /// Whatever it is: a line whose verdict cannot be read is there all the same.
    #[serde(default)]
    verdict: Value,
    /// As the verdict.
    #[serde(default)]
    chain: Value,
}

/// The outcome of a decision, as the log has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Something was given.
    Given,
    /// It came to a refusal after all, and what it had taken could not be given back.
    Refused,
}

/// What the log says of some decisions.
#[derive(Debug)]
pub struct Outcomes {
    began: Option<u64>,
    recorded: BTreeMap<String, Outcome>,
}

impl Outcomes {
    /// Looks for these decisions in the log, and in what was rotated beside it.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn of(log: &Path, wanted: &[PendingDecision]) -> io::Result<Self> {
        let mut read = Read {
            wanted: wanted.iter().map(|wanted| wanted.id.as_str()).collect(),
            reach: Reach::default(),
            recorded: BTreeMap::new(),
        };
        let first = wanted.iter().map(|wanted| wanted.at).min().unwrap_or(0);
        for file in since(&rotated(log)?, first) {
            // What cannot be read of it leaves a gap.
            if let Err(error) = file.lines(0).and_then(|lines| read.all_of(lines)) {
                file.warn(&error);
            }
        }
        read.all_of(Lines::new(File::open(log)?, 0))?;
        Ok(Self {
            began: read.reach.began(),
            recorded: read.recorded,
        })
    }

    /// Returns the outcome of a decision; `None` if it is not in the log.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Outcome> {
        self.recorded.get(id).copied()
    }

    /// Returns whether the log is whole since a second before this one: a decision of that time that is not in it was never recorded.
    #[must_use]
    pub fn reaches_back_before(&self, at: u64) -> bool {
        self.began.is_some_and(|began| began < at)
    }
}

/// The files that were written from this second on: also the one that begins before it, and one more, as clocks are set.
fn since(files: &[LogFile], at: u64) -> &[LogFile] {
    let before = files.iter().rposition(|file| file.began() < at);
    files.get(before.unwrap_or(0).saturating_sub(1)..).unwrap_or_default()
}

struct Read<'p> {
    wanted: BTreeSet<&'p str>,
    reach: Reach,
    recorded: BTreeMap<String, Outcome>,
}

impl Read<'_> {
    /// A line that cannot be read is none of this gateway's.
    fn all_of(&mut self, mut lines: Lines<impl io::Read>) -> io::Result<()> {
        self.reach.another_file();
        while let Some(read) = lines.read()? {
            let Found::Line(line) = read else { continue };
            let Ok(Head { at, id, verdict, chain }) = serde_json::from_slice(line) else {
                continue;
            };
            self.reach.line(at, Link::deserialize(&chain).ok().as_ref());
            if self.wanted.contains(id.as_str()) {
                let refused = Verdict::deserialize(&verdict).is_ok_and(|verdict| verdict == Verdict::Refused);
                // If there are two, one that gave something counts.
                if refused {
                    self.recorded.entry(id).or_insert(Outcome::Refused);
                } else {
                    self.recorded.insert(id, Outcome::Given);
                }
            }
        }
        Ok(())
    }
}
