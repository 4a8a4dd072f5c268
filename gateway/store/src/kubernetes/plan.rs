//! Requests to the committer, and the parts of a commit.

use std::collections::VecDeque;
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::time::sleep;

use super::super::engine::Work;
use super::super::remote::plan::{self, CommitPlan, Ran};
use super::super::remote::queue::{self, BATCH_LIMIT};
use super::head::Head;
use super::view::{KubernetesBatch, Look, View};

/// Number of conflicts in a row after which the pauses do not grow any more.
pub(super) const MOST_CONFLICTS: u32 = 6;

/// Session of the process that changes the head, and a check whether one with this number has stopped its heartbeats.
pub(super) struct Context<'a> {
    pub session: &'a str,
    pub is_dead: &'a dyn Fn(&str, u64) -> bool,
}

/// Changes what is held; returns `false` to leave it as it is.
pub(super) type Change = Box<dyn FnMut(&mut Head, &Context<'_>) -> bool + Send>;

/// What can be asked.
pub(super) enum CommitRequest {
    Work(Work),
    Look(Look),
    Change(Change),
}

/// A request to the committer, and the channel for its answer.
pub(super) type Job = queue::QueuedJob<CommitRequest>;

/// Returns how many of the first works were looked at, and the plan for them. A change of what is held is not a work, and ends them.
pub(super) fn plan(waiting: &mut VecDeque<Job>, view: &View) -> (usize, CommitPlan<KubernetesBatch>) {
    plan::plan(
        waiting,
        BATCH_LIMIT,
        usize::MAX,
        KubernetesBatch::default(),
        |batch, asked| match asked {
            CommitRequest::Change(_) => Ran::Full,
            CommitRequest::Work(work) => batch.run(view, work),
            CommitRequest::Look(look) => match look(view) {
                Ok(()) => Ran::Done { writes: false },
                Err(missing) => Ran::Missing(missing),
            },
        },
    )
}

/// Pauses after a conflict: up to 2^`conflicts` ms, 64 ms at most, of random length, so that replicas do not retry in step.
pub(super) async fn pause(conflicts: u32) {
    let mut random = [0; 2];
    // Without a random number there is no pause.
    let _ = rand::fill(&mut random);
    let most = Duration::from_millis(1_u64 << conflicts.min(MOST_CONFLICTS));
    sleep(most.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))).await;
}
