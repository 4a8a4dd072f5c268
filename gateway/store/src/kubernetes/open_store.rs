//! The store that a process has opened: its known state, and the errors when it cannot be used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::super::expected_store::StoreFile;
use super::super::moved::Moved;
use super::super::remote::desk::Says;
use super::super::remote::locked;
use super::super::remote::set_back::RollbackStatement;
use super::super::{StoreError, StoreMark};
use super::KubernetesLimits;
use super::api::{RequestFailure, StoreLocation};
use super::head::Head;

/// The store that a process has opened.
#[derive(Debug)]
pub(super) struct OpenKubernetesStore {
    pub place: StoreLocation,
    pub id: String,
    pub replica: String,
    /// Random: of no two processes the same.
    pub session: String,
    pub mark: Mutex<StoreMark>,
    /// Time when `standing` was last confirmed.
    pub confirmed: Mutex<Option<Instant>>,
    pub timeout: Duration,
    pub limits: KubernetesLimits,
    /// Number of leaves of the store.
    pub leaves: AtomicUsize,
    /// Key and value that a serving process holds.
    pub serving: OnceLock<(String, String)>,
    /// What this process leads.
    pub leads: Mutex<Vec<Leads>>,
}

/// Leadership of a work, until this process learns that it was lost.
#[derive(Debug)]
pub(super) struct Leads {
    pub key: String,
    pub value: String,
    pub lost: watch::Sender<bool>,
}

impl Leads {
    pub(super) fn is_lost(&self) {
        // Nobody may listen any more.
        let _ = self.lost.send(true);
    }
}

/// Reason why nothing was written, or why that is unknown.
#[derive(Debug)]
pub(super) enum KubernetesTrouble {
    Api(RequestFailure),
    /// The outcome of the request is unknown.
    Doubt(RequestFailure),
    /// It is not the store that was opened, or was rolled back.
    Replaced,
    /// The store was moved to another place.
    Moved(Moved),
    /// The key of this gateway, which serves, is not there.
    Absent,
    /// Other processes were faster until the time was over.
    Contended,
    /// Its time was over before it was its turn, or while it was tried again.
    Late,
    /// The API does not let the state be changed, which is as it was; whether what was sent before is done is not known.
    Kept(String),
    /// The store has more leaves than it should, and takes no more challenges of unauthenticated clients.
    Crowded,
    /// The object has no room left.
    Full,
    Store(StoreError),
}

impl KubernetesTrouble {
    /// Returns the key by which the log reports each kind of failure once. Failures of one kind may differ in whether something was done.
    pub(super) const fn kind(&self) -> (&'static str, u16) {
        match self {
            Self::Api(RequestFailure::Unanswered(_)) | Self::Doubt(RequestFailure::Unanswered(_)) | Self::Late => ("unanswered", 0),
            Self::Api(RequestFailure::Refused { code, .. }) | Self::Doubt(RequestFailure::Refused { code, .. }) => ("refused", *code),
            Self::Contended => ("contended", 0),
            Self::Crowded | Self::Full => ("full", 0),
            Self::Absent => ("absent", 0),
            _ => ("other", 0),
        }
    }
}

impl From<RequestFailure> for KubernetesTrouble {
    fn from(failure: RequestFailure) -> Self {
        Self::Api(failure)
    }
}

impl From<StoreError> for KubernetesTrouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl OpenKubernetesStore {
    pub(super) fn error(&self, trouble: &KubernetesTrouble) -> StoreError {
        let place = &self.place.place;
        let engine = |problem: &str, advice: &str| StoreError::Engine {
            engine: "kubernetes",
            place: place.clone(),
            problem: problem.to_owned(),
            advice: advice.to_owned(),
        };
        match trouble {
            KubernetesTrouble::Api(failure) => self.place.error(failure, false),
            KubernetesTrouble::Doubt(failure) => self.place.error(failure, true),
            KubernetesTrouble::Replaced => StoreError::Replaced(place.clone().into()),
            KubernetesTrouble::Moved(moved) => moved.error(place.as_ref()),
            KubernetesTrouble::Absent => engine(
                "this gateway's session in the store has expired; nothing was done",
                "the gateway continues when it has renewed its session; if it cannot, its log has the reason",
            ),
            KubernetesTrouble::Late => engine(
                "the transaction timed out before it was tried; nothing was done",
                "the cluster's API is too slow, or has not answered earlier requests",
            ),
            KubernetesTrouble::Contended => engine(
                "the transaction conflicted with others until it timed out; nothing was done",
                "retry; if this continues, the cluster's API is too slow for this number of gateways and boots",
            ),
            KubernetesTrouble::Kept(why) => engine(
                &format!("the API refuses changes to the object: {why}; it is unknown whether the transaction was committed"),
                "make the object mutable, and let no admission webhook or policy refuse its changes",
            ),
            KubernetesTrouble::Crowded => engine(
                "the store is full of spent challenges; no more are accepted until the oldest have expired",
                "challenges expire within five minutes; if this continues, unauthenticated clients spend them, or this engine is too small for so many machines",
            ),
            KubernetesTrouble::Full => engine(
                "no room for the transaction before the next compaction; nothing was done",
                "the gateway's log says why compaction fails",
            ),
            KubernetesTrouble::Store(error) => engine(&error.to_string(), "this is a defect of the gateway"),
        }
    }

    /// Checks that this is the opened store, and has come as far as is known.
    pub(super) fn check(&self, head: &Head) -> Result<(), KubernetesTrouble> {
        if let Some(moved) = &head.moved {
            return Err(KubernetesTrouble::Moved(moved.clone()));
        }
        if head.id != self.id || head.set_back.is_some() || head.taking.is_some() || self.is_behind(head) {
            return Err(KubernetesTrouble::Replaced);
        }
        Ok(())
    }

    /// Returns whether it is the opened store in an earlier state.
    pub(super) fn is_behind(&self, head: &Head) -> bool {
        let standing = locked(&self.mark);
        let commits = standing.wrote.as_ref().map_or(0, |wrote| wrote.commits);
        head.id == self.id && (head.mark < standing.mark || head.commits(&self.replica).is_some_and(|found| found < commits))
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) > self.limits.leaves
    }

    /// Returns the store's mark, if the changes by which this process renews its lease have confirmed it. There are several of them within
    /// a lease.
    pub(super) fn recent_mark(&self) -> Option<u64> {
        let confirmed = (*locked(&self.confirmed))?;
        let is_recent = self.serving.get().is_some() && confirmed.elapsed() < self.limits.lease;
        is_recent.then(|| locked(&self.mark).mark)
    }

    /// Notes that `standing` is confirmed at this moment.
    pub(super) fn confirmed(&self) {
        *locked(&self.confirmed) = Some(Instant::now());
    }

    /// Raises the known progress to that of this head.
    pub(super) fn reached(&self, head: &Head) {
        self.confirmed();
        self.leaves.store(head.leaves.len(), Ordering::Relaxed);
        let mut standing = locked(&self.mark);
        standing.mark = standing.mark.max(head.mark);
        if let (Some(wrote), Some(commits)) = (&mut standing.wrote, head.commits(&self.replica)) {
            wrote.commits = wrote.commits.max(commits);
        }
    }
}

impl Says for OpenKubernetesStore {
    fn overloaded(&self) -> StoreError {
        StoreError::Engine {
            engine: "kubernetes",
            place: self.place.place.clone(),
            problem: "too many transactions are waiting".to_owned(),
            advice: "the cluster's API is too slow or does not answer".to_owned(),
        }
    }

    fn unanswered(&self) -> StoreError {
        self.error(&KubernetesTrouble::Doubt(RequestFailure::Unanswered(
            "there was no answer in time".to_owned(),
        )))
    }
}

impl RollbackStatement for Head {
    fn file(&self) -> StoreFile {
        match &self.moved {
            None => StoreFile::Store(self.mark()),
            Some(moved) => StoreFile::Moved(self.mark(), moved.clone()),
        }
    }

    fn mark(&self) -> StoreMark {
        StoreMark {
            id: self.id.clone(),
            mark: self.mark,
            wrote: None,
        }
    }

    fn set_back_by(&self) -> Option<&str> {
        self.set_back.as_deref()
    }

    fn commits(&self, replica: &str) -> Option<u64> {
        match self.wrote.get(replica) {
            Some(wrote) => Some(wrote.commits),
            None if self.left_out => None,
            None => Some(0),
        }
    }

    fn is_instead_of(&self, id: &str) -> bool {
        self.moved.is_none() && self.replaced.iter().any(|replaced| replaced == id)
    }
}
