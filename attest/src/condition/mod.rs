//! A pool's condition: one expression of the Common Expression Language (CEL) over the claims, for what no typed rule says.
//!
//! The administrator writes the expression, but an unauthenticated client sends the claims. So the cost of an expression is bounded before
//! there are claims. It has few functions, none of which makes a value larger than it was. `source` and the parser read it only within
//! their limits, and `cel` counts the steps for the longest lists that claims may have. If anything goes wrong, the condition does not
//! hold.

mod booted;
mod cel;
mod names;
mod source;
mod values;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::cel::Parsed;
use crate::advice::{Advice, advice};
use crate::claims::Claims;
use crate::withheld::Withheld;

pub use self::cel::{DEPTH_LIMIT, NODES_LIMIT, STEPS_LIMIT};
pub use self::source::{OPENINGS_LIMIT, SOURCE_LIMIT_BYTES};
pub use self::values::{LIST_LIMIT, TEXT_LIMIT_BYTES, TEXTS_LIMIT_BYTES, VALUES_LIMIT};

/// An expression that can be evaluated within its limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Condition {
    source: String,
    parsed: Arc<Parsed>,
}

/// Reason why a text is not a valid condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// More text than is read.
    #[error("the condition has {found} bytes, at most {SOURCE_LIMIT_BYTES} are read")]
    TooLong { found: usize },
    /// A character that is read in no place.
    #[error(
        "the condition has {found:?} in line {line}, column {column}; only printable ASCII characters other than '\\' and '`' are allowed"
    )]
    Character { found: char, line: usize, column: usize },
    /// More brackets than a parser without a bound of its own is given.
    #[error("the condition opens more than {OPENINGS_LIMIT} brackets and choices, here in line {line}, column {column}")]
    Openings { line: usize, column: usize },
    /// The text is not an expression.
    #[error("the condition has a syntax error: line {line}, column {column}: {problem}")]
    Syntax { line: usize, column: usize, problem: String },
    /// The expression uses something that conditions do not have.
    #[error("the condition uses {0}, which conditions do not support; docs/reference/conditions.md has the supported language")]
    NotAllowed(String),
    /// The expression names an unknown variable.
    #[error("the condition uses {0:?}; the only names are `claims` and the variables of all(), exists() and exists_one()")]
    NoSuchName(String),
    /// The expression is nested too deep.
    #[error("the condition is nested more than {DEPTH_LIMIT} deep")]
    TooDeep,
    /// The expression has too many parts.
    #[error("the condition has more than {NODES_LIMIT} parts")]
    TooManyParts,
    /// The expression could take too many steps.
    #[error("the condition could take {found} steps, with lists of {LIST_LIMIT} elements; at most {STEPS_LIMIT} are taken")]
    TooManySteps { found: usize },
}

/// Reason why a condition does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionRefusal {
    /// The condition is false of these claims.
    #[error("the pool's condition is not met")]
    NotMet {
        /// The condition's text, for the log and the record.
        accepted: Withheld,
    },
    /// The condition is neither true nor false of these claims.
    #[error("the pool's condition cannot be evaluated for this machine")]
    Undecided {
        /// The reason, and the condition: it belongs to the pool, as does what it mentions.
        accepted: Withheld,
    },
}

advice! {
    pub NOT_MET = "condition-not-met", "The machine's claims do not meet the pool's condition", "Compare the record's claims with `condition` in [attestation] of the pool's pool.toml. The gateway's log names the condition.";
    UNDECIDED = "condition-undecided", "The pool's condition cannot be evaluated for the machine's claims", "The gateway's log names the failing part of `condition` in the pool's pool.toml. Test each optional claim with has() first.";
}

impl ConditionRefusal {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NotMet { .. } => NOT_MET,
            Self::Undecided { .. } => UNDECIDED,
        }
    }

    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::NotMet { accepted } | Self::Undecided { accepted } => Some(accepted),
        }
    }
}

impl Condition {
    /// Parses and checks a condition.
    ///
    /// # Errors
    /// [`ConditionError`].
    pub fn parse(source: &str) -> Result<Self, ConditionError> {
        source::check(source)?;
        Ok(Self {
            source: source.to_owned(),
            parsed: Arc::new(Parsed::parse(source)?),
        })
    }

    /// Returns the condition's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The most steps that it can take: what it was let in for.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.parsed.steps()
    }

    /// Checks that each claim that it names can exist, and each part of a boot if the section of a kind has these PCRs quoted. The error says
    /// in words why not.
    pub(crate) fn check(&self, asked_pcrs: impl Fn(&str) -> Option<BTreeSet<u8>>) -> Result<(), String> {
        // It would never be there, and `has()` would say so of any boot.
        if self.parsed.asks_for_boot_elsewhere() {
            return Err("facts about the boot must be written as claims.<kind>.boot.<part>".to_owned());
        }
        self.parsed.boot().iter().try_for_each(|mention| mention.check(&asked_pcrs))?;
        names::check(self.parsed.expression())
    }

    /// Returns whether the condition mentions only the measured boot: PCRs, and what the event log has shown.
    #[must_use]
    pub fn is_on_what_was_booted(&self) -> bool {
        self.parsed.is_on_what_was_booted()
    }

    pub(crate) fn appraise(&self, claims: &Claims) -> Result<(), ConditionRefusal> {
        match self.holds_of(claims) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ConditionRefusal::NotMet {
                accepted: Withheld::from_text(self.source.clone()),
            }),
            Err(problem) => Err(self.undecided(&problem)),
        }
    }

    /// Returns whether the condition holds of `claims`: it sees them as a record has them, and the parts of the measured boot that it
    /// names. The error says, for a person, why it is neither true nor false.
    ///
    /// # Errors
    /// What went wrong, in words, and what is not proven that it names.
    pub fn holds_of(&self, claims: &Claims) -> Result<bool, String> {
        let mut seen = serde_json::to_value(claims).map_err(|error| error.to_string())?;
        let missing = booted::add(&mut seen, self.parsed.boot(), claims)?;
        self.evaluate(&seen).map_err(|problem| {
            let all: Vec<String> = std::iter::once(problem).chain(missing).collect();
            all.join("; ")
        })
    }

    /// Returns whether the condition holds of claims as a record has them, without what no record has. The error says, for a person, why it
    /// is neither true nor false.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub fn evaluate(&self, claims: &serde_json::Value) -> Result<bool, String> {
        values::check(claims)?;
        self.parsed.evaluate(claims)
    }

    fn undecided(&self, problem: &str) -> ConditionRefusal {
        ConditionRefusal::Undecided {
            accepted: Withheld::from_text(format!("{} ({problem})", self.source)),
        }
    }
}

/// Compares the texts that were written.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Condition {}

impl TryFrom<String> for Condition {
    type Error = ConditionError;

    fn try_from(source: String) -> Result<Self, ConditionError> {
        Self::parse(&source)
    }
}

impl From<Condition> for String {
    fn from(condition: Condition) -> Self {
        condition.source
    }
}
