//! Decides whether a machine that is refused for one acceptable thing waits for an answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest_log::Acceptable;
use attest_pool::WaitingRules;
use attest_store::{EntryKind, EntryTransaction, Store, StoreEntry, StoreError};
use attest_system::clock::rfc3339;

use super::questions::{
    Answered, AskedEvent, KIND, Question, QuestionAnswer, QuestionSnapshot, WaitingMachine, answer_key, asked_key, machine_key,
    question_id, question_key, read, write,
};

/// Maximum number of open questions of a pool about enrolled machines. A roll-out is one or a few. Further ones are refused as if waiting
/// did not exist; existing ones are never evicted.
pub(super) const QUESTIONS_LIMIT: usize = 64;
/// Maximum number of open questions of a pool about unknown machines: as many as an administrator reads one by one. More machines are
/// enrolled by a file.
pub(super) const UNKNOWN_LIMIT: usize = 64;
/// Maximum number of these that come from one network, so that one attacker leaves room for others.
pub(super) const UNKNOWN_OF_A_NETWORK_LIMIT: usize = 16;
/// Maximum number of enrolled machines of a pool that wait: as many as boot in the first part of any roll-out, and less than a megabyte.
pub(super) const MACHINES_LIMIT: usize = 1024;
/// Times that a machine may show other values within a window and restart its wait. A machine that is updated twice in a window does so
/// twice.
pub(super) const CHANGES_LIMIT: u32 = 3;
/// Fraction of a window after which a machine's return is recorded again; from then on it counts for another window.
const LAST_PARTS: u64 = 8;
/// Maximum age of the cached entries for a machine that already waits. For this machine, the answer to another question takes effect that
/// much later.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Entries that are deleted at once; the next request deletes the rest.
const TAKEN_AT_ONCE: usize = 32;
/// Maximum number of values named in a request to the administrator.
const NAMED_LIMIT: usize = 5;

/// A refused machine, with the one thing that it is refused for.
#[derive(Debug, Clone, Copy)]
pub struct WaitRequest<'a> {
    pub pool: &'a str,
    pub rules: &'a WaitingRules,
    /// Identity of the machine.
    pub machine: &'a str,
    /// Name that it asks for.
    pub name: Option<&'a str>,
    pub about: &'a Acceptable,
    /// Number of booted values for which it waits next, if this is accepted.
    pub then_values: usize,
    /// Network that it comes from.
    pub network: &'a str,
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
    NotWaiting(NotAwaited),
}

/// Reason why a machine does not wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAwaited {
    #[error("question {question} was refused by {by} at {}: {reason}", rfc3339(*.at))]
    Refused {
        question: String,
        by: String,
        at: u64,
        reason: String,
    },
    #[error("the machine has waited since {} for an answer to question {question}", rfc3339(*.since))]
    Over { question: String, since: u64 },
    #[error("not waiting: the machine has shown other values {CHANGES_LIMIT} times before")]
    Changes,
    #[error("not waiting: the pool has {QUESTIONS_LIMIT} open questions, the maximum")]
    Questions,
    #[error("not waiting: {MACHINES_LIMIT} machines of the pool wait already, the maximum")]
    Machines,
    #[error("not waiting: {UNKNOWN_LIMIT} unknown machines of the pool wait already, the maximum")]
    Unknown,
    #[error("not waiting: {UNKNOWN_OF_A_NETWORK_LIMIT} unknown machines of this network wait already, the maximum")]
    UnknownOfANetwork,
}

/// Store access for waiting machines. Its writes are not logged as acts, except for the request to the administrator.
#[derive(Debug)]
pub struct WaitingList {
    store: Arc<dyn Store>,
    /// The same store, where writes are attributed to the gateway.
    own: Arc<dyn Store>,
    snapshot: Mutex<Option<(Instant, Arc<QuestionSnapshot>)>>,
    /// Lets unknown machines begin one by one, so that many at once do not exceed their limit.
    unknown_begins: tokio::sync::Mutex<()>,
}

/// Returns the entry that [`end_wait`] reads.
#[must_use]
pub fn wanted(pool: &str, machine: &str) -> (EntryKind, String) {
    (KIND, machine_key(pool, machine))
}

/// Ends the wait of a machine that is trusted and has no new values. Returns its entry, if it has waited.
///
/// # Errors
/// [`StoreError`].
pub fn end_wait(transaction: &mut EntryTransaction<'_>, pool: &str, machine: &str) -> Result<Option<StoreEntry>, StoreError> {
    let id = machine_key(pool, machine);
    let waited = transaction.get(KIND, &id)?;
    if waited.is_some() {
        transaction.remove(KIND, &id)?;
    }
    Ok(waited)
}

/// Returns the question of a machine whose wait has ended, and since when it has waited; `None` if it was let in all the same.
///
/// # Errors
/// [`StoreError`] if the entry cannot be read.
pub fn waited_for(entry: &StoreEntry) -> Result<Option<(String, u64)>, StoreError> {
    let WaitingMachine {
        question, since, observed, ..
    } = read(entry)?;
    Ok((!observed).then_some((question, since)))
}

impl WaitingList {
    #[must_use]
    pub fn new(store: Arc<dyn Store>, own: Arc<dyn Store>) -> Self {
        Self {
            store,
            own,
            snapshot: Mutex::new(None),
            unknown_begins: tokio::sync::Mutex::default(),
        }
    }

    /// Decides whether a machine waits. It was refused for this alone, in evidence that was verified in full; or would have been, if the
    /// pool did not observe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ask(&self, request: WaitRequest<'_>) -> Result<MachineStep, StoreError> {
        let WaitRequest {
            pool,
            rules,
            machine,
            about,
            observed,
            now,
            ..
        } = request;
        let question = question_id(pool, about);
        let (own, answer) = self.own_entries(&request, &question).await?;
        if let Some(answer) = answer.as_ref().filter(|answer| answer.is_no()) {
            return self.refused(&request, own.is_some(), &question, answer).await;
        }
        if answer.is_some() && own.is_none() && about.is_in_store() {
            // It was accepted once, and is refused again: the store has changed since, so it is asked anew.
            for id in [answer_key(pool, &question), asked_key(pool, &question)] {
                self.store.remove(KIND, &id).await?;
            }
        }
        let begins = own.as_ref().is_none_or(|own| own.question != question || own.observed != observed);
        let is_unknown = about.is_unknown_machine();
        let mut turn = None;
        if begins && is_unknown {
            // Whoever comes when the list is full costs no listing of the store.
            if let Some(full) = unknown_limit(&*self.cached().await?, &request, &question) {
                return Ok(MachineStep::NotWaiting(full));
            }
            turn = Some(self.unknown_begins.lock().await);
        }
        let kept = if begins { self.refresh(now).await? } else { self.cached().await? };
        if let Some((question, answer)) = kept.refusal(pool, about) {
            return self.refused(&request, own.is_some(), question, answer).await;
        }
        let waiting = match own {
            Some(own) if own.question == question && own.observed == observed => own,
            // Its pool observes from now on, or does not any more: that is none of its own doing, and it has not waited yet.
            Some(own) if own.question == question => WaitingMachine {
                since: now,
                observed,
                ..own
            },
            Some(own) => match own.update(&question, &request) {
                Some(anew) => anew,
                None => return Ok(MachineStep::NotWaiting(NotAwaited::Changes)),
            },
            None if !is_unknown && kept.enrolled(pool, now) >= MACHINES_LIMIT => return Ok(MachineStep::NotWaiting(NotAwaited::Machines)),
            None => WaitingMachine::begun(&question, now, rules.window_seconds, observed),
        };
        let of = (pool.to_owned(), question.clone());
        let is_there = kept.questions.contains_key(&of);
        if begins && !is_there {
            let full = match is_unknown {
                true => unknown_limit(&kept, &request, &question),
                false => (kept.open(pool, false, (rules.wait_seconds, now)).count() >= QUESTIONS_LIMIT).then_some(NotAwaited::Questions),
            };
            if let Some(full) = full {
                return Ok(MachineStep::NotWaiting(full));
            }
        }
        if !is_there {
            self.write_question(&request, &question).await?;
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
            return Ok(MachineStep::NotWaiting(NotAwaited::Over { question, since }));
        }
        drop(turn);
        let kept = if begins || !is_there { self.refresh(now).await? } else { kept };
        let machines = kept.machine_count(pool, about, now);
        // Only booted values are asked about once several machines have them.
        let is_due = about.values().is_empty() || machines >= rules.machines;
        let is_asked = kept.asked.contains_key(&of);
        let is_put = !is_asked && is_due && self.put(&request, &question, machines).await?;
        let wait = Wait {
            machines,
            is_put,
            is_asked: is_asked || is_due,
            left_seconds: rules.wait_seconds.saturating_sub(waited),
            question,
        };
        Ok(if begins {
            MachineStep::Begins(wait)
        } else {
            MachineStep::Waits(wait)
        })
    }

    /// Returns the machine's entry, if it counts, and the answer to its question.
    async fn own_entries(
        &self,
        request: &WaitRequest<'_>,
        question: &str,
    ) -> Result<(Option<WaitingMachine>, Option<Answered>), StoreError> {
        let WaitRequest { pool, machine, now, .. } = *request;
        let wanted = [machine_key(pool, machine), answer_key(pool, question)].map(|id| (KIND, id));
        let mut found = self.store.get_all(wanted.to_vec()).await?.into_iter();
        let (own, answer) = (found.next().flatten(), found.next().flatten());
        let own = own
            .map(|own| read::<WaitingMachine>(&own))
            .transpose()?
            .filter(|own| own.until > now && own.since <= now);
        Ok((own, answer.map(|answer| read::<Answered>(&answer)).transpose()?))
    }

    /// Ends the wait of a machine, if it waits, whose question was refused.
    async fn refused(&self, request: &WaitRequest<'_>, waits: bool, question: &str, answer: &Answered) -> Result<MachineStep, StoreError> {
        if waits {
            self.store.remove(KIND, &machine_key(request.pool, request.machine)).await?;
        }
        let reason = match &answer.said {
            QuestionAnswer::Refused { reason } => reason.clone(),
            QuestionAnswer::Accepted { .. } => String::new(),
        };
        Ok(MachineStep::NotWaiting(NotAwaited::Refused {
            question: question.to_owned(),
            by: answer.by.clone(),
            at: answer.at,
            reason,
        }))
    }

    async fn write_question(&self, request: &WaitRequest<'_>, question: &str) -> Result<(), StoreError> {
        let entry = Question {
            about: request.about.clone(),
            at: request.now,
            machine: request.machine.to_owned(),
            name: request.name.map(str::to_owned),
            network: request.network.to_owned(),
            then_values: request.then_values,
            decision: request.decision.to_owned(),
        };
        let entry = write(question_key(request.pool, question), &entry)?;
        self.store.insert(KIND, entry).await.map(drop)
    }

    /// Requests an answer from the administrator; one of several gateways does so. Returns whether this one did.
    async fn put(&self, request: &WaitRequest<'_>, question: &str, machines: usize) -> Result<bool, StoreError> {
        let keys = request.about.keys();
        let asked = AskedEvent {
            at: request.now,
            machines,
            decision: request.decision.to_owned(),
            more: keys.len().saturating_sub(NAMED_LIMIT),
            values: keys.into_iter().take(NAMED_LIMIT).collect(),
        };
        let entry = write(asked_key(request.pool, question), &asked)?;
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
        for id in kept.lapsed(now).into_iter().take(TAKEN_AT_ONCE) {
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
    fn update(&self, question: &str, request: &WaitRequest<'_>) -> Option<Self> {
        let WaitRequest { rules, observed, now, .. } = *request;
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

/// Returns the limit that keeps another unknown machine from waiting, if one is reached.
fn unknown_limit(kept: &QuestionSnapshot, request: &WaitRequest<'_>, question: &str) -> Option<NotAwaited> {
    let WaitRequest {
        pool, network, rules, now, ..
    } = *request;
    let at = (rules.wait_seconds, now);
    if kept.questions.contains_key(&(pool.to_owned(), question.to_owned())) {
        return None;
    }
    let of_network = kept.open(pool, true, at).filter(|question| question.network == network).count();
    if of_network >= UNKNOWN_OF_A_NETWORK_LIMIT {
        return Some(NotAwaited::UnknownOfANetwork);
    }
    (kept.open(pool, true, at).count() >= UNKNOWN_LIMIT).then_some(NotAwaited::Unknown)
}
