//! What was done, by whom: as it waits in the store's outbox, and as its record has it.

mod by;
mod verb;

use std::path::Path;

pub use by::{By, ByObject};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use verb::Verb;

/// The document's version. A release leaves those that it does not know to one that does.
const VERSION: u32 = 1;
/// Things that one act names at most: a machine has few names, and a token few before it. With the longest values a quarter of a megabyte.
const THINGS_LIMIT: usize = 64;
/// Longest reason of a refusal that is kept, in characters.
const REASON_LIMIT_CHARACTERS: usize = 1000;

/// What somebody has done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Act {
    pub v: u32,
    /// Its id in the outbox. The same id twice is one act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox: Option<String>,
    pub verb: Verb,
    /// When it was done, seconds since 1970, by the clock of whoever did it.
    pub at: u64,
    pub by: By,
    /// Why nothing was done, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What it was done to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub things: Vec<Thing>,
    /// How many more there were than are named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// What something was, and what it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thing {
    pub kind: String,
    /// No secret, nor anything that one could be guessed by.
    pub id: String,
    /// Without secrets; not there if there was nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Likewise; not there if there is nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

impl Thing {
    /// A file that holds secrets: nothing is said of what is in it.
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
    /// That these things were changed.
    #[must_use]
    pub fn done(verb: Verb, at: u64, by: By, mut things: Vec<Thing>) -> Self {
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

    /// That these things were changed, in as many acts as it takes to name each of them.
    #[must_use]
    pub fn all_done(verb: Verb, at: u64, by: &By, things: &[Thing]) -> Vec<Self> {
        let parts = things.chunks(THINGS_LIMIT);
        parts.map(|part| Self::done(verb, at, by.clone(), part.to_vec())).collect()
    }

    /// That it was tried, and why it came to nothing.
    #[must_use]
    pub fn refused(verb: Verb, at: u64, by: By, why: &str) -> Self {
        Self {
            refused: Some(why.chars().take(REASON_LIMIT_CHARACTERS).collect()),
            ..Self::done(verb, at, by, Vec::new())
        }
    }

    /// An act that has waited in the outbox. `None` if another release has put it there, which this one does not understand.
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
        for Thing { kind, id, before, after } in things {
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
    fn each_of_many_things_is_named_by_one_act() {
        let thing = |number: usize| Thing {
            kind: "pool".to_owned(),
            id: number.to_string(),
            before: None,
            after: Some(Value::from(1)),
        };
        for count in [0, 1, THINGS_LIMIT, THINGS_LIMIT + 1, 3 * THINGS_LIMIT] {
            let things: Vec<Thing> = (0..count).map(thing).collect();
            let acts = Act::all_done(Verb::GatewayReload, 1, &By::gateway(None), &things);
            assert!(acts.iter().all(|act| act.more == 0 && act.verb == Verb::GatewayReload));
            let named: Vec<Thing> = acts.into_iter().flat_map(|act| act.things).collect();
            assert_eq!(named, things);
            let act = Act::done(Verb::GatewayReload, 1, By::gateway(None), things);
            assert_eq!(act.more, u64::try_from(count.saturating_sub(THINGS_LIMIT)).unwrap());
        }
    }
}
