//! What is asked of the one who commits, and what a commit is made of.

use std::collections::VecDeque;
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::time::sleep;

use super::super::engine::Work;
use super::super::remote::plan::{self, Plan, Ran};
use super::super::remote::queue::{self, BATCH_LIMIT};
use super::head::Head;
use super::view::{Batch, Look, View};

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

/// Returns how many of the first works were looked at, and what comes of that. A change of what is held is no work: it ends them.
pub(super) fn plan(waiting: &mut VecDeque<Job>, view: &View) -> (usize, Plan<Batch>) {
    plan::plan(waiting, BATCH_LIMIT, usize::MAX, Batch::default(), |batch, asked| match asked {
        Asked::Change(_) => Ran::Full,
        Asked::Work(work) => batch.run(view, work),
        Asked::Look(look) => match look(view) {
            Ok(()) => Ran::Done { writes: false },
            Err(missing) => Ran::Missing(missing),
        },
    })
}

/// Pauses after a conflict: up to 2^`conflicts` ms, 64 ms at most, of random length, so that replicas do not retry in step.
pub(super) async fn pause(conflicts: u32) {
    let mut random = [0; 2];
    // Without a random number there is no pause.
    let _ = rand::fill(&mut random);
    let most = Duration::from_millis(1_u64 << conflicts.min(MOST_CONFLICTS));
    sleep(most.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))).await;
}
