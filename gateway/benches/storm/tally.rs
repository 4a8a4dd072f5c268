//! Results of the nodes in a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Kind of a node's request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Discovery,
    Challenge,
    Evidence,
    Config,
}

impl Step {
    const fn word(self) -> &'static str {
        match self {
            Self::Discovery => "discovery",
            Self::Challenge => "challenge",
            Self::Evidence => "evidence",
            Self::Config => "config",
        }
    }
}

/// Result of a boot that got its full config.
pub const FULL: &str = "full";

/// Report of a node's boot.
#[derive(Default, Serialize, Deserialize)]
pub struct Noted {
    /// Seconds from the run's begin to this boot's.
    pub begun: f64,
    /// Seconds from the first byte to the last of the config.
    pub took: f64,
    /// [`FULL`], or what came instead.
    pub ended: String,
    /// Pieces of evidence that were made.
    pub evidence: u32,
    /// Attempts that failed, by step and what they ended in.
    pub failed: BTreeMap<String, u32>,
}

impl Noted {
    pub fn failed(&mut self, step: Step, what: &str) {
        *self.failed.entry(format!("{}: {}", step.word(), what.trim())).or_default() += 1;
    }
}

/// Report of the generator at its end.
#[derive(Serialize, Deserialize)]
pub struct Told {
    pub nodes: Vec<Noted>,
    /// Seconds until the last one was done.
    pub lasted: f64,
    /// Seconds of processors that the generator has spent on it.
    pub spent: f64,
    /// Connections of the stranger's, and how many of them ended in no answer.
    pub stranger: [u64; 2],
}
