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
    const fn label(self) -> &'static str {
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
    /// Start of this boot, in seconds since the run's start.
    pub begun: f64,
    /// Duration from the first byte to the last of the config, in seconds.
    pub took: f64,
    /// Result: [`FULL`], or the obstacle.
    pub ended: String,
    /// Number of pieces of evidence that were made.
    pub evidence: u32,
    /// Bytes of the bodies of all answers.
    pub received: u64,
    /// Number of failed attempts, by step and reason.
    pub failed: BTreeMap<String, u32>,
}

impl Noted {
    pub fn failed(&mut self, step: Step, what: &str) {
        *self.failed.entry(format!("{}: {}", step.label(), what.trim())).or_default() += 1;
    }
}

/// Report of the generator at its end.
#[derive(Serialize, Deserialize)]
pub struct Told {
    pub nodes: Vec<Noted>,
    /// Time until the last node was done, in seconds.
    pub lasted: f64,
    /// Processor time of the generator, in seconds.
    pub spent: f64,
    /// Connections of the attacker, and the number of them without an answer.
    pub stranger: [u64; 2],
}
