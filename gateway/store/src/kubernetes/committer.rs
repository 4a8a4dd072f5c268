//! Committer: takes queued works, and runs each on top of those before it, on the known state. Then it replaces that state by the result,
//! if it is still the current one.
//!
//! **A commit is one request to one object.** Every state has a random name, its commit. A change names the commit that it changes, and the
//! API applies all of it if that one is current, and nothing otherwise. So the commits of all gateways form a sequence, each on the state
//! that the previous one has left. A process that was paused, was cut off, or got an outdated answer finds its change refused. A read asks
//! for the current commit after it was requested, and answers from that one.
//!
//! **A commit whose answer was lost.** Each change puts this process's own number into the state. If the answer is lost, the current state
//! is read. If it is another state, its number says whether the commit has happened. The commit cannot happen any more then, because the
//! state that it changes is gone for good. If it is the same state, the commit may be under way still. So a change of only the number is
//! sent on that state, until one of both has happened. The outcome stays unknown only if the API does not answer until the works' time is
//! over; the error says so. No later work is answered before it is known. The consequences for callers are the same as for the store on
//! etcd, and are described there.
//!
//! **A process that is killed** between any two requests leaves a state that one commit has made, and leaves that no state names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::super::StoreError;
use super::super::remote::commit_loop::CommitLoop;
use super::super::remote::plan::CommitPlan;
use super::super::remote::queue::{Apart, BATCH_LIMIT, answer, fail, fail_writers, refuse_late, until};
use super::head::Head;
use super::open_store::{KubernetesTrouble, OpenKubernetesStore};
use super::plan::{CommitRequest, Job, MOST_CONFLICTS, pause, plan};
use super::swap::{HeadWriter, SwapOutcome};
use super::view::MOST_WORK_BYTES;

/// Bytes of changes from which on they are put into leaves. Each commit writes all changes again.
const FOLD_BYTES: usize = 48 * 1024;
/// Maximum bytes of changes before they are put into leaves: a commit, with its own writes, still fits into an object.
const MOST_CHANGES_BYTES: usize = 384 * 1024;
/// Pause before the next fold, after one that has failed or that makes room.
const FOLD_AGAIN: Duration = Duration::from_secs(2);
/// Time after a conflict in which this process lets others commit first.
const CONTENTION: Duration = Duration::from_secs(1);

pub(super) struct KubernetesCommitter {
    opened: Arc<OpenKubernetesStore>,
    writer: HeadWriter,
    apart: Apart<CommitRequest>,
    fold_again: Instant,
    /// Time when a commit last met a conflict, or let another come first.
    contended: Option<Instant>,
    /// Duration of the last read of the API that found nothing new.
    read_time: Duration,
    /// The turn of the state on which this process comes next.
    yielded: u64,
    /// The kind of failure that was logged last, while transactions fail.
    failing: Option<(&'static str, u16)>,
}

impl KubernetesCommitter {
    pub(super) fn new(opened: Arc<OpenKubernetesStore>, head: Head) -> Self {
        Self {
            writer: HeadWriter::new(Arc::clone(&opened), head),
            opened,
            apart: Apart::default(),
            fold_again: Instant::now(),
            contended: None,
            read_time: Duration::ZERO,
            yielded: 0,
            failing: None,
        }
    }

    /// Runs until no more jobs can come; then finishes the background work.
    pub(super) async fn run(mut self, jobs: mpsc::Receiver<Job>) {
        CommitLoop::run(&mut self, jobs).await;
        self.writer.leave().await;
    }

    async fn fold_if_due(&mut self) {
        let changes = &self.writer.view.head.changes;
        // Where there are too many leaves, what was removed makes room only by this; it is not waited for that others write more.
        let makes_room = self.opened.is_crowded() && !changes.is_empty();
        if !(changes.bytes() >= FOLD_BYTES || makes_room) || Instant::now() < self.fold_again {
            return;
        }
        if makes_room {
            self.fold_again = Instant::now() + FOLD_AGAIN;
        }
        if let Err(trouble) = self.writer.fold().await {
            self.fold_again = Instant::now() + FOLD_AGAIN;
            let error = self.opened.error(&trouble);
            tracing::warn!("compaction failed; each commit writes the recent changes again: {error}");
        }
    }

    /// Says how many it was about, and whether they were answered; if not, something is known now that was not, and they are to be tried again.
    async fn attempt(
        &mut self,
        waiting: &mut VecDeque<Job>,
        is_fresh: &mut bool,
        until: Instant,
    ) -> (usize, Result<bool, KubernetesTrouble>) {
        let all = waiting.len();
        if self.writer.doubt.is_some() {
            if let Err(trouble) = self.writer.settle(until).await {
                return (all, Err(trouble));
            }
            *is_fresh = true;
        }
        if self.writer.is_absent() {
            // Others may have put it out; or this process knows it only as it was before it served.
            if !*is_fresh {
                *is_fresh = true;
                return (all, self.writer.refresh(until).await.map(|()| false));
            }
            let heard = &mut self.writer.heard;
            *heard = heard.checked_sub(self.opened.limits.lease / 3).unwrap_or(*heard);
            return (all, Err(KubernetesTrouble::Absent));
        }
        if let Some(Job {
            asked: CommitRequest::Change(change),
            ..
        }) = waiting.front_mut()
        {
            let changed = self.writer.change(until, change).await;
            if changed.is_ok() {
                answer(waiting, vec![Ok(())]);
            }
            return (1, changed.map(|()| true));
        }
        let (count, plan) = plan(waiting, &self.writer.view);
        let done = match plan {
            CommitPlan::TooLarge => {
                let problem = format!("a transaction is too large: it writes more than {MOST_WORK_BYTES} bytes; nothing was done");
                answer(waiting, vec![Err(self.defect(problem))]);
                Ok(waiting.is_empty())
            }
            CommitPlan::Fetch(missing) => self.writer.fetch(&missing, until).await.map(|found| {
                *is_fresh |= !found;
                false
            }),
            CommitPlan::Commit(batch, answers, _) if batch.changes.is_empty() => {
                let known = if *is_fresh { Ok(true) } else { self.writer.confirm(until).await };
                *is_fresh = true;
                if matches!(known, Ok(true)) {
                    answer(waiting, answers);
                }
                known
            }
            CommitPlan::Commit(batch, answers, writers) => {
                if self.writer.view.head.changes.bytes() > MOST_CHANGES_BYTES {
                    let folded = match self.writer.fold().await {
                        Ok(true) => Ok(false),
                        // Another does.
                        Ok(false) => {
                            pause(MOST_CONFLICTS).await;
                            self.writer.refresh(until).await.map(|()| false)
                        }
                        Err(trouble) => {
                            tracing::warn!("{}", self.opened.error(&trouble));
                            // What only reads needs no room: it is done without the others.
                            self.apart
                                .keep(fail_writers(waiting, &writers, || self.opened.error(&KubernetesTrouble::Full)));
                            Ok(waiting.is_empty())
                        }
                    };
                    return (count, folded);
                }
                if self.is_contended() && self.yielded != self.writer.view.head.turn {
                    return (count, self.yield_to_waiting(until).await.map(|()| false));
                }
                let next = self.writer.next(|head| {
                    head.count(&self.opened.replica);
                    head.changes.then(batch.changes);
                });
                match next {
                    Ok(next) => self.writer.swap(next, until).await.and_then(|fate| match fate {
                        SwapOutcome::Happened => {
                            answer(waiting, answers);
                            Ok(true)
                        }
                        _ => Err(KubernetesTrouble::Contended),
                    }),
                    Err(error) => Err(error.into()),
                }
            }
        };
        (count, done)
    }

    /// Lets processes commit first that have waited longer, until the state stays unchanged for as long as they need to begin.
    async fn yield_to_waiting(&mut self, until: Instant) -> Result<(), KubernetesTrouble> {
        let session = self.opened.session.clone();
        let mut unchanged = false;
        while self.is_contended() && !unchanged {
            // The longer one has waited, the longer it is waited for: its machine may have no time for it.
            let reads: u64 = self.writer.view.head.waiting_longer(&session).map(|turns| 1 + turns).sum();
            if reads == 0 {
                break;
            }
            // It has to read the state before it commits. The API is asked once, at the end.
            let patience = self.read_time.saturating_mul(u32::try_from(reads - 1).unwrap_or(u32::MAX));
            sleep(patience.min(CONTENTION)).await;
            let begun = Instant::now();
            unchanged = self.writer.confirm(until).await?;
            if unchanged {
                self.read_time = begun.elapsed();
            } else {
                self.contended = Some(Instant::now());
            }
        }
        self.yielded = self.writer.view.head.turn;
        Ok(())
    }

    fn is_contended(&self) -> bool {
        self.contended.is_some_and(|last| last.elapsed() < CONTENTION)
    }

    fn defect(&self, problem: String) -> StoreError {
        StoreError::Engine {
            engine: "kubernetes",
            place: self.opened.place.place.clone(),
            problem,
            advice: "a change of that size is a defect of the gateway".to_owned(),
        }
    }
}

impl CommitLoop for KubernetesCommitter {
    type Asked = CommitRequest;
    const KEEPER: &'static str = "the cluster's API";

    fn apart(&mut self) -> &mut Apart<CommitRequest> {
        &mut self.apart
    }

    fn due(&self) -> Option<Instant> {
        self.writer.beat_due().into_iter().chain(self.apart.next_attempt).min()
    }

    async fn round(&mut self, waiting: &mut VecDeque<Job>) {
        // Not in between: what was fetched for those who wait would be fetched for them again and again.
        let kept: usize = self.writer.view.leaves.values().map(|pairs| bytes(pairs)).sum();
        if kept > self.opened.limits.cache_bytes {
            self.writer.view.leaves.clear();
        }
        // What is known by then is not older than what was asked for.
        let mut is_fresh = false;
        // What nobody waits for has time, but not at others' cost.
        let begun = Instant::now();
        loop {
            refuse_late(waiting, || self.opened.error(&KubernetesTrouble::Late));
            let Some(until) = until(waiting, BATCH_LIMIT, begun + self.opened.timeout) else {
                return;
            };
            let (count, tried) = self.attempt(waiting, &mut is_fresh, until).await;
            let tried = match tried {
                Ok(false) if Instant::now() >= until => Err(KubernetesTrouble::Contended),
                tried => tried,
            };
            match tried {
                Ok(true) => {
                    if self.failing.take().is_some() {
                        tracing::info!("{}: transactions succeed again", self.opened.place.place);
                    }
                    return;
                }
                Ok(false) => {}
                // Retried at once, on the state that the conflict has brought: after a pause it would lose again to a process that does not pause.
                Err(KubernetesTrouble::Contended) if Instant::now() < until => (is_fresh, self.contended) = (true, Some(Instant::now())),
                Err(trouble) => {
                    let trouble = self.writer.report_trouble(trouble).await;
                    // Each of those who asked is told. The log says it once, and again when the cause is another.
                    if self.failing.replace(trouble.kind()) != Some(trouble.kind()) {
                        tracing::warn!("{}", self.opened.error(&trouble));
                    }
                    self.apart.keep(fail(waiting, count, || self.opened.error(&trouble)));
                    return;
                }
            }
        }
    }

    async fn after_round(&mut self) {
        self.writer.beat().await;
        self.fold_if_due().await;
    }
}

fn bytes(pairs: &super::view::Pairs) -> usize {
    pairs.iter().map(|(key, value)| key.len() + value.len()).sum()
}
