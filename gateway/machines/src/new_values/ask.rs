//! Decides whether a machine with values that are not accepted yet waits for an answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest::reference_sets::NewValue;
use attest_pool::NewValueRules;
use attest_store::{Store, StoreError};
use attest_system::clock::rfc3339;

use super::questions::{
    Answered, AskedEvent, KIND, Question, QuestionAnswer, QuestionSnapshot, WaitingMachine, answer_key, asked_key, machine_key,
    question_id, question_key, read, write,
};

/// Maximum number of open questions of a pool. A roll-out is one or a few. Further ones are refused as if waiting did not exist; existing
/// ones are never evicted.
pub(super) const QUESTIONS_LIMIT: usize = 64;
/// Maximum number of waiting machines of a pool: as many as boot in the first part of any roll-out, and less than a megabyte.
pub(super) const MACHINES_LIMIT: usize = 1024;
/// Times that a machine may show other values within a window and restart its wait. A machine that is updated twice in a window does so
/// twice.
pub(super) const CHANGES_LIMIT: u32 = 3;
/// Fraction of a window after which a machine's return is recorded again; from then on it counts for another window.
const LAST_PARTS: u64 = 8;
/// Maximum age of the cached entries for a machine that already waits. For this machine, the answer to another question takes effect that
/// much later.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Age in seconds at which a question without a waiting machine is deleted. A younger one may be about to get its machine's entry.
const UNCLAIMED_SECONDS: u64 = 600;
/// Entries that are deleted at once; the next request deletes the rest.
const TAKEN_AT_ONCE: usize = 32;
/// Maximum number of values named in a request to the administrator.
const NAMED_LIMIT: usize = 5;

/// A machine with the values that it has shown, its pool and decision.
#[derive(Debug, Clone, Copy)]
pub struct ObservedBoot<'a> {
    pub pool: &'a str,
    pub rules: &'a NewValueRules,
    /// Identity of the machine.
    pub machine: &'a str,
    pub values: &'a [NewValue],
    pub decision: &'a str,
    /// The pool only observes: the machine is let in in any case, and does not wait.
    pub observed: bool,
    /// Current time, in seconds since 1970.
    pub now: u64,
}

/// The question that a machine waits for, or is counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub question: String,
    /// Number of machines that have shown these values.
    pub machines: usize,
    /// Set if this attempt caused the request to the administrator.
    pub is_put: bool,
    /// Set if the administrator has been asked, by this or an earlier attempt.
    pub is_asked: bool,
    /// Time for which it is still told to retry, in seconds.
    pub left_seconds: u64,
}

/// Result of asking for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineStep {
    /// The machine begins to wait.
    Begins(Wait),
    /// The machine already waits.
    Waits(Wait),
    /// It is refused, as if waiting did not exist.
    Refused(NotAwaited),
}

/// Reason why a machine does not wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAwaited {
    #[error("question {question} was denied by {by} at {}: {reason}", rfc3339(*.at))]
    Denied {
        question: String,
        by: String,
        at: u64,
        reason: String,
    },
    #[error("the machine has waited since {} for an answer to question {question}", rfc3339(*.since))]
    Over { question: String, since: u64 },
    #[error("not waiting: the machine has booted other values {CHANGES_LIMIT} times before")]
    Changes,
    #[error("not waiting: the pool has {QUESTIONS_LIMIT} open questions, the maximum")]
    Questions,
    #[error("not waiting: {MACHINES_LIMIT} machines of the pool wait already, the maximum")]
    Machines,
}

/// Store access for waiting machines. Its writes are not logged as acts, except for the request to the administrator.
#[derive(Debug)]
pub struct AwaitedValues {
    store: Arc<dyn Store>,
    /// The same store, where writes are attributed to the gateway.
    own: Arc<dyn Store>,
    snapshot: Mutex<Option<(Instant, Arc<QuestionSnapshot>)>>,
}

impl AwaitedValues {
    #[must_use]
    pub const fn new(store: Arc<dyn Store>, own: Arc<dyn Store>) -> Self {
        Self {
            store,
            own,
            snapshot: Mutex::new(None),
        }
    }

    /// Decides whether a machine waits. It was refused for these values alone, in evidence that was verified in full; or would have been,
    /// if the pool did not observe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ask(&self, shown: ObservedBoot<'_>) -> Result<MachineStep, StoreError> {
        let ObservedBoot {
            pool,
            rules,
            machine,
            observed,
            now,
            ..
        } = shown;
        let question = question_id(pool, shown.values);
        let wanted = [machine_key(pool, machine), answer_key(pool, &question)].map(|id| (KIND, id));
        let mut found = self.store.get_all(wanted.to_vec()).await?.into_iter();
        let (own, answer) = (found.next().flatten(), found.next().flatten());
        let own = own
            .map(|own| read::<WaitingMachine>(&own))
            .transpose()?
            .filter(|own| own.until > now && own.since <= now);
        let answer = answer.map(|answer| read::<Answered>(&answer)).transpose()?;
        let begins = own.as_ref().is_none_or(|own| own.question != question || own.observed != observed);
        let kept = if begins { self.refresh(now).await? } else { self.cached().await? };
        let denied = answer
            .as_ref()
            .filter(|answer| answer.is_no())
            .map(|answer| (question.as_str(), answer));
        if let Some((
            question,
            Answered {
                said: QuestionAnswer::Denied { reason },
                at,
                by,
            },
        )) = denied.or_else(|| kept.denial(pool, shown.values))
        {
            if own.is_some() {
                self.store.remove(KIND, &machine_key(pool, machine)).await?;
            }
            return Ok(MachineStep::Refused(NotAwaited::Denied {
                question: question.to_owned(),
                by: by.clone(),
                at: *at,
                reason: reason.clone(),
            }));
        }
        let waiting = match own {
            Some(own) if own.question == question && own.observed == observed => own,
            // Its pool observes from now on, or does not any more: that is none of its own doing, and it has not waited yet.
            Some(own) if own.question == question => WaitingMachine {
                since: now,
                observed,
                ..own
            },
            Some(own) => match own.update(&question, &shown) {
                Some(anew) => anew,
                None => return Ok(MachineStep::Refused(NotAwaited::Changes)),
            },
            None if kept.counting(pool, now).count() >= MACHINES_LIMIT => return Ok(MachineStep::Refused(NotAwaited::Machines)),
            None => WaitingMachine::begun(&question, now, rules.window_seconds, observed),
        };
        let of = (pool.to_owned(), question.clone());
        let is_there = kept.questions.contains_key(&of);
        if begins && !is_there && kept.open(pool) >= QUESTIONS_LIMIT {
            return Ok(MachineStep::Refused(NotAwaited::Questions));
        }
        if !is_there {
            self.write_question(&shown, &question).await?;
        }
        if begins || now.saturating_sub(waiting.last) >= rules.window_seconds / LAST_PARTS {
            let until = now.saturating_add(rules.window_seconds);
            let seen = WaitingMachine {
                last: now,
                until,
                ..waiting.clone()
            };
            self.store.put(KIND, write(machine_key(pool, machine), &seen)?).await?;
        }
        let waited = now.saturating_sub(waiting.since);
        if !observed && waited >= rules.wait_seconds {
            let since = waiting.since;
            return Ok(MachineStep::Refused(NotAwaited::Over { question, since }));
        }
        let kept = if begins || !is_there { self.refresh(now).await? } else { kept };
        let machines = kept.machine_count(pool, shown.values, now);
        let is_asked = kept.asked.contains_key(&of);
        let is_put = !is_asked && machines >= rules.machines && self.put(&shown, &question, machines).await?;
        let wait = Wait {
            machines,
            is_put,
            is_asked: is_asked || machines >= rules.machines,
            left_seconds: rules.wait_seconds.saturating_sub(waited),
            question,
        };
        Ok(if begins {
            MachineStep::Begins(wait)
        } else {
            MachineStep::Waits(wait)
        })
    }

    /// Ends the wait of a machine that is trusted and has no new values. Returns its question, and since when it has waited, if it has.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ended(&self, pool: &str, machine: &str) -> Result<Option<(String, u64)>, StoreError> {
        let id = machine_key(pool, machine);
        let Some(entry) = self.store.get(KIND, &id).await? else {
            return Ok(None);
        };
        let WaitingMachine {
            question, since, observed, ..
        } = read(&entry)?;
        self.store.remove(KIND, &id).await?;
        Ok((!observed).then_some((question, since)))
    }

    async fn write_question(&self, shown: &ObservedBoot<'_>, question: &str) -> Result<(), StoreError> {
        let entry = Question {
            values: shown.values.to_vec(),
            at: shown.now,
            machine: shown.machine.to_owned(),
            decision: shown.decision.to_owned(),
        };
        let entry = write(question_key(shown.pool, question), &entry)?;
        self.store.insert(KIND, entry).await.map(drop)
    }

    /// Requests an answer from the administrator; one of several gateways does so. Returns whether this one did.
    async fn put(&self, shown: &ObservedBoot<'_>, question: &str, machines: usize) -> Result<bool, StoreError> {
        let asked = AskedEvent {
            at: shown.now,
            machines,
            decision: shown.decision.to_owned(),
            values: shown.values.iter().take(NAMED_LIMIT).map(NewValue::key).collect(),
            more: shown.values.len().saturating_sub(NAMED_LIMIT),
        };
        let entry = write(asked_key(shown.pool, question), &asked)?;
        Ok(self.own.insert(KIND, entry).await?.is_none())
    }

    /// Returns the entries from the cache, if it is recent.
    async fn cached(&self) -> Result<Arc<QuestionSnapshot>, StoreError> {
        let known = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some((at, kept)) if at.elapsed() < KNOWN_FOR => Ok(kept),
            _ => self.list().await,
        }
    }

    /// Returns the current entries, and deletes lapsed ones.
    async fn refresh(&self, now: u64) -> Result<Arc<QuestionSnapshot>, StoreError> {
        let kept = self.list().await?;
        for id in kept.lapsed(now, UNCLAIMED_SECONDS).into_iter().take(TAKEN_AT_ONCE) {
            self.store.remove(KIND, &id).await?;
        }
        Ok(kept)
    }

    async fn list(&self) -> Result<Arc<QuestionSnapshot>, StoreError> {
        let kept = Arc::new(QuestionSnapshot::list(&*self.store).await?);
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(&kept)));
        Ok(kept)
    }
}

impl WaitingMachine {
    /// Returns the entry of a machine that shows other values; `None` if it has done so too often.
    fn update(&self, question: &str, shown: &ObservedBoot<'_>) -> Option<Self> {
        let ObservedBoot { rules, observed, now, .. } = *shown;
        let begun = Self::begun(question, now, rules.window_seconds, observed);
        if now.saturating_sub(self.began) >= rules.window_seconds {
            return Some(begun);
        }
        (self.changes < CHANGES_LIMIT).then(|| Self {
            began: self.began,
            changes: self.changes.saturating_add(1),
            ..begun
        })
    }
}
