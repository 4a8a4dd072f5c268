//! Administrative acts, in the form that they have in the store's outbox and in their records.

mod by;
mod verb;

use std::path::Path;

pub use by::{By, ByObject};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use verb::Verb;

/// Version of the document. A release leaves versions that it does not know to a release that does.
const VERSION: u32 = 1;
/// Most things that one act names: a machine has few names, and a token few predecessors. With the longest values they take a quarter of a
/// megabyte.
const THINGS_LIMIT: usize = 64;
/// Longest reason of a refusal that is kept, in characters.
const REASON_LIMIT_CHARACTERS: usize = 1000;

/// An act of an administrator, or of a gateway itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Act {
    pub v: u32,
    /// Its id in the outbox. The same id twice is one act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox: Option<String>,
    pub verb: Verb,
    /// Time of the act, in seconds since 1970, by the clock of the program that did it.
    pub at: u64,
    pub by: By,
    /// Reason for which nothing was done, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Things that were changed by the act.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub things: Vec<ValueChange>,
    /// Number of further things that are not named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// A thing before and after an act.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueChange {
    pub kind: String,
    /// Identifier, without secrets or anything that one could be guessed by.
    pub id: String,
    /// Value before, without secrets; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Value after, without secrets; absent if the thing is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

impl ValueChange {
    /// Returns a file that holds secrets: its contents are not described.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self {
            kind: "file".to_owned(),
            id: path.display().to_string(),
            before: None,
            after: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Act {
    /// Returns the act of changing these things.
    #[must_use]
    pub fn done(verb: Verb, at: u64, by: By, mut things: Vec<ValueChange>) -> Self {
        let more = things.len().saturating_sub(THINGS_LIMIT);
        things.truncate(THINGS_LIMIT);
        Self {
            v: VERSION,
            outbox: None,
            verb,
            at,
            by,
            refused: None,
            things,
            more: u64::try_from(more).unwrap_or(u64::MAX),
        }
    }

    /// Returns the change of these things as so many acts that each thing is named.
    #[must_use]
    pub fn all_done(verb: Verb, at: u64, by: &By, things: &[ValueChange]) -> Vec<Self> {
        let parts = things.chunks(THINGS_LIMIT);
        parts.map(|part| Self::done(verb, at, by.clone(), part.to_vec())).collect()
    }

    /// Returns an act that was refused, with the reason.
    #[must_use]
    pub fn refused(verb: Verb, at: u64, by: By, why: &str) -> Self {
        Self {
            refused: Some(why.chars().take(REASON_LIMIT_CHARACTERS).collect()),
            ..Self::done(verb, at, by, Vec::new())
        }
    }

    /// Parses an act from the outbox. `None` if it was written by another release and is not understood.
    #[must_use]
    pub fn read(id: &str, text: &str) -> Option<Self> {
        let act: Self = serde_json::from_str(text).ok()?;
        (act.v == VERSION).then(|| Self {
            outbox: Some(id.to_owned()),
            ..act
        })
    }
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            verb,
            by,
            refused,
            things,
            more,
            ..
        } = self;
        write!(f, "{verb} by {by}")?;
        if let Some(why) = refused {
            return write!(f, ", refused: {why}");
        }
        let mut separator = ": ";
        for ValueChange { kind, id, before, after } in things {
            let became = match (before, after) {
                (None, None) => "written",
                (None, _) => "new",
                (_, None) => "gone",
                _ => "changed",
            };
            write!(f, "{separator}{kind} {id:?} {became}")?;
            separator = ", ";
        }
        match more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn acts_are_split_at_the_limit_of_changes() {
        let thing = |number: usize| ValueChange {
            kind: "pool".to_owned(),
            id: number.to_string(),
            before: None,
            after: Some(Value::from(1)),
        };
        for count in [0, 1, THINGS_LIMIT, THINGS_LIMIT + 1, 3 * THINGS_LIMIT] {
            let things: Vec<ValueChange> = (0..count).map(thing).collect();
            let acts = Act::all_done(Verb::GatewayReload, 1, &By::gateway(None), &things);
            assert!(acts.iter().all(|act| act.more == 0 && act.verb == Verb::GatewayReload));
            let named: Vec<ValueChange> = acts.into_iter().flat_map(|act| act.things).collect();
            assert_eq!(named, things);
            let act = Act::done(Verb::GatewayReload, 1, By::gateway(None), things);
            assert_eq!(act.more, u64::try_from(count.saturating_sub(THINGS_LIMIT)).unwrap());
        }
    }
}
