//! The key of this process, by which it determines the outcome of a commit whose answer was lost.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::{Instant, sleep};

use super::members::{FailureKind, MemberFailure};
use super::open_store::OpenEtcdStore;
use super::overlay::ReadValue;
use super::requests::{get, read_value, revision, version};

/// Lifetime of the key of a process that was killed. A process that runs takes a new lease when this is over.
const LEASE_SECONDS: i64 = 86_400;
/// The pause before etcd is asked again what became of a commit.
const FENCE_PAUSE: Duration = Duration::from_millis(32);

pub(super) struct Own {
    opened: Arc<OpenEtcdStore>,
    key: String,
    pub(super) lease: Option<i64>,
    /// Revision of the key's last change, as far as is known; 0 without the key.
    mod_revision: i64,
    /// The last number that was put there.
    number: u64,
    /// A commit has put this number there, or may do so still.
    doubt: Option<u64>,
}

/// Outcome of a commit that was in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitOutcome {
    Happened,
    /// The commit did not happen, and cannot happen any more.
    Never,
    /// The outcome cannot be determined; the commit can no longer happen.
    Unknown,
}

impl Own {
    pub(super) fn new(opened: Arc<OpenEtcdStore>, id: &str) -> Self {
        let key = opened.keys.committer(id);
        Self {
            opened,
            key,
            lease: None,
            mod_revision: 0,
            number: 0,
            doubt: None,
        }
    }

    /// Begins a commit, which is in doubt from here on.
    pub(super) async fn begin(&mut self, until: Instant) -> Result<(), MemberFailure> {
        if self.lease.is_none() {
            let grant = |mut client: etcd_client::Client| async move { client.lease_grant(LEASE_SECONDS, None).await };
            self.lease = Some(self.opened.members.ask(until, grant).await?.id());
        }
        self.number += 1;
        self.doubt = Some(self.number);
        Ok(())
    }

    /// Returns the condition of a commit: no other came since the last one that is known.
    pub(super) fn unchanged(&self) -> Compare {
        Compare::mod_revision(self.key.as_str(), CompareOp::Equal, self.mod_revision)
    }

    /// What a commit puts.
    pub(super) fn put(&self) -> TxnOp {
        let lease = PutOptions::new().with_lease(self.lease.unwrap_or(0));
        TxnOp::put(self.key.as_str(), self.number.to_string(), Some(lease))
    }

    pub(super) fn get(&self) -> TxnOp {
        get(&self.key)
    }

    /// The commit was made, at this revision.
    pub(super) const fn made(&mut self, revision: i64) {
        (self.mod_revision, self.doubt) = (revision, None);
    }

    /// Notes that the commit was not made, with the key's current state.
    pub(super) const fn not_made(&mut self, found: &ReadValue) {
        self.made(found.mod_revision);
    }

    /// Notes that etcd has refused the commit.
    pub(super) const fn refused(&mut self) {
        self.doubt = None;
    }

    /// The lease is over, and the key with it.
    pub(super) const fn lease_is_over(&mut self) {
        (self.lease, self.mod_revision, self.doubt) = (None, 0, None);
    }

    pub(super) const fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Determines the outcome of a commit that is in doubt: puts the same key again under the same condition, until etcd answers.
    pub(super) async fn settle(&mut self, until: Instant) -> Result<CommitOutcome, MemberFailure> {
        loop {
            let Some(sent) = self.doubt else { return Ok(CommitOutcome::Never) };
            match self.fence(sent, until).await {
                Err(lost) if lost.kind == FailureKind::Unanswered && Instant::now() + FENCE_PAUSE < until => {
                    sleep(FENCE_PAUSE).await;
                }
                Err(over) if over.kind == FailureKind::NoLease => {
                    self.lease_is_over();
                    return Ok(CommitOutcome::Unknown);
                }
                settled => return settled,
            }
        }
    }

    async fn fence(&mut self, sent: u64, until: Instant) -> Result<CommitOutcome, MemberFailure> {
        self.number += 1;
        let fence = Txn::new().when([self.unchanged()]).and_then([self.put()]).or_else([
            self.get(),
            get(&self.opened.keys.mark()),
            get(&self.opened.wrote),
        ]);
        let asked = self.opened.members.ask_one(until, |mut client| {
            let fence = fence.clone();
            async move { client.txn(fence).await }
        });
        let answer = asked.await?;
        if answer.succeeded() {
            self.made(revision(&answer));
            return Ok(CommitOutcome::Never);
        }
        Ok(self.read(sent, &answer.op_responses()))
    }

    /// Finds out what became of a commit that etcd has answered: it is made by now, or not at all.
    pub(super) async fn resolve_commit(&mut self, until: Instant) -> Result<CommitOutcome, MemberFailure> {
        let Some(sent) = self.doubt else { return Ok(CommitOutcome::Never) };
        let read = Txn::new().and_then([self.get(), get(&self.opened.keys.mark()), get(&self.opened.wrote)]);
        let asked = self.opened.members.ask(until, |mut client| {
            let read = read.clone();
            async move { client.txn(read).await }
        });
        let answer = asked.await?;
        Ok(self.read(sent, &answer.op_responses()))
    }

    fn read(&mut self, sent: u64, answers: &[TxnOpResponse]) -> CommitOutcome {
        let found = answers.first().map(read_value);
        // It was not there before the first commit.
        let before = self.mod_revision == 0;
        self.made(found.as_ref().map_or(0, |found| found.mod_revision));
        let number = found.map(|found| found.value.and_then(|number| number.parse::<u64>().ok()));
        match number {
            Some(Some(number)) if number == sent => {
                let count = |at: usize| answers.get(at).map_or(0, version);
                self.opened.raise(count(1), count(2));
                CommitOutcome::Happened
            }
            Some(Some(_)) => CommitOutcome::Never,
            Some(None) if before => CommitOutcome::Never,
            _ => CommitOutcome::Unknown,
        }
    }
}
