//! What a commit is made of.

use std::collections::{BTreeSet, VecDeque};

use super::super::StoreError;
use super::super::engine::Work;
use super::super::remote::queue::{self, answer};
use super::opened::Opened;
use super::overlay::{Batch, Fetched, MOST_KEYS, Ran};

/// A work, and who waits for it.
pub(super) type Job = queue::Job<Work>;

/// What is to be done next.
pub(super) enum Plan {
    Fetch(BTreeSet<String>),
    /// The first one fits into no commit.
    TooLarge,
    /// These, the first ones, each with its answer, and whether it writes something.
    Commit(Batch, Vec<Result<(), StoreError>>, Vec<bool>),
}

/// How many were looked at, and what comes of that.
pub(super) fn plan(waiting: &mut VecDeque<Job>, most: usize, fetched: &Fetched) -> (usize, Plan) {
    let (mut batch, mut answers, mut writers, mut missing) = (Batch::default(), Vec::new(), Vec::new(), BTreeSet::new());
    let mut count = 0;
    for job in waiting.iter_mut().take(most) {
        match batch.run(fetched, &mut job.asked) {
            Ran::Done { writes } => {
                answers.push(Ok(()));
                writers.push(writes);
            }
            Ran::Refused(error) => {
                answers.push(Err(error));
                writers.push(false);
            }
            // Those behind it may miss something, too: it is fetched at once.
            Ran::Missing(keys) => missing.extend(keys),
            Ran::Full if count == 0 => return (1, Plan::TooLarge),
            Ran::Full => break,
        }
        count += 1;
        if missing.len() >= MOST_KEYS {
            break;
        }
    }
    let plan = if missing.is_empty() {
        Plan::Commit(batch, answers, writers)
    } else {
        Plan::Fetch(missing)
    };
    (count, plan)
}

/// One that fits into no commit.
pub(super) fn refuse_first(waiting: &mut VecDeque<Job>, opened: &Opened) {
    let error = StoreError::Engine {
        engine: "etcd",
        place: opened.members.place.clone(),
        problem: format!(
            "a transaction is too large: it has more than {MOST_KEYS} keys, or more than etcd takes in one request; nothing was done"
        ),
        advice: "raise etcd's --max-request-bytes; a change of that many keys is a defect of the gateway".to_owned(),
    };
    answer(waiting, vec![Err(error)]);
}
