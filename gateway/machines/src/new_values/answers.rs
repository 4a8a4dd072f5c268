//! What an administrator says to questions.

use attest::reference_sets::NewValue;
use attest_store::{Entry, Rewrite, Seen, Store, StoreError};

use super::kept::{Answered, KIND, Kept, Question, Said, of_answer, of_question, write};

/// Most questions of a pool that stay denied: each boot that has something new is compared with all of them.
const DENIED_LIMIT: usize = 64;
/// Longest reason, in characters: it stands in every record of a refusal.
const REASON_LIMIT_CHARACTERS: usize = 200;

/// Why an answer was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("pool {pool} has no question {id:?}: `attest-gateway reference-values pending` lists those that there are")]
    Unknown { pool: String, id: String },
    #[error("question {id} was answered before, by {by}")]
    Answered { id: String, by: String },
    #[error("{id} was not denied")]
    NotDenied { id: String },
    #[error("the reason has {found} characters; 1 to {REASON_LIMIT_CHARACTERS} are kept")]
    Reason { found: usize },
    #[error(
        "{DENIED_LIMIT} questions of pool {pool} are denied, and more are not kept: take one back whose value no machine has any more (`reference-values deny POOL ID --take-back`)"
    )]
    TooMany { pool: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A question that is there, with what was said to it.
async fn find(store: &dyn Store, pool: &str, id: &str) -> Result<(Question, Option<Entry>, Seen), AnswerError> {
    let ids = [of_question(pool, id), of_answer(pool, id)];
    let mut found = store.get_all(ids.clone().map(|id| (KIND, id)).to_vec()).await?.into_iter();
    let (question, answer) = (found.next().flatten(), found.next().flatten());
    let mut seen = Seen::default();
    for (id, entry) in ids.iter().zip([&question, &answer]) {
        seen.note(KIND, id, entry.as_ref().map(|entry| entry.value.as_str()));
    }
    let unknown = || AnswerError::Unknown {
        pool: pool.to_owned(),
        id: id.to_owned(),
    };
    let question = super::kept::read(&question.ok_or_else(unknown)?)?;
    Ok((question, answer, seen))
}

/// Notes that the values of questions are accepted, now that a file has them: also of those that were denied. Gives the questions' values.
///
/// # Errors
/// [`AnswerError`]; nothing is written then.
pub async fn accept(store: &dyn Store, pool: &str, ids: &[String], answered: &Answered) -> Result<(), AnswerError> {
    let (mut all, mut rewrites) = (Seen::default(), Vec::new());
    for id in ids {
        let (_, answer, _) = find(store, pool, id).await?;
        all.note(KIND, &of_answer(pool, id), answer.as_ref().map(|entry| entry.value.as_str()));
        rewrites.push(Rewrite {
            kind: KIND,
            id: of_answer(pool, id),
            value: Some(write(of_answer(pool, id), answered)?.value),
        });
    }
    Ok(store.rewrite(all, rewrites).await?)
}

/// Says no: machines whose boots have all of it are refused at once from now on.
///
/// # Errors
/// [`AnswerError`].
pub async fn deny(store: &dyn Store, pool: &str, id: &str, reason: &str, by: &str, now: u64) -> Result<(), AnswerError> {
    let found = reason.chars().count();
    if !(1..=REASON_LIMIT_CHARACTERS).contains(&found) || reason.chars().any(char::is_control) {
        return Err(AnswerError::Reason { found });
    }
    let (_, answer, seen) = find(store, pool, id).await?;
    if let Some(answer) = answer {
        let Answered { by, .. } = super::kept::read(&answer)?;
        return Err(AnswerError::Answered { id: id.to_owned(), by });
    }
    let kept = Kept::list(store).await?;
    let denied = kept
        .answers
        .iter()
        .filter(|((of, _), answered)| of == pool && answered.is_no())
        .count();
    if denied >= DENIED_LIMIT {
        return Err(AnswerError::TooMany { pool: pool.to_owned() });
    }
    let answered = Answered {
        said: Said::Denied { reason: reason.to_owned() },
        at: now,
        by: by.to_owned(),
    };
    let entry = write(of_answer(pool, id), &answered)?;
    let denied = Rewrite {
        kind: KIND,
        id: entry.id,
        value: Some(entry.value),
    };
    Ok(store.rewrite(seen, vec![denied]).await?)
}

/// Takes a no back: who boots it asks again.
///
/// # Errors
/// [`AnswerError`].
pub async fn take_back(store: &dyn Store, pool: &str, id: &str) -> Result<(), AnswerError> {
    let (_, answer, _) = find(store, pool, id).await?;
    let is_denied = match answer {
        Some(answer) => super::kept::read::<Answered>(&answer)?.is_no(),
        None => false,
    };
    if !is_denied {
        return Err(AnswerError::NotDenied { id: id.to_owned() });
    }
    store.remove(KIND, &of_answer(pool, id)).await?;
    Ok(())
}

/// The values of questions, each once.
///
/// # Errors
/// [`AnswerError`].
pub async fn values_of(store: &dyn Store, pool: &str, ids: &[String]) -> Result<(Vec<NewValue>, Question), AnswerError> {
    let mut values: Vec<NewValue> = Vec::new();
    let mut first = None;
    for id in ids {
        let (question, _, _) = find(store, pool, id).await?;
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
