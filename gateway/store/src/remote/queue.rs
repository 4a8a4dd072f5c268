//! Queue of works for the committer, and their answers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::StoreError;

/// Works in one commit.
pub(crate) const BATCH_LIMIT: usize = 256;
/// Time that background work waits for other work to join, and for the next attempt after a failure.
pub(crate) const LATER_PAUSE: Duration = Duration::from_millis(500);

/// A request, and the channel for its answer.
pub(crate) struct QueuedJob<A> {
    pub asked: A,
    /// Channel for the answer; `None` for background work.
    pub answer: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// Time from which on the job is not started.
    pub deadline: Option<Instant>,
}

/// Background works that have failed, and are retried by themselves. Requests must not fail together with them.
pub(crate) struct Apart<A> {
    works: VecDeque<QueuedJob<A>>,
    /// Time of the next attempt; `None` without works.
    pub next_attempt: Option<Instant>,
}

impl<A> Default for Apart<A> {
    fn default() -> Self {
        Self {
            works: VecDeque::new(),
            next_attempt: None,
        }
    }
}

impl<A> Apart<A> {
    /// Keeps what could not be done for later.
    pub(crate) fn keep(&mut self, works: VecDeque<QueuedJob<A>>) {
        if !works.is_empty() {
            self.next_attempt = Some(Instant::now() + LATER_PAUSE);
            self.works.extend(works);
        }
    }

    /// Takes those of the same kind that have come since: they would fare as these.
    pub(crate) fn join(&mut self, waiting: &mut VecDeque<QueuedJob<A>>) {
        if self.works.is_empty() {
            return;
        }
        for job in std::mem::take(waiting) {
            match job.answer {
                Some(_) => waiting.push_back(job),
                None => self.works.push_back(job),
            }
        }
    }

    /// Returns the works whose time has come.
    pub(crate) fn due(&mut self) -> VecDeque<QueuedJob<A>> {
        match self.next_attempt {
            Some(again) if again <= Instant::now() => self.all(),
            _ => VecDeque::new(),
        }
    }

    pub(crate) fn all(&mut self) -> VecDeque<QueuedJob<A>> {
        self.next_attempt = None;
        std::mem::take(&mut self.works)
    }

    /// Puts back those that were not among the first ones, which were done.
    pub(crate) fn go_on_with(&mut self, left: VecDeque<QueuedJob<A>>) {
        if !left.is_empty() {
            self.next_attempt = self.next_attempt.or_else(|| Some(Instant::now()));
            self.works.extend(left);
        }
    }
}

/// Waits for something to do, or until something else is due. `false`: there will be nothing any more.
pub(crate) async fn gather<A>(waiting: &mut VecDeque<QueuedJob<A>>, jobs: &mut mpsc::Receiver<QueuedJob<A>>, due: Option<Instant>) -> bool {
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

/// Returns the time until which the next commit is tried. Background works have until `of_nobody`, and no longer: they must not cost others
/// time.
pub(crate) fn until<A>(waiting: &VecDeque<QueuedJob<A>>, most: usize, of_nobody: Instant) -> Option<Instant> {
    let deadlines = waiting.iter().take(most).map(|job| job.deadline.unwrap_or(of_nobody));
    deadlines.max()
}

/// Answers the first jobs.
pub(crate) fn answer<A>(waiting: &mut VecDeque<QueuedJob<A>>, answers: Vec<Result<(), StoreError>>) {
    for result in answers {
        let Some(job) = waiting.pop_front() else { return };
        match (job.answer, result) {
            // Whoever asked may be gone; what was done is done.
            (Some(answer), result) => drop(answer.send(result)),
            (None, Err(error)) => tracing::error!(%error, "background store transaction failed"),
            (None, Ok(())) => {}
        }
    }
}

/// Answers the first jobs with an error, and returns the background works among them.
#[must_use]
pub(crate) fn fail<A>(waiting: &mut VecDeque<QueuedJob<A>>, count: usize, error: impl Fn() -> StoreError) -> VecDeque<QueuedJob<A>> {
    let behind = waiting.split_off(count.min(waiting.len()));
    let mut later = VecDeque::new();
    for job in std::mem::replace(waiting, behind) {
        match job.answer {
            Some(answer) => drop(answer.send(Err(error()))),
            None => later.push_back(job),
        }
    }
    later
}

/// Like [`fail`], for those of the first jobs that write; the others stay first in the queue.
#[must_use]
pub(crate) fn fail_writers<A>(
    waiting: &mut VecDeque<QueuedJob<A>>,
    writers: &[bool],
    error: impl Fn() -> StoreError,
) -> VecDeque<QueuedJob<A>> {
    let (mut failed, mut left) = (VecDeque::new(), VecDeque::new());
    let writers = writers.iter().copied().chain(std::iter::repeat(false));
    for (job, writes) in std::mem::take(waiting).into_iter().zip(writers) {
        if writes { &mut failed } else { &mut left }.push_back(job);
    }
    *waiting = left;
    let count = failed.len();
    fail(&mut failed, count, error)
}

/// Removes the jobs whose deadline is over, and answers them with an error.
pub(crate) fn refuse_late<A>(waiting: &mut VecDeque<QueuedJob<A>>, error: impl Fn() -> StoreError) {
    let now = Instant::now();
    for job in std::mem::take(waiting) {
        match (job.deadline.is_some_and(|deadline| deadline <= now), job.answer) {
            (true, Some(answer)) => drop(answer.send(Err(error()))),
            (true, None) => {}
            (false, answer) => waiting.push_back(QueuedJob { answer, ..job }),
        }
    }
}
