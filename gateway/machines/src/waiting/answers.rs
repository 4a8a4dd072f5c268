//! Answers of administrators to questions.

use attest_log::Acceptable;
use attest_store::{EntryTransaction, Store, StoreError, Transact};
use attest_system::clock::rfc3339;

use super::questions::{Answered, KIND, Question, QuestionAnswer, QuestionSnapshot, answer_key, question_id, question_key, read, write};
use crate::enrolment::{self, EnrolmentError};
use crate::history;

/// Maximum number of refused questions of a pool about booted values: each boot with new values is compared with all of them.
const REFUSED_VALUES_LIMIT: usize = 64;
/// Maximum number of other refused questions of a pool. They stay until they are taken back.
const REFUSED_LIMIT: usize = 1024;
/// Longest reason, in characters: every record of a refusal contains it.
const REASON_LIMIT_CHARACTERS: usize = 200;

/// Reason why an answer was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("pool {pool} has no question {id:?}; to list all: `attest-gateway waiting list --for {pool}`")]
    Unknown { pool: String, id: String },
    #[error("question {id} was answered before, by {by}")]
    Answered { id: String, by: String },
    #[error("question {id} was not refused; only a refusal can be taken back")]
    NotRefused { id: String },
    #[error("--reason has {found} characters; use 1 to {REASON_LIMIT_CHARACTERS}")]
    Reason { found: usize },
    #[error(
        "pool {pool} has {limit} refused questions of this kind, the maximum; take one back that no machine shows any more: `attest-gateway waiting refuse ID --take-back`"
    )]
    TooMany { pool: String, limit: usize },
    #[error("EK {ek} was removed from the allowlist at {}; to endorse it again: `attest-gateway ek add {ek}`", rfc3339(*.at))]
    Removed {
        ek: String,
        /// Time of the removal, in seconds since 1970.
        at: u64,
    },
    #[error("{0:?} is not the digest of an EK")]
    Digest(String),
    #[error(transparent)]
    Enrolment(#[from] EnrolmentError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns a question with its answer, if there is one.
fn find(transaction: &mut EntryTransaction<'_>, pool: &str, id: &str) -> Result<(Question, Option<Answered>), AnswerError> {
    let (question, answer) = (question_key(pool, id), answer_key(pool, id));
    transaction.fetch([(KIND, question.as_str()), (KIND, answer.as_str())])?;
    let unknown = || AnswerError::Unknown {
        pool: pool.to_owned(),
        id: id.to_owned(),
    };
    let question = transaction.get(KIND, &question)?.ok_or_else(unknown)?;
    let answer = transaction.get(KIND, &answer)?;
    let answer = answer.as_ref().map(read).transpose()?;
    Ok((read(&question)?, answer))
}

/// Something that an administrator accepts.
#[derive(Debug, Clone)]
pub struct Acceptance {
    pub pool: String,
    pub about: Acceptable,
    /// Name for a machine whose EK is endorsed by it.
    pub name: Option<String>,
    pub answered: Answered,
}

/// Accepts: endorses the EK, moves the name, or forgets the history. Booted values, and machines of an inventory, are in files that the
/// caller has written. If it was asked about, also if it was refused, that is answered.
///
/// # Errors
/// [`AnswerError`]; nothing is written then.
pub async fn accept(store: &dyn Store, all: Vec<Acceptance>) -> Result<(), AnswerError> {
    store
        .transact(move |transaction| {
            for one in &all {
                accept_one(transaction, one)?;
            }
            Ok(())
        })
        .await
}

fn accept_one(transaction: &mut EntryTransaction<'_>, acceptance: &Acceptance) -> Result<(), AnswerError> {
    let Acceptance {
        pool,
        about,
        name,
        answered,
    } = acceptance;
    match about {
        Acceptable::Values(_) | Acceptable::Machine { .. } => {}
        Acceptable::Ek(digest) => {
            let ek = digest.parse().map_err(|_| AnswerError::Digest(digest.clone()))?;
            if let Some(at) = enrolment::allowlisted(transaction, ek)?.and_then(|record| record.removed) {
                return Err(AnswerError::Removed { ek: digest.clone(), at });
            }
            enrolment::endorse(transaction, ek, pool, name.as_deref(), answered.at)?;
        }
        Acceptable::Name { name, identity } => enrolment::rename(transaction, name, identity)?,
        Acceptable::History { tpm, .. } => drop(history::forget_tpm(transaction, tpm)?),
    }
    let id = question_id(pool, about);
    if transaction.get(KIND, &question_key(pool, &id))?.is_some() {
        transaction.put(KIND, write(answer_key(pool, &id), answered)?)?;
    }
    Ok(())
}

/// Refuses a question: machines that show all of its values are refused at once.
///
/// # Errors
/// [`AnswerError`].
pub async fn refuse(store: &dyn Store, pool: &str, id: &str, reason: &str, by: &str, now: u64) -> Result<(), AnswerError> {
    let found = reason.chars().count();
    if !(1..=REASON_LIMIT_CHARACTERS).contains(&found) || reason.chars().any(char::is_control) {
        return Err(AnswerError::Reason { found });
    }
    let kept = QuestionSnapshot::list(store).await?;
    let refused = |about_values: bool| {
        let of_pool = kept.answers.iter().filter(|((of, _), answered)| of == pool && answered.is_no());
        let same = of_pool.filter(|(of, _)| {
            let question = kept.questions.get(*of);
            question.is_some_and(|question| question.about.values().is_empty() != about_values)
        });
        same.count()
    };
    let [of_values, others] = [refused(true), refused(false)];
    let answered = Answered {
        said: QuestionAnswer::Refused { reason: reason.to_owned() },
        at: now,
        by: by.to_owned(),
    };
    let (pool, id) = (pool.to_owned(), id.to_owned());
    store
        .transact(move |transaction| {
            let (question, answer) = find(transaction, &pool, &id)?;
            if let Some(Answered { by, .. }) = answer.filter(Answered::is_no) {
                return Err(AnswerError::Answered { id: id.clone(), by });
            }
            let (found, limit) = match question.about.values().is_empty() {
                true => (others, REFUSED_LIMIT),
                false => (of_values, REFUSED_VALUES_LIMIT),
            };
            if found >= limit {
                return Err(AnswerError::TooMany { pool: pool.clone(), limit });
            }
            Ok(transaction.put(KIND, write(answer_key(&pool, &id), &answered)?)?)
        })
        .await
}

/// Takes a refusal back: the next machine that shows these values asks again.
///
/// # Errors
/// [`AnswerError`].
pub async fn withdraw_refusal(store: &dyn Store, pool: &str, id: &str) -> Result<(), AnswerError> {
    let (pool, id) = (pool.to_owned(), id.to_owned());
    store
        .transact(move |transaction| {
            let (_, answer) = find(transaction, &pool, &id)?;
            if !answer.is_some_and(|answer| answer.is_no()) {
                return Err(AnswerError::NotRefused { id: id.clone() });
            }
            transaction.remove(KIND, &answer_key(&pool, &id))?;
            Ok(())
        })
        .await
}
