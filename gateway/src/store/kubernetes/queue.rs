//! What is asked of the one who commits, and what waits.

use std::collections::VecDeque;
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use super::super::StoreError;
use super::super::engine::Work;
use super::head::Head;
use super::opened::{Opened, Trouble};
use super::view::{Batch, Look, Missing, Ran, View};

/// Works in one commit.
pub(super) const BATCH_LIMIT: usize = 256;
/// How long what nobody waits for waits for others to go with, and how long before it is tried again.
pub(super) const LATER_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a conflict. Of replicas that race one always wins, and the pause lets the others not do it in step.
const CONFLICT_PAUSE_LIMIT: Duration = Duration::from_millis(64);

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
pub(super) struct Job {
    pub asked: Asked,
    /// Nobody, if it is done some time later.
    pub answer: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// When it is not begun any more.
    pub deadline: Option<Instant>,
}

/// What is to be done next.
pub(super) enum Plan {
    Fetch(Missing),
    /// The first one fits into no commit.
    TooLarge,
    /// The first one is a change of what is held.
    Change,
    /// The first ones, each with its answer.
    Commit(Batch, Vec<Result<(), StoreError>>),
}

/// Waits for something to do, or until something else is due. `false`: there will be nothing any more.
pub(super) async fn gather(waiting: &mut VecDeque<Job>, jobs: &mut mpsc::Receiver<Job>, due: Option<Instant>) -> bool {
    let since = Instant::now();
    while waiting.len() < BATCH_LIMIT {
        if waiting.iter().any(|job| job.answer.is_some()) {
            match jobs.try_recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => break,
            }
            continue;
        }
        let pause = (!waiting.is_empty()).then_some(since + LATER_PAUSE);
        let next = match pause.into_iter().chain(due).min() {
            Some(until) => timeout_at(until, jobs.recv()).await,
            None => Ok(jobs.recv().await),
        };
        match next {
            Ok(Some(job)) => waiting.push_back(job),
            Ok(None) => return false,
            Err(_) => break,
        }
    }
    true
}

/// When those that go into the next commit have no time left.
pub(super) fn until(waiting: &VecDeque<Job>, of_nobody: Instant) -> Option<Instant> {
    let deadlines = waiting.iter().take(BATCH_LIMIT);
    deadlines.map(|job| job.deadline.unwrap_or(of_nobody)).max()
}

/// How many were looked at, and what comes of that.
pub(super) fn plan(waiting: &mut VecDeque<Job>, view: &View) -> (usize, Plan) {
    let (mut batch, mut answers, mut missing) = (Batch::default(), Vec::new(), Missing::new());
    for (count, job) in waiting.iter_mut().take(BATCH_LIMIT).enumerate() {
        let ran = match &mut job.asked {
            Asked::Change(_) if count == 0 => return (1, Plan::Change),
            Asked::Change(_) => break,
            Asked::Work(work) => batch.run(view, work),
            Asked::Look(look) => match look(view) {
                Ok(()) => Ran::Done,
                Err(missing) => Ran::Missing(missing),
            },
        };
        match ran {
            Ran::Done => answers.push(Ok(())),
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
        (count, Plan::Commit(batch, answers))
    } else {
        (count, Plan::Fetch(missing))
    }
}

/// Tells the first ones.
pub(super) fn answer(waiting: &mut VecDeque<Job>, answers: Vec<Result<(), StoreError>>) {
    for result in answers {
        let Some(job) = waiting.pop_front() else { return };
        match (job.answer, result) {
            // Whoever asked may be gone; what was done is done.
            (Some(answer), result) => drop(answer.send(result)),
            (None, Err(error)) => tracing::error!(%error, "a work that nobody waits for cannot be done"),
            (None, Ok(())) => {}
        }
    }
}

/// Tells those of the first ones who wait, and gives those that nobody waits for.
#[must_use]
pub(super) fn fail(waiting: &mut VecDeque<Job>, count: usize, opened: &Opened, trouble: &Trouble) -> VecDeque<Job> {
    let behind = waiting.split_off(count.min(waiting.len()));
    let mut later = VecDeque::new();
    for job in std::mem::replace(waiting, behind) {
        match job.answer {
            Some(answer) => drop(answer.send(Err(opened.error(trouble)))),
            None => later.push_back(job),
        }
    }
    later
}

/// Tells those who have waited so long that they were told already, or will be.
pub(super) fn refuse_late(waiting: &mut VecDeque<Job>, opened: &Opened) {
    let now = Instant::now();
    for job in std::mem::take(waiting) {
        match (job.deadline.is_some_and(|deadline| deadline <= now), job.answer) {
            (true, Some(answer)) => drop(answer.send(Err(opened.error(&Trouble::Late)))),
            (true, None) => {}
            (false, answer) => waiting.push_back(Job { answer, ..job }),
        }
    }
}

/// Longer and longer, and of no length that others have, too.
pub(super) async fn pause(conflicts: u32) {
    let mut random = [0; 2];
    // Without it the pause is the shortest.
    let _ = rand::fill(&mut random);
    let most = Duration::from_millis(1_u64 << conflicts.min(6)).min(CONFLICT_PAUSE_LIMIT);
    sleep(most.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))).await;
}
