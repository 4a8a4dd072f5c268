//! Committer: takes queued works, runs each on top of those before it, and commits them as one transaction of etcd.
//!
//! Works are optimistic transactions: they run on fetched values, without locks, and the commit requires the revisions of those to be
//! unchanged. After a conflict nothing is written, and the works run again on the current values. So replicas conflict with one another,
//! and the tasks of one process do not.
//!
//! Works run on guesses first ([`GuessedValues`]). A batch with a guess is committed even if it only reads or is refused: etcd compares what it
//! has read, and nothing is answered before.
//!
//! **A commit whose answer was lost.** Each commit that writes also puts a number under a key of this process. It requires that key to be
//! unchanged since the previous commit. If an answer is lost, the same key is put again under the same condition. If that succeeds, the
//! lost commit did not happen and never will, and the works run again. If not, the key says whether the lost commit came first. The outcome
//! stays unknown only if etcd cannot be asked until the works' time is over; the error says so. Then callers must not count it as done.
//! Those that have made something pending give it back, now or at the next start, which undoes what may have happened. A spend or a claim
//! depends on its decision. A decision that was answered by an error is not in the log as a grant. A challenge that was spent for nothing
//! is lost, and the node requests another. An administrator's command reports that the outcome of its change is unknown; doing it again
//! does no harm. Until the commit has happened or can no longer happen, no later work is answered, not even a read.
//!
//! **An etcd whose quota is used up** answers a commit with an error. It may have made the commit all the same, if it detected the shortage
//! by it. A commit with this answer has happened by then or never will, and the key says which.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::engine::Work;
use super::super::remote::commit_loop::CommitLoop;
use super::super::remote::plan::CommitPlan;
use super::super::remote::queue::{Apart, BATCH_LIMIT, answer, fail, fail_writers, refuse_late, until};
use super::guesses::GuessedValues;
use super::members::FailureKind;
use super::open_store::{EtcdTrouble, GUARD_GETS, OpenEtcdStore, Reached};
use super::overlay::{EtcdBatch, Fetched, MOST_KEYS};
use super::own::{CommitOutcome, Own};
use super::plan::{EtcdJob, plan, refuse_first};
use super::presence;
use super::requests::{get, read_value, revision, version};

/// Most keys that are guessed before a fetch: those of a full commit, and as many that were asked for and not used.
const MOST_GUESSED: usize = 2 * MOST_KEYS;

pub(super) struct EtcdCommitter {
    opened: Arc<OpenEtcdStore>,
    own: Own,
    apart: Apart<Work>,
    guesses: GuessedValues,
}

/// Outcome of a commit.
enum Committed {
    /// It was made, at this revision if that is known.
    Done(Option<i64>),
    /// A conflict with another process: these are the current values.
    Stale(Fetched),
    /// The commit did not happen, and may be tried again.
    Again,
}

impl EtcdCommitter {
    pub(super) fn new(opened: Arc<OpenEtcdStore>, id: &str) -> Self {
        let own = Own::new(Arc::clone(&opened), id);
        let apart = Apart::default();
        let guesses = GuessedValues::new();
        Self {
            opened,
            own,
            apart,
            guesses,
        }
    }

    /// Runs until no more jobs can come; then finishes the background work.
    pub(super) async fn run(mut self, jobs: mpsc::Receiver<EtcdJob>) {
        CommitLoop::run(&mut self, jobs).await;
        self.opened.leave_all().await;
        presence::end(&self.opened).await;
        if let Some(lease) = self.own.lease {
            let until = Instant::now() + self.opened.timeout;
            drop(
                self.opened
                    .members
                    .ask_one(until, |mut client| async move { client.lease_revoke(lease).await })
                    .await,
            );
        }
    }

    async fn commit(&mut self, batch: &EtcdBatch, fetched: &Fetched, until: Instant) -> Result<Committed, EtcdTrouble> {
        let writes = batch.writes_anything();
        if writes {
            self.own.begin(until).await.map_err(EtcdTrouble::Member)?;
        }
        let known = self.opened.reached();
        let txn = self.transaction(known, batch, fetched);
        let opened = Arc::clone(&self.opened);
        let send = |mut client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        if !writes {
            let answer = opened.members.ask(until, send).await.map_err(EtcdTrouble::Member)?;
            return self.committed(known, batch, &answer);
        }
        match opened.members.ask_one(until, send).await {
            Ok(answer) => self.committed(known, batch, &answer),
            Err(lost) if lost.kind == FailureKind::Unanswered => match self.own.settle(until).await {
                Ok(CommitOutcome::Happened) => Ok(Committed::Done(None)),
                Ok(CommitOutcome::Never) => Ok(Committed::Again),
                Ok(CommitOutcome::Unknown) => Err(EtcdTrouble::Doubt(lost)),
                Err(failure) => Err(EtcdTrouble::Doubt(failure)),
            },
            Err(full) if full.kind == FailureKind::NoSpace => match self.own.resolve_commit(until).await {
                Ok(CommitOutcome::Happened) => Ok(Committed::Done(None)),
                Ok(CommitOutcome::Never) => Err(EtcdTrouble::Member(full)),
                Ok(CommitOutcome::Unknown) | Err(_) => Err(EtcdTrouble::Doubt(full)),
            },
            Err(over) if over.kind == FailureKind::NoLease => {
                self.own.lease_is_over();
                Ok(Committed::Again)
            }
            Err(refused) => {
                self.own.refused();
                Err(EtcdTrouble::Member(refused))
            }
        }
    }

    /// Returns the transaction for a batch: it commits all of it, or returns the current values.
    fn transaction(&self, known: Reached, batch: &EtcdBatch, fetched: &Fetched) -> Txn {
        let OpenEtcdStore { keys, .. } = &*self.opened;
        let (mut when, mut then, mut gets) = (self.opened.guard(known), Vec::new(), vec![self.own.get()]);
        if batch.writes_anything() {
            when.push(self.own.unchanged());
            let counted = |key: &str| TxnOp::put(key, "", Some(PutOptions::new().with_prev_key()));
            then.extend([counted(&keys.mark()), counted(&self.opened.wrote), self.own.put()]);
        } else {
            then.extend([get(&keys.mark()), get(&self.opened.wrote)]);
        }
        for key in &batch.reads {
            let stored = keys.full_key(key);
            let revision = fetched.get(key).map_or(0, |seen| seen.mod_revision);
            when.push(Compare::mod_revision(stored.as_str(), CompareOp::Equal, revision));
            gets.push(get(&stored));
        }
        then.extend(batch.writes.iter().map(|(key, value)| match value {
            Some(value) => TxnOp::put(keys.full_key(key), value.as_str(), None),
            None => TxnOp::delete(keys.full_key(key), None),
        }));
        then.extend(batch.removed.iter().map(|range| {
            let until = DeleteOptions::new().with_range(keys.full_key(&range.until));
            TxnOp::delete(keys.full_key(&range.from), Some(until))
        }));
        Txn::new().when(when).and_then(then).or_else(self.opened.guard_gets(gets))
    }

    /// Evaluates an answer to [`EtcdCommitter::transaction`].
    fn committed(&mut self, known: Reached, batch: &EtcdBatch, answer: &TxnResponse) -> Result<Committed, EtcdTrouble> {
        let answers = answer.op_responses();
        if answer.succeeded() {
            // How far it has come, with this commit.
            let count = |at: usize| match answers.get(at) {
                Some(TxnOpResponse::Put(put)) => put.prev_key().map_or(0, etcd_client::KeyValue::version) + 1,
                Some(found) => version(found),
                None => 0,
            };
            self.opened.raise(count(0), count(1));
            if batch.writes_anything() {
                self.own.made(revision(answer));
            }
            return Ok(Committed::Done(Some(revision(answer))));
        }
        let mut others = answers.iter().skip(GUARD_GETS).map(read_value);
        // It is another one if the lease is over.
        if let Some(own) = others.next() {
            self.own.not_made(&own);
        }
        self.opened.check(known, &answers, batch.reads.len() + 1)?;
        Ok(Committed::Stale(batch.reads.iter().cloned().zip(others).collect()))
    }
}

impl CommitLoop for EtcdCommitter {
    type Asked = Work;
    const KEEPER: &'static str = "etcd";

    fn apart(&mut self) -> &mut Apart<Work> {
        &mut self.apart
    }

    fn due(&self) -> Option<Instant> {
        self.apart.next_attempt
    }

    async fn round(&mut self, waiting: &mut VecDeque<EtcdJob>) {
        let mut fetched = Fetched::new();
        let (mut fetches, mut most) = (0_u32, BATCH_LIMIT);
        // May guess; has guessed.
        let (mut guesses, mut guessed) = (true, false);
        let begun = Instant::now();
        loop {
            refuse_late(waiting, || self.opened.error(&EtcdTrouble::Late));
            let Some(until) = until(waiting, most, begun + self.opened.timeout) else {
                return;
            };
            if self.own.is_in_doubt()
                && let Err(failure) = self.own.settle(until).await
            {
                let trouble = EtcdTrouble::Member(failure);
                tracing::warn!(
                    "cannot determine the outcome of a commit; answering no request until it is known: {}",
                    self.opened.error(&trouble)
                );
                self.apart.keep(fail(waiting, most, || self.opened.error(&trouble)));
                return;
            }
            let (count, plan) = plan(waiting, most, &fetched);
            let trouble = match plan {
                // It may be smaller on the values that are there.
                CommitPlan::TooLarge if guessed => {
                    (fetched, fetches, guesses, guessed) = (Fetched::new(), 0, false, false);
                    continue;
                }
                CommitPlan::TooLarge => {
                    refuse_first(waiting, &self.opened);
                    continue;
                }
                // The bound is for a work that asks for other keys in each run.
                CommitPlan::Fetch(keys)
                    if guesses
                        && fetched.len() <= MOST_GUESSED
                        && let Some(guess) = self.guesses.of(&keys) =>
                {
                    guessed = true;
                    fetched.extend(guess);
                    continue;
                }
                CommitPlan::Fetch(keys) => {
                    fetches += 1;
                    match fetch(&self.opened, &keys, until).await {
                        Ok(found) => {
                            self.guesses.remember(&found);
                            fetched.extend(found);
                            continue;
                        }
                        Err(trouble) => trouble,
                    }
                }
                // Read at one moment, and after it was asked for.
                CommitPlan::Commit(batch, answers, _) if !batch.writes_anything() && !guessed && fetches < 2 => {
                    answer(waiting, answers);
                    return;
                }
                CommitPlan::Commit(batch, answers, writers) => match self.commit(&batch, &fetched, until).await {
                    Ok(Committed::Done(revision)) => {
                        self.guesses.committed(&batch, &fetched, revision);
                        answer(waiting, answers);
                        return;
                    }
                    Ok(Committed::Again) => {
                        (fetched, fetches, guesses, guessed) = (Fetched::new(), 0, false, false);
                        continue;
                    }
                    // Retried at once, with what the answer has brought: the replica that was faster has to fetch again before its next
                    // commit, so that this one comes before it. After a pause it would lose to it again and again.
                    Ok(Committed::Stale(now)) => {
                        self.guesses.remember(&now);
                        (fetched, fetches, guesses, guessed) = (now, 1, false, false);
                        if Instant::now() < until {
                            continue;
                        }
                        EtcdTrouble::Contended
                    }
                    // On the values that are there it may write less, or nothing.
                    Err(EtcdTrouble::Member(failure))
                        if guessed && matches!(failure.kind, FailureKind::TooLarge | FailureKind::NoSpace) =>
                    {
                        (fetched, fetches, guesses, guessed) = (Fetched::new(), 0, false, false);
                        continue;
                    }
                    Err(EtcdTrouble::Member(failure)) if failure.kind == FailureKind::TooLarge => {
                        if count > 1 {
                            most = count / 2;
                        } else {
                            refuse_first(waiting, &self.opened);
                        }
                        continue;
                    }
                    // What only reads needs no room: it is done without the others.
                    Err(trouble) if trouble.is_want_of_room() && writers.contains(&false) => {
                        tracing::warn!("{}", self.opened.error(&trouble));
                        self.apart.keep(fail_writers(waiting, &writers, || self.opened.error(&trouble)));
                        most = writers.iter().filter(|writes| !**writes).count();
                        (fetched, fetches) = (Fetched::new(), 0);
                        continue;
                    }
                    Err(trouble) => self.opened.report_trouble(trouble).await,
                },
            };
            tracing::warn!("{}", self.opened.error(&trouble));
            self.apart.keep(fail(waiting, count, || self.opened.error(&trouble)));
            return;
        }
    }
}

/// Fetches the values under these keys.
async fn fetch(opened: &OpenEtcdStore, keys: &BTreeSet<String>, until: Instant) -> Result<Fetched, EtcdTrouble> {
    let keys: Vec<&String> = keys.iter().take(MOST_KEYS).collect();
    let gets: Vec<TxnOp> = keys.iter().map(|key| get(&opened.keys.full_key(key))).collect();
    let answers = opened.read(until, &gets).await?;
    Ok(keys.into_iter().cloned().zip(answers.iter().map(read_value)).collect())
}
