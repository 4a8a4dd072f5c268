//! The one thing for which a machine was refused and that an administrator may accept.

use std::collections::BTreeSet;
use std::fmt;

use attest::reference_sets::NewValue;
use serde::{Deserialize, Serialize};

/// Obstacle of a machine that was refused for nothing else. A command of the administrator removes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Acceptable {
    /// Booted values that no reference value of the pool has.
    Values(Vec<NewValue>),
    /// Digest of the EK of a TPM that nobody endorses.
    Ek(String),
    /// A machine that the pool's inventory does not list.
    Machine {
        identity: String,
        /// Its TPM, if it is an instance that attests with one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tpm: Option<String>,
    },
    /// A name that belongs to another machine, or is not the machine's own.
    Name {
        name: String,
        /// The machine that asks for it.
        identity: String,
    },
    /// A step backwards in the history of a TPM.
    History {
        tpm: String,
        /// State at the last trusted attestation, and now.
        change: String,
    },
}

/// An obstacle as one row of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptableRow {
    /// Category of the value.
    pub what: String,
    /// The value as an administrator compares it: a digest, a name, or a line.
    pub value: String,
    /// Name that the value has, and who gives it; empty if unknown.
    pub called: String,
}

impl Acceptable {
    /// Returns whether nobody has enrolled the machine. Anybody can present such machines, as many as he likes.
    #[must_use]
    pub const fn is_unknown_machine(&self) -> bool {
        matches!(self, Self::Ek(_) | Self::Machine { .. })
    }

    /// Returns whether an acceptance changes the store alone: it takes effect at once, at every gateway.
    #[must_use]
    pub const fn is_in_store(&self) -> bool {
        matches!(self, Self::Ek(_) | Self::Name { .. } | Self::History { .. })
    }

    /// Returns the booted values; none for other obstacles.
    #[must_use]
    pub fn values(&self) -> &[NewValue] {
        match self {
            Self::Values(values) => values,
            _ => &[],
        }
    }

    /// Returns what identifies the values, sorted and without duplicates. Names that machines give them are not part of it.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<String> {
        match self {
            Self::Values(values) => values.iter().map(NewValue::key).collect(),
            Self::Ek(digest) => [format!("ek {digest}")].into(),
            Self::Machine { identity, tpm: None } => [format!("machine {identity}")].into(),
            Self::Machine { identity, tpm: Some(tpm) } => [format!("machine {identity} {tpm}")].into(),
            Self::Name { name, identity } => [format!("name {name} for {identity}")].into(),
            Self::History { tpm, change } => [format!("history {tpm}: {change}")].into(),
        }
    }

    /// Returns one row for each value.
    #[must_use]
    pub fn rows(&self) -> Vec<AcceptableRow> {
        let row = |what: &str, value: &str, called: &str| {
            let [what, value, called] = [what, value, called].map(str::to_owned);
            vec![AcceptableRow { what, value, called }]
        };
        match self {
            Self::Values(values) => {
                let each = values.iter().map(|value| {
                    let key = value.key();
                    AcceptableRow {
                        what: value.wanted.description(),
                        value: key.split_once(' ').map_or(key.as_str(), |(_, digest)| digest).to_owned(),
                        called: value.called(),
                    }
                });
                each.collect()
            }
            Self::Ek(digest) => row("TPM that nobody endorses", digest, ""),
            Self::Machine { identity, tpm } => row("machine that is not in the inventory", identity, tpm.as_deref().unwrap_or_default()),
            Self::Name { name, identity } => row("name that is not the machine's own", name, identity),
            Self::History { tpm, change } => row("history of a TPM", change, tpm),
        }
    }
}

/// Returns the command that accepts what a decision refused a machine for.
#[must_use]
pub fn accept_command(decision: &str) -> String {
    format!("attest-gateway waiting accept --record {decision}")
}

/// Number of values that a line names.
const NAMED_LIMIT: usize = 3;

/// The first values in words, and how many more there are.
impl fmt::Display for Acceptable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values(values) => {
                for (place, value) in values.iter().take(NAMED_LIMIT).enumerate() {
                    let separator = if place == 0 { "" } else { "; " };
                    write!(f, "{separator}{value}")?;
                    let called = value.called();
                    if !called.is_empty() {
                        write!(f, " ({called})")?;
                    }
                }
                match values.len().saturating_sub(NAMED_LIMIT) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
            Self::Ek(digest) => write!(f, "nobody endorses EK {digest}"),
            Self::Machine { identity, tpm: None } => write!(f, "{identity} is not in the pool's inventory"),
            Self::Machine { identity, tpm: Some(tpm) } => write!(f, "{identity} with {tpm} is not in the pool's inventory"),
            Self::Name { name, identity } => write!(f, "{identity} asks for the name {name}, which is not its own"),
            Self::History { tpm, change } => write!(f, "{tpm} went backwards: {change}"),
        }
    }
}
