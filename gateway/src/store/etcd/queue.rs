//! Works that wait, and what a commit is made of.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use aws_lc_rs::rand;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use super::super::StoreError;
use super::super::engine::Work;
use super::opened::{Opened, Trouble};
use super::overlay::{Batch, Fetched, MOST_KEYS, Ran};

/// Works in one commit.
pub(super) const BATCH_LIMIT: usize = 256;
/// How long what nobody waits for waits for others to go with, and how long before it is tried again.
const LATER_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a conflict. Of replicas that race for one key one always wins, and the pause lets the others not do it in step.
pub(super) const CONFLICT_PAUSE_LIMIT: Duration = Duration::from_millis(32);

/// A work, and who waits for it.
pub(super) struct Job {
    pub work: Work,
    /// Nobody, if it is done some time later.
    pub answer: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// When it is not begun any more.
    pub deadline: Option<Instant>,
}

/// What is to be done next.
pub(super) enum Plan {
    Fetch(BTreeSet<String>),
    /// The first one fits into no commit.
    TooLarge,
    /// These, the first ones, each with its answer, and whether it writes something.
    Commit(Batch, Vec<Result<(), StoreError>>, Vec<bool>),
}

/// Works that nobody waits for, and that could not be done: they are tried again by themselves. What others ask for must not come to nothing with
/// them.
#[derive(Default)]
pub(super) struct Apart {
    works: VecDeque<Job>,
    /// Not before this; `None` if there are none.
    pub(super) again: Option<Instant>,
}

impl Apart {
    /// Keeps what could not be done for later.
    pub(super) fn keep(&mut self, works: VecDeque<Job>) {
        if !works.is_empty() {
            self.again = Some(Instant::now() + LATER_PAUSE);
            self.works.extend(works);
        }
    }

    /// Takes those of the same kind that have come since: they would fare as these.
    pub(super) fn join(&mut self, waiting: &mut VecDeque<Job>) {
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

    /// Those whose time has come.
    pub(super) fn due(&mut self) -> VecDeque<Job> {
        match self.again {
            Some(again) if again <= Instant::now() => self.all(),
            _ => VecDeque::new(),
        }
    }

    pub(super) fn all(&mut self) -> VecDeque<Job> {
        self.again = None;
        std::mem::take(&mut self.works)
    }

    /// Puts back those that were not among the first ones, which were done.
    pub(super) fn go_on_with(&mut self, left: VecDeque<Job>) {
        if !left.is_empty() {
            self.again = self.again.or_else(|| Some(Instant::now()));
            self.works.extend(left);
        }
    }
}

/// Waits for something to do, or until what could not be done is to be tried again. `false`: there will be nothing any more.
pub(super) async fn gather(waiting: &mut VecDeque<Job>, jobs: &mut mpsc::Receiver<Job>, again: Option<Instant>) -> bool {
    let since = Instant::now();
    while waiting.len() < BATCH_LIMIT {
        if waiting.iter().any(|job| job.answer.is_some()) {
            match jobs.try_recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => break,
            }
        } else if waiting.is_empty() {
            let next = match again {
                Some(again) => timeout_at(again, jobs.recv()).await,
                None => Ok(jobs.recv().await),
            };
            match next {
                Ok(Some(job)) => waiting.push_back(job),
                Ok(None) => return false,
                Err(_) => break,
            }
        } else {
            match timeout_at(since + LATER_PAUSE, jobs.recv()).await {
                Ok(Some(job)) => waiting.push_back(job),
                Ok(None) => return false,
                Err(_) => break,
            }
        }
    }
    true
}

/// When those that go into the next commit have no time left.
pub(super) fn until(waiting: &VecDeque<Job>, most: usize, timeout: Duration) -> Option<Instant> {
    let deadlines = waiting
        .iter()
        .take(most)
        .map(|job| job.deadline.unwrap_or_else(|| Instant::now() + timeout));
    deadlines.max()
}

/// How many were looked at, and what comes of that.
pub(super) fn plan(waiting: &mut VecDeque<Job>, most: usize, fetched: &Fetched) -> (usize, Plan) {
    let (mut batch, mut answers, mut writers, mut missing) = (Batch::default(), Vec::new(), Vec::new(), BTreeSet::new());
    let mut count = 0;
    for job in waiting.iter_mut().take(most) {
        match batch.run(fetched, &mut job.work) {
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

/// As [`fail`], of the first ones those that write; the others wait on, as the first ones.
#[must_use]
pub(super) fn fail_writers(waiting: &mut VecDeque<Job>, writers: &[bool], opened: &Opened, trouble: &Trouble) -> VecDeque<Job> {
    let (mut failed, mut left) = (VecDeque::new(), VecDeque::new());
    let writers = writers.iter().copied().chain(std::iter::repeat(false));
    for (job, writes) in std::mem::take(waiting).into_iter().zip(writers) {
        if writes { &mut failed } else { &mut left }.push_back(job);
    }
    *waiting = left;
    let count = failed.len();
    fail(&mut failed, count, opened, trouble)
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

/// Longer and longer, and of no length that others have, too.
pub(super) async fn pause(conflicts: u32) {
    let mut random = [0; 2];
    // Without it the pause is the shortest.
    let _ = rand::fill(&mut random);
    let most = Duration::from_millis(1_u64 << conflicts.min(5)).min(CONFLICT_PAUSE_LIMIT);
    sleep(most.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))).await;
}
