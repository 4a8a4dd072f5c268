//! The plan of one commit.

use std::collections::{BTreeSet, VecDeque};

use super::queue::QueuedJob;
use crate::StoreError;

/// The result of a transaction's work.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The work is part of the batch, and writes something or not.
    Done { writes: bool },
    /// The work was refused; the reads by which it was are part of the batch.
    Refused(StoreError),
    /// Keys that have to be fetched first.
    Missing(BTreeSet<String>),
    /// The work fits only into the next batch, or into none if this one is empty.
    Full,
}

/// The next step of the committer.
pub(crate) enum CommitPlan<B> {
    Fetch(BTreeSet<String>),
    /// The first one fits into no commit.
    TooLarge,
    /// The batch of the first works, with each one's answer, and whether it writes something.
    Commit(B, Vec<Result<(), StoreError>>, Vec<bool>),
}

/// Runs the first works in the queue, `most` at most, each on top of those before it, until some have to be fetched. Returns how many were
/// looked at, and the plan for them.
pub(crate) fn plan<A, B>(
    waiting: &mut VecDeque<QueuedJob<A>>,
    most: usize,
    most_missing: usize,
    mut batch: B,
    run: impl Fn(&mut B, &mut A) -> Ran,
) -> (usize, CommitPlan<B>) {
    let (mut answers, mut writers, mut missing) = (Vec::new(), Vec::new(), BTreeSet::new());
    for job in waiting.iter_mut().take(most) {
        let ran = run(&mut batch, &mut job.asked);
        let writes = matches!(ran, Ran::Done { writes: true });
        match ran {
            Ran::Done { .. } => answers.push(Ok(())),
            Ran::Refused(error) => answers.push(Err(error)),
            // Those behind it may miss something, too: it is fetched at once.
            Ran::Missing(wanted) => {
                missing.extend(wanted);
                answers.push(Ok(()));
            }
            Ran::Full if answers.is_empty() => return (1, CommitPlan::TooLarge),
            Ran::Full => break,
        }
        writers.push(writes);
        if missing.len() >= most_missing {
            break;
        }
    }
    let count = answers.len();
    if missing.is_empty() {
        (count, CommitPlan::Commit(batch, answers, writers))
    } else {
        (count, CommitPlan::Fetch(missing))
    }
}
