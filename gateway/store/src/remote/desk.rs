//! Desk that takes requests to a store from any thread; the committer has a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::locked;
use super::queue::QueuedJob;
use crate::engine::Work;
use crate::expected_store;
use crate::threads::{Threads, under_lock};
use crate::{StoreError, StoreMark};

/// Maximum of waiting works; beyond it, requests get an overload error.
const QUEUE_LIMIT: usize = 4096;
/// Maximum of background works that wait while the store does not answer.
const LATER_LIMIT: usize = 4096;
/// Time that a caller waits beyond the deadline of its request: the committer knows better what has become of it.
const GRACE: Duration = Duration::from_millis(200);

/// Errors that only the engine can explain.
pub(crate) trait Says: Send + Sync {
    /// Returns the error for more works than can be done.
    fn overloaded(&self) -> StoreError;
    /// Returns the error for a caller that has waited for the time limit: the outcome is unknown.
    fn unanswered(&self) -> StoreError;
}

pub(crate) struct Desk<A> {
    jobs: Mutex<Option<mpsc::Sender<QueuedJob<A>>>>,
    later: Arc<AtomicUsize>,
    /// Signalled when everything is done.
    closed: Mutex<std::sync::mpsc::Receiver<()>>,
    pub threads: Threads,
    /// The store's file, if it were embedded: files next to it tell what is known of the store.
    pub mark_path: PathBuf,
    timeout: Duration,
    says: Arc<dyn Says>,
}

impl<A: Send + 'static> Desk<A> {
    /// Opens the desk. `commit` takes the jobs until no more can come, and then finishes the rest.
    pub(crate) fn open<F>(
        threads: Threads,
        beside: &Path,
        timeout: Duration,
        says: Arc<impl Says + 'static>,
        commit: impl FnOnce(mpsc::Receiver<QueuedJob<A>>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (jobs, queue) = mpsc::channel(QUEUE_LIMIT);
        let (done, closed) = std::sync::mpsc::channel();
        let commits = commit(queue);
        threads.handle.spawn(async move {
            commits.await;
            // Nobody waits for it if the process ends.
            let _ = done.send(());
        });
        Self {
            jobs: Mutex::new(Some(jobs)),
            later: Arc::default(),
            closed: Mutex::new(closed),
            threads,
            mark_path: beside.to_owned(),
            timeout,
            says,
        }
    }

    /// Runs a future on the store's own threads: those of the caller may have neither clock nor network.
    pub(crate) async fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.threads.handle.spawn(work).await.map_err(|_| StoreError::Closed)?
    }

    fn send(&self, job: QueuedJob<A>) -> Result<(), StoreError> {
        let jobs = locked(&self.jobs);
        jobs.as_ref()
            .ok_or(StoreError::Closed)?
            .try_send(job)
            .map_err(|_| self.says.overloaded())
    }

    /// Asks the one who commits, and waits for it.
    pub(crate) async fn ask(&self, asked: A) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.timeout;
        let (answer, answered) = oneshot::channel();
        self.send(QueuedJob {
            asked,
            answer: Some(answer),
            deadline: Some(deadline),
        })?;
        let says = Arc::clone(&self.says);
        self.spawn(async move {
            match timeout_at(deadline + GRACE, answered).await {
                Ok(answer) => answer.map_err(|_| StoreError::Closed)?,
                Err(_) => Err(says.unanswered()),
            }
        })
        .await
    }

    pub(crate) fn nobody_waits(&self, asked: A) {
        let job = QueuedJob {
            asked,
            answer: None,
            deadline: None,
        };
        if let Err(error) = self.send(job) {
            tracing::warn!(%error, "cannot queue a background store transaction");
        }
    }

    /// Like [`Desk::nobody_waits`], with a limit on the number of works that wait.
    pub(crate) fn later(&self, mut work: Work, asked: impl FnOnce(Work) -> A) {
        let waiting = Arc::clone(&self.later);
        if waiting.fetch_add(1, Ordering::Relaxed) >= LATER_LIMIT {
            waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("{}", self.says.overloaded());
            return;
        }
        let counted = Counted(waiting);
        self.nobody_waits(asked(Box::new(move |transaction| {
            let _ = &counted;
            work(transaction)
        })));
    }

    /// Writes the store's mark to the file next to it.
    pub(crate) async fn keep_mark(&self, standing: StoreMark) -> Result<(), StoreError> {
        let beside = self.mark_path.clone();
        let write = move || under_lock(&beside, || expected_store::write_mark(&beside, &standing));
        let written = self.threads.handle.spawn_blocking(write);
        written.await.map_err(|_| StoreError::Closed)?
    }
}

impl<A> Drop for Desk<A> {
    fn drop(&mut self) {
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Ok(closed) = self.closed.get_mut() {
            // What nobody waits for is tried once more, and what is held given back.
            let _ = closed.recv_timeout(self.timeout * 2);
        }
    }
}

/// Entry in the count of background works.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
