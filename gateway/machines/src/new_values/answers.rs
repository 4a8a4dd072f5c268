//! Answers of administrators to questions.

use attest::reference_sets::NewValue;
use attest_store::{EntryTransaction, Store, StoreError, Transact};

use super::questions::{Answered, KIND, Question, QuestionAnswer, QuestionSnapshot, answer_key, question_key, write};

/// Maximum number of denied questions of a pool: each boot with new values is compared with all of them.
const DENIED_LIMIT: usize = 64;
/// Longest reason, in characters: every record of a refusal contains it.
const REASON_LIMIT_CHARACTERS: usize = 200;

/// Reason why an answer was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("pool {pool} has no question {id:?}; to list all: `attest-gateway reference-values pending {pool}`")]
    Unknown { pool: String, id: String },
    #[error("question {id} was answered before, by {by}")]
    Answered { id: String, by: String },
    #[error("question {id} was not denied; only a denied question can be reopened")]
    NotDenied { id: String },
    #[error("--reason has {found} characters; use 1 to {REASON_LIMIT_CHARACTERS}")]
    Reason { found: usize },
    #[error(
        "pool {pool} has {DENIED_LIMIT} denied questions, the maximum; take one back that no machine boots any more: `attest-gateway reference-values deny {pool} ID --take-back`"
    )]
    TooMany { pool: String },
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
    let answer = answer.as_ref().map(super::questions::read).transpose()?;
    Ok((super::questions::read(&question)?, answer))
}

/// Records that the values of questions are accepted, after a file has them; also of denied questions.
///
/// # Errors
/// [`AnswerError`]; nothing is written then.
pub async fn accept(store: &dyn Store, pool: &str, ids: &[String], answered: &Answered) -> Result<(), AnswerError> {
    let (pool, ids, answered) = (pool.to_owned(), ids.to_vec(), answered.clone());
    store
        .transact(move |transaction| {
            for id in &ids {
                find(transaction, &pool, id)?;
                transaction.put(KIND, write(answer_key(&pool, id), &answered)?)?;
            }
            Ok(())
        })
        .await
}

/// Denies a question: machines whose boots have all of its values are refused at once.
///
/// # Errors
/// [`AnswerError`].
pub async fn deny(store: &dyn Store, pool: &str, id: &str, reason: &str, by: &str, now: u64) -> Result<(), AnswerError> {
    let found = reason.chars().count();
    if !(1..=REASON_LIMIT_CHARACTERS).contains(&found) || reason.chars().any(char::is_control) {
        return Err(AnswerError::Reason { found });
    }
    let kept = QuestionSnapshot::list(store).await?;
    let of_pool = kept.answers.iter().filter(|((of, _), _)| of == pool);
    let is_full = of_pool.filter(|(_, answered)| answered.is_no()).count() >= DENIED_LIMIT;
    let answered = Answered {
        said: QuestionAnswer::Denied { reason: reason.to_owned() },
        at: now,
        by: by.to_owned(),
    };
    let (pool, id) = (pool.to_owned(), id.to_owned());
    store
        .transact(move |transaction| {
            let (_, answer) = find(transaction, &pool, &id)?;
            if let Some(Answered { by, .. }) = answer {
                return Err(AnswerError::Answered { id: id.clone(), by });
            }
            if is_full {
                return Err(AnswerError::TooMany { pool: pool.clone() });
            }
            Ok(transaction.put(KIND, write(answer_key(&pool, &id), &answered)?)?)
        })
        .await
}

/// Withdraws a denial: the next machine that boots these values asks again.
///
/// # Errors
/// [`AnswerError`].
pub async fn withdraw_denial(store: &dyn Store, pool: &str, id: &str) -> Result<(), AnswerError> {
    let (pool, id) = (pool.to_owned(), id.to_owned());
    store
        .transact(move |transaction| {
            let (_, answer) = find(transaction, &pool, &id)?;
            if !answer.is_some_and(|answer| answer.is_no()) {
                return Err(AnswerError::NotDenied { id: id.clone() });
            }
            transaction.remove(KIND, &answer_key(&pool, &id))?;
            Ok(())
        })
        .await
}

/// Returns the values of questions, each once.
///
/// # Errors
/// [`AnswerError`].
pub async fn values_of(store: &dyn Store, pool: &str, ids: &[String]) -> Result<(Vec<NewValue>, Question), AnswerError> {
    let mut values: Vec<NewValue> = Vec::new();
    let mut first = None;
    for id in ids {
        let (of, wanted) = (pool.to_owned(), id.clone());
        let (question, _) = store.read(move |transaction| find(transaction, &of, &wanted)).await?;
        values.extend(question.values.iter().cloned());
        first.get_or_insert(question);
    }
    values.sort_by_cached_key(NewValue::key);
    values.dedup_by_key(|value| value.key());
    match first {
        Some(first) => Ok((values, first)),
        None => Err(AnswerError::Unknown {
            pool: pool.to_owned(),
            id: String::new(),
        }),
    }
}
