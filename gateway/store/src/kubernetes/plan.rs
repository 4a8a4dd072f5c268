//! What is asked of the one who commits, and what a commit is made of.

use std::collections::VecDeque;
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::time::sleep;

use super::super::StoreError;
use super::super::engine::Work;
use super::super::remote::queue::{self, BATCH_LIMIT};
use super::head::Head;
use super::view::{Batch, Look, Missing, Ran, View};

/// After so many conflicts in a row the pauses do not grow any more.
pub(super) const MOST_CONFLICTS: u32 = 6;

/// Of who changes the head: its session, and whether one that has this number is not heard of any more.
pub(super) struct Context<'a> {
    pub session: &'a str,
    pub is_dead: &'a dyn Fn(&str, u64) -> bool,
}

/// Changes what is held, or says `false`: then it stays as it is.
pub(super) type Change = Box<dyn FnMut(&mut Head, &Context<'_>) -> bool + Send>;

/// What can be asked.
pub(super) enum Asked {
    Work(Work),
    Look(Look),
    Change(Change),
}

/// What is asked, and who waits for it.
pub(super) type Job = queue::Job<Asked>;

/// What is to be done next.
pub(super) enum Plan {
    Fetch(Missing),
    /// The first one fits into no commit.
    TooLarge,
    /// The first one is a change of what is held.
    Change,
    /// The first ones, each with its answer, and whether it writes something.
    Commit(Batch, Vec<Result<(), StoreError>>, Vec<bool>),
}

/// How many were looked at, and what comes of that.
pub(super) fn plan(waiting: &mut VecDeque<Job>, view: &View) -> (usize, Plan) {
    let (mut batch, mut answers, mut writers, mut missing) = (Batch::default(), Vec::new(), Vec::new(), Missing::new());
    for (count, job) in waiting.iter_mut().take(BATCH_LIMIT).enumerate() {
        let ran = match &mut job.asked {
            Asked::Change(_) if count == 0 => return (1, Plan::Change),
            Asked::Change(_) => break,
            Asked::Work(work) => batch.run(view, work),
            Asked::Look(look) => match look(view) {
                Ok(()) => Ran::Done { writes: false },
                Err(missing) => Ran::Missing(missing),
            },
        };
        writers.push(matches!(ran, Ran::Done { writes: true }));
        match ran {
            Ran::Done { .. } => answers.push(Ok(())),
            Ran::Refused(error) => answers.push(Err(error)),
            // Those behind it may miss something, too: it is fetched at once.
            Ran::Missing(leaves) => {
                missing.extend(leaves);
                answers.push(Ok(()));
            }
            Ran::Full if count == 0 => return (1, Plan::TooLarge),
            Ran::Full => break,
        }
    }
    let count = answers.len();
    if missing.is_empty() {
        (count, Plan::Commit(batch, answers, writers))
    } else {
        (count, Plan::Fetch(missing))
    }
}

/// Pauses after a conflict: up to 2^`conflicts` ms, 64 ms at most, of random length, so that replicas do not retry in step.
pub(super) async fn pause(conflicts: u32) {
    let mut random = [0; 2];
    // Without a random number there is no pause.
    let _ = rand::fill(&mut random);
    let most = Duration::from_millis(1_u64 << conflicts.min(MOST_CONFLICTS));
    sleep(most.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))).await;
}
