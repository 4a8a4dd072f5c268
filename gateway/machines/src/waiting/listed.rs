//! Questions as an administrator sees them.

use std::collections::BTreeMap;

use attest_log::Acceptable;
use attest_store::{EntryKind, Store, StoreError, Transact};

use super::questions::{Answered, Of, Question, QuestionSnapshot, WaitingMachine};
use crate::enrolment;

/// Maximum number of machines listed with a question: as many as an administrator checks before accepting.
const MACHINES_LIMIT: usize = 8;
/// Maximum number of overlapping questions listed with a question.
const BESIDE_LIMIT: usize = 4;

/// A question, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionRow {
    pub pool: String,
    pub id: String,
    pub question: Question,
    /// Number of machines that have shown all of its values, alone or with others. Of an unknown machine or a name it is one.
    pub machines: usize,
    /// Time when a machine last showed them, in seconds since 1970.
    pub last: u64,
    /// The first machines that have shown exactly these values, and how many more there are.
    pub showing: Vec<Showing>,
    pub more: usize,
    /// Questions of the pool that have values in common with it, and how many more there are.
    pub related: Vec<RelatedQuestion>,
    pub more_beside: usize,
    /// Machine that has the name that the question is about.
    pub owner: Option<String>,
    /// Set if enough machines have, so that the administrator was asked.
    pub is_asked: bool,
    pub answered: Option<Answered>,
}

/// A machine that has shown the values of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Showing {
    /// Identity of the machine.
    pub machine: String,
    /// Name of its node, if it has one.
    pub name: Option<String>,
    /// Start of its wait, in seconds since 1970.
    pub since: u64,
    /// The pool observes, and has let it in.
    pub observed: bool,
}

/// Another question that has values in common with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelatedQuestion {
    pub id: String,
    /// Number of machines that have shown that one.
    pub machines: usize,
    /// Keys of its values that this question does not have. If empty, accepting this question accepts that one too.
    pub more: Vec<String>,
}

/// Returns all questions, of one pool or of all, the oldest first.
///
/// # Errors
/// [`StoreError`].
pub async fn questions(store: &dyn Store, of: Option<&str>, now: u64) -> Result<Vec<QuestionRow>, StoreError> {
    let kept = QuestionSnapshot::list(store).await?;
    let mut rows = Vec::new();
    for (key, question) in kept.questions.iter().filter(|((pool, _), _)| of.is_none_or(|of| of == pool)) {
        let (pool, id) = key;
        let exactly: Vec<_> = kept.counting(pool, now).filter(|(_, waiting)| waiting.question == *id).collect();
        let answered = kept.answers.get(key).cloned();
        if exactly.is_empty() && answered.is_none() {
            // It has lapsed, and nobody has come since who takes it away.
            continue;
        }
        let mut beside = related_questions(&kept, key, question, now);
        let more_beside = beside.split_off(beside.len().min(BESIDE_LIMIT)).len();
        rows.push(QuestionRow {
            pool: pool.clone(),
            id: id.clone(),
            machines: kept.machine_count(pool, &question.about, now),
            last: exactly.iter().map(|(_, waiting)| waiting.last).max().unwrap_or(question.at),
            more: exactly.len().saturating_sub(MACHINES_LIMIT),
            showing: showing(store, exactly).await?,
            related: beside,
            more_beside,
            owner: match &question.about {
                Acceptable::Name { name, .. } => store.get(EntryKind::Name, name).await?.map(|entry| entry.value),
                _ => None,
            },
            is_asked: kept.asked.contains_key(key),
            answered,
            question: question.clone(),
        });
    }
    rows.sort_by(|a, b| (a.question.at, &a.id).cmp(&(b.question.at, &b.id)));
    Ok(rows)
}

/// Returns the machines that wait for an answer, each with its question.
///
/// # Errors
/// [`StoreError`].
pub async fn waiting(store: &dyn Store, now: u64) -> Result<BTreeMap<String, String>, StoreError> {
    let kept = QuestionSnapshot::list(store).await?;
    let is_refused = |pool: &String, question: &String| {
        let answer = kept.answers.get(&(pool.clone(), question.clone()));
        answer.is_some_and(Answered::is_no)
    };
    let waits = |pool: &String, waiting: &WaitingMachine| waiting.until > now && !waiting.observed && !is_refused(pool, &waiting.question);
    let machines = kept.machines.iter().filter(|((pool, _), waiting)| waits(pool, waiting));
    Ok(machines
        .map(|((_, machine), waiting)| (machine.clone(), waiting.question.clone()))
        .collect())
}

/// Returns the first waiting machines with their names; the longest wait comes first.
async fn showing(store: &dyn Store, mut machines: Vec<(&str, &WaitingMachine)>) -> Result<Vec<Showing>, StoreError> {
    machines.sort_by_key(|(machine, waiting)| (waiting.since, *machine));
    let mut showing = Vec::new();
    for (machine, waiting) in machines.into_iter().take(MACHINES_LIMIT) {
        showing.push(Showing {
            machine: machine.to_owned(),
            name: name_of(store, machine).await?,
            since: waiting.since,
            observed: waiting.observed,
        });
    }
    Ok(showing)
}

/// Returns the name under which it attested or, before it has, the one that the administrator gave its EK.
async fn name_of(store: &dyn Store, machine: &str) -> Result<Option<String>, StoreError> {
    if let Some(entry) = store.get(EntryKind::NameOf, machine).await? {
        return Ok(Some(entry.value));
    }
    let Some(ek) = machine.strip_prefix("tpm:").and_then(|digest| digest.parse().ok()) else {
        return Ok(None);
    };
    let record = store.read(move |transaction| enrolment::allowlisted(transaction, ek)).await?;
    Ok(record.and_then(|record| record.name))
}

/// Returns the pool's open questions that have values in common with this one, and machines. Those with most machines come first.
fn related_questions(kept: &QuestionSnapshot, key: &Of, question: &Question, now: u64) -> Vec<RelatedQuestion> {
    let own = question.about.keys();
    let open = |of: &&Of| of.0 == key.0 && *of != key && !kept.answers.contains_key(*of);
    let mut all: Vec<RelatedQuestion> = kept
        .questions
        .keys()
        .filter(open)
        .filter_map(|of| {
            let other = kept.questions.get(of)?;
            let (common, more): (Vec<String>, Vec<String>) = other.about.keys().into_iter().partition(|key| own.contains(key));
            let machines = kept.counting(&of.0, now).filter(|(_, waiting)| waiting.question == of.1).count();
            (!common.is_empty() && machines > 0).then(|| RelatedQuestion {
                id: of.1.clone(),
                machines,
                more,
            })
        })
        .collect();
    all.sort_by(|a, b| (b.machines, &a.id).cmp(&(a.machines, &b.id)));
    all
}
