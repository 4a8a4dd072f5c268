//! Store entries, all of one kind: questions, waiting machines, requests to the administrator, and answers.

use std::collections::{BTreeMap, BTreeSet};

use attest_log::Acceptable;
use attest_store::{EntryKind, Store, StoreEntry, StoreError};
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First line of the text that is hashed into a question's id. It separates these digests from all others.
const DOMAIN: &str = "attest-gateway/v1/question\n";
/// Bytes of a digest in a question's id. An attacker cannot choose two sets of digests that have the same half of one.
const ID_BYTES: usize = 16;

pub(super) const KIND: EntryKind = EntryKind::Waiting;

/// Age in seconds at which a question without a waiting machine is deleted. A younger one may be about to get its machine's entry.
const UNCLAIMED_SECONDS: u64 = 600;

/// Prefixes of the ids of entries.
const QUESTION: &str = "question";
const MACHINE: &str = "machine";
const ASKED: &str = "asked";
const ANSWER: &str = "answer";

/// Question that machines wait for. The entry does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    pub about: Acceptable,
    /// Time when it was written, in seconds since 1970.
    pub at: u64,
    /// The first machine that has shown it, by its identity.
    pub machine: String,
    /// Name that this machine asks for. Unverified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Network of this machine.
    pub network: String,
    /// Number of booted values for which this machine waits next.
    #[serde(default)]
    pub then_values: usize,
    /// The record of that machine's evidence.
    pub decision: String,
}

/// A machine that waits, has waited in vain, or was let in with these values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitingMachine {
    pub question: String,
    /// Start of its wait for this question, in seconds since 1970.
    pub since: u64,
    /// Time when its return was last recorded.
    pub last: u64,
    /// Time until which it counts.
    pub until: u64,
    /// Start of the period in which `changes` counts.
    pub began: u64,
    pub changes: u32,
    /// The pool only observes: the machine was let in, and does not wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
}

/// Request to the administrator, as text for the attestation log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedEvent {
    pub at: u64,
    /// Number of machines that had shown these values by then.
    pub machines: usize,
    /// The record of the first one's evidence.
    pub decision: String,
    /// The first values of the question.
    pub values: Vec<String>,
    /// Number of values that are not listed.
    pub more: usize,
}

/// Answer of an administrator to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    pub said: QuestionAnswer,
    pub at: u64,
    pub by: String,
}

/// Content of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum QuestionAnswer {
    Accepted {
        /// Place where it was written: a file, or the allowlist.
        to: String,
    },
    Refused {
        reason: String,
    },
}

/// Returns the id of a question of a pool. It depends on the values alone, not on the names that machines give them.
pub(super) fn question_id(pool: &str, about: &Acceptable) -> String {
    let mut context = Context::new(&SHA256);
    context.update(DOMAIN.as_bytes());
    for part in std::iter::once(pool.to_owned()).chain(about.keys()) {
        context.update(part.as_bytes());
        context.update(b"\n");
    }
    let digest = context.finish();
    HEXLOWER.encode(digest.as_ref().get(..ID_BYTES).unwrap_or_default())
}

fn id(what: &str, pool: &str, of: &str) -> String {
    format!("{what}:{pool}:{of}")
}

pub(super) fn question_key(pool: &str, question: &str) -> String {
    id(QUESTION, pool, question)
}

pub(super) fn machine_key(pool: &str, machine: &str) -> String {
    id(MACHINE, pool, machine)
}

pub(super) fn asked_key(pool: &str, question: &str) -> String {
    id(ASKED, pool, question)
}

pub(super) fn answer_key(pool: &str, question: &str) -> String {
    id(ANSWER, pool, question)
}

/// A pool, and the id of a question or machine.
pub(super) type Of = (String, String);

/// Snapshot of all entries.
#[derive(Debug, Default)]
pub(super) struct QuestionSnapshot {
    pub questions: BTreeMap<Of, Question>,
    /// The keys of each question's values.
    keys: BTreeMap<Of, BTreeSet<String>>,
    pub machines: BTreeMap<Of, WaitingMachine>,
    pub asked: BTreeMap<Of, AskedEvent>,
    pub answers: BTreeMap<Of, Answered>,
}

impl QuestionSnapshot {
    pub(crate) async fn list(store: &dyn Store) -> Result<Self, StoreError> {
        let mut kept = Self::default();
        for entry in store.list(KIND).await? {
            let mut parts = entry.id.splitn(3, ':');
            let (Some(what), Some(pool), Some(of)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let of = (pool.to_owned(), of.to_owned());
            match what {
                QUESTION => {
                    let question: Question = read(&entry)?;
                    kept.keys.insert(of.clone(), question.about.keys());
                    kept.questions.insert(of, question);
                }
                MACHINE => drop(kept.machines.insert(of, read(&entry)?)),
                ASKED => drop(kept.asked.insert(of, read(&entry)?)),
                ANSWER => drop(kept.answers.insert(of, read(&entry)?)),
                // A newer release's.
                _ => {}
            }
        }
        Ok(kept)
    }

    /// Returns the machines of a pool that still count.
    pub(crate) fn counting<'k>(&'k self, pool: &'k str, now: u64) -> impl Iterator<Item = (&'k str, &'k WaitingMachine)> {
        let machines = self
            .machines
            .iter()
            .filter(move |((of, _), waiting)| of == pool && waiting.until > now);
        machines.map(|((_, machine), waiting)| (machine.as_str(), waiting))
    }

    /// Returns the number of enrolled machines that still count.
    pub(crate) fn enrolled(&self, pool: &str, now: u64) -> usize {
        let is_unknown = |question: &str| {
            let asked = self.questions.get(&(pool.to_owned(), question.to_owned()));
            asked.is_some_and(|question| question.about.is_unknown_machine())
        };
        self.counting(pool, now)
            .filter(|(_, waiting)| !is_unknown(&waiting.question))
            .count()
    }

    /// Returns the number of machines that have shown these values, alone or with others: the minimum over the values.
    pub(crate) fn machine_count(&self, pool: &str, about: &Acceptable, now: u64) -> usize {
        let mut machines: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, waiting) in self.counting(pool, now) {
            *machines.entry(&waiting.question).or_default() += 1;
        }
        let with = |key: &String| -> usize {
            let questions = machines.iter().filter(|(question, _)| {
                let keys = self.keys.get(&(pool.to_owned(), (**question).to_owned()));
                keys.is_some_and(|keys| keys.contains(key))
            });
            questions.map(|(_, machines)| machines).sum()
        };
        about.keys().iter().map(with).min().unwrap_or(0)
    }

    /// Returns the unanswered questions of a pool, about enrolled machines or about unknown ones, for which a machine waits.
    pub(crate) fn open<'k>(
        &'k self,
        pool: &'k str,
        about_unknown: bool,
        (wait_seconds, now): (u64, u64),
    ) -> impl Iterator<Item = &'k Question> {
        // An unknown machine whose wait is over keeps no place.
        let holds = move |waiting: &WaitingMachine| !about_unknown || now.saturating_sub(waiting.since) < wait_seconds;
        let claimed: BTreeSet<&str> = self
            .counting(pool, now)
            .filter(|(_, waiting)| holds(waiting))
            .map(|(_, waiting)| waiting.question.as_str())
            .collect();
        let open = self.questions.iter().filter(move |(of, question)| {
            let is_live = claimed.contains(of.1.as_str()) || now.saturating_sub(question.at) < UNCLAIMED_SECONDS;
            of.0 == pool && is_live && question.about.is_unknown_machine() == about_unknown && !self.answers.contains_key(of)
        });
        open.map(|(_, question)| question)
    }

    /// Returns a refused question of this pool whose values are all among these: its id, and the answer.
    pub(crate) fn refusal(&self, pool: &str, about: &Acceptable) -> Option<(&str, &Answered)> {
        let all = about.keys();
        let mut refused = self.answers.iter().filter(|((of, _), answered)| of == pool && answered.is_no());
        let (of, answered) = refused.find(|(of, _)| self.keys.get(of).is_some_and(|refused| refused.is_subset(&all)))?;
        Some((of.1.as_str(), answered))
    }

    /// Returns the ids of entries that are no longer needed: machines not seen for a window, and questions that no machine waits for.
    /// Refused questions stay, because an administrator has decided them.
    pub(crate) fn lapsed(&self, now: u64) -> Vec<String> {
        let machines = self.machines.iter().filter(|(_, waiting)| waiting.until <= now);
        let machines = machines.map(|((pool, machine), _)| machine_key(pool, machine));
        let claimed: BTreeSet<(&str, &str)> = self
            .machines
            .iter()
            .filter(|(_, waiting)| waiting.until > now)
            .map(|((pool, _), waiting)| (pool.as_str(), waiting.question.as_str()))
            .collect();
        let is_refused = |of: &Of| self.answers.get(of).is_some_and(Answered::is_no);
        let unclaimed = self.questions.iter().filter(move |(of, question)| {
            let is_young = now.saturating_sub(question.at) < UNCLAIMED_SECONDS;
            !claimed.contains(&(of.0.as_str(), of.1.as_str())) && !is_refused(of) && !is_young
        });
        let questions = unclaimed.map(|(of, _)| of);
        // Of a question that is gone, nothing is left.
        let left = self
            .asked
            .keys()
            .chain(self.answers.keys())
            .filter(|of| !self.questions.contains_key(of));
        let gone: Vec<&Of> = questions.chain(left).collect();
        let gone = gone.into_iter().flat_map(|(pool, question)| {
            let ids = [asked_key(pool, question), answer_key(pool, question), question_key(pool, question)];
            let is_there = [
                self.asked.contains_key(&(pool.clone(), question.clone())),
                self.answers.contains_key(&(pool.clone(), question.clone())),
                self.questions.contains_key(&(pool.clone(), question.clone())),
            ];
            ids.into_iter()
                .zip(is_there)
                .filter_map(|(id, is_there)| is_there.then_some(id))
                .collect::<Vec<_>>()
        });
        machines.chain(gone).collect()
    }
}

impl WaitingMachine {
    /// Returns a new entry: the wait begins, unless the pool observes.
    pub(crate) fn begun(question: &str, now: u64, window_seconds: u64, observed: bool) -> Self {
        Self {
            question: question.to_owned(),
            since: now,
            last: now,
            until: now.saturating_add(window_seconds),
            began: now,
            changes: 0,
            observed,
        }
    }
}

impl Answered {
    /// Returns whether the answer is a refusal.
    #[must_use]
    pub const fn is_no(&self) -> bool {
        matches!(self.said, QuestionAnswer::Refused { .. })
    }
}

pub(super) fn read<T: DeserializeOwned>(entry: &StoreEntry) -> Result<T, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
}

pub(super) fn write<T: Serialize>(id: String, value: &T) -> Result<StoreEntry, StoreError> {
    match serde_json::to_string(value) {
        Ok(value) => Ok(StoreEntry { id, value }),
        Err(source) => Err(unreadable(&id, source)),
    }
}

fn unreadable(id: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: KIND.as_str(),
        id: id.to_owned(),
        source,
    }
}
