//! The store that a process has opened, and the conditions of every request to it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use tokio::time::Instant;

use super::super::moved::Moved;
use super::super::remote::desk::Says;
use super::super::remote::locked;
use super::super::schema::{self, StoreSchema};
use super::super::{StoreError, StoreMark};
use super::identity;
use super::keys::KeyPrefix;
use super::members::{FailureKind, MemberFailure, Members};
use super::replica_key::ReplicaKey;
use super::requests::{comes_short, get, read_value, version};

/// Number of gets that tell why a request was refused.
pub(super) const GUARD_GETS: usize = 5;

/// The store that a process has opened.
#[derive(Debug)]
pub(super) struct OpenEtcdStore {
    pub members: Members,
    pub keys: KeyPrefix,
    /// The store's identity entry, as it is in etcd.
    pub identity: String,
    /// The store's schema, as far as is known: it may be raised meanwhile.
    pub schema: Mutex<StoreSchema>,
    /// The mark that it began with, before its first commit.
    pub began: u64,
    /// Key of this gateway's commit counter.
    pub wrote: String,
    /// Key under which gateways report that the store was rolled back.
    pub set_back: String,
    pub mark: Mutex<StoreMark>,
    pub timeout: Duration,
    /// Leases by which this process leads.
    pub leases: Mutex<Vec<i64>>,
    /// Key of the replica, if this process serves.
    pub replica_key: OnceLock<Arc<ReplicaKey>>,
}

/// Progress of the store, as far as was known when a request was made. The answer is of the moment at which etcd looked; by its arrival,
/// other tasks of this process may know of more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    puts: i64,
    /// Number of all commits that write, by this gateway.
    wrote: i64,
}

/// Reason why nothing was written, or why that is unknown.
#[derive(Debug)]
pub(super) enum EtcdTrouble {
    Member(MemberFailure),
    /// The outcome of the request is unknown.
    Doubt(MemberFailure),
    /// It is not the store that was opened, or was reported as rolled back.
    Replaced,
    /// It is the opened store, rolled back: etcd confirms it by this comparison.
    SetBack(Box<Compare>),
    /// The store was moved to another place.
    Moved(Moved),
    /// The opened store was raised to a schema that only newer releases know: its number, and the first of them.
    Newer(i64, String),
    /// The key of this gateway, which serves, is not there.
    Absent,
    /// Other processes were faster until the time was over.
    Contended,
    /// Its time was over before it was its turn, or while it was tried again.
    Late,
}

impl EtcdTrouble {
    /// Returns whether etcd's quota is used up.
    pub(super) fn is_want_of_room(&self) -> bool {
        matches!(self, Self::Member(failure) | Self::Doubt(failure) if failure.kind == FailureKind::NoSpace)
    }
}

impl OpenEtcdStore {
    pub(super) fn error(&self, trouble: &EtcdTrouble) -> StoreError {
        let engine = |problem: &str, advice: &str| StoreError::Engine {
            engine: "etcd",
            place: self.members.place.clone(),
            problem: problem.to_owned(),
            advice: advice.to_owned(),
        };
        match trouble {
            EtcdTrouble::Member(failure) => self.members.explain(failure, false),
            EtcdTrouble::Doubt(failure) => self.members.explain(failure, true),
            EtcdTrouble::Replaced | EtcdTrouble::SetBack(_) => StoreError::Replaced(self.members.place.clone().into()),
            EtcdTrouble::Moved(moved) => moved.error(self.members.place.as_ref()),
            EtcdTrouble::Newer(found, release) => identity::newer(&self.members, *found, release),
            EtcdTrouble::Absent => engine(
                "this gateway's lease in etcd has expired; nothing was done",
                "the gateway continues when it has a new lease; if it gets none, its log has the reason",
            ),
            EtcdTrouble::Late => engine(
                "the transaction timed out before it was tried; nothing was done",
                "etcd is too slow or does not answer: check `etcdctl endpoint status` and the latency of its disks",
            ),
            EtcdTrouble::Contended => engine(
                "the transaction conflicted with others until it timed out; nothing was done",
                "retry; if this continues, etcd is too slow: check the latency of its disks",
            ),
        }
    }

    /// Returns the progress of the store, as far as is known.
    pub(super) fn reached(&self) -> Reached {
        let standing = locked(&self.mark);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Reached {
            puts: count(standing.mark.saturating_sub(self.began)),
            wrote: count(standing.wrote.as_ref().map_or(0, |wrote| wrote.commits)),
        }
    }

    /// Raises the known numbers of commits: those of all gateways, and those of this one.
    pub(super) fn raise(&self, puts: i64, commits: i64) {
        let mut standing = locked(&self.mark);
        standing.mark = standing.mark.max(self.began.saturating_add(puts.unsigned_abs()));
        if let Some(wrote) = &mut standing.wrote {
            wrote.commits = wrote.commits.max(commits.unsigned_abs());
        }
    }

    /// Returns the conditions of every request: the store is the opened one, in the known schema. It has come as far as is known,
    /// even if others have written since.
    pub(super) fn guard(&self, known: Reached) -> Vec<Compare> {
        vec![
            self.is_the_store(),
            Compare::version(self.keys.mark(), CompareOp::Greater, known.puts - 1),
            Compare::version(self.wrote.as_str(), CompareOp::Greater, known.wrote - 1),
            Compare::create_revision(self.set_back.as_str(), CompareOp::Equal, 0),
            Compare::value(self.keys.schema(), CompareOp::Equal, schema::text(*locked(&self.schema))),
        ]
        .into_iter()
        .chain(self.replica_key.get().map(|key| key.compare_exists()))
        .collect()
    }

    pub(super) fn is_the_store(&self) -> Compare {
        Compare::value(self.keys.identity(), CompareOp::Equal, self.identity.as_str())
    }

    /// Returns the gets that tell why a request was refused: `GUARD_GETS`, these others, and another if this process serves.
    pub(super) fn guard_gets(&self, others: impl IntoIterator<Item = TxnOp>) -> Vec<TxnOp> {
        let present = self.replica_key.get().map(|key| key.get());
        let keys: [&str; GUARD_GETS] = [
            &self.keys.identity(),
            &self.keys.mark(),
            &self.wrote,
            &self.set_back,
            &self.keys.schema(),
        ];
        let first = keys.map(get);
        first.into_iter().chain(others).chain(present).collect()
    }

    /// Returns an error if [`OpenEtcdStore::guard`] refused the request, by the answers to [`OpenEtcdStore::guard_gets`] with that number of others.
    pub(super) fn check(&self, known: Reached, answers: &[TxnOpResponse], others: usize) -> Result<(), EtcdTrouble> {
        let [identity, mark, wrote, set_back, schema, rest @ ..] = answers else {
            return Err(EtcdTrouble::Replaced);
        };
        let identity = read_value(identity).value;
        if identity.as_ref() != Some(&self.identity) {
            return Err(gone(identity.as_deref()));
        }
        if read_value(set_back).value.is_some() {
            return Err(EtcdTrouble::Replaced);
        }
        let (puts, commits) = (version(mark), version(wrote));
        for (key, found, known) in [(self.keys.mark(), puts, known.puts), (self.wrote.clone(), commits, known.wrote)] {
            if found < known {
                return Err(EtcdTrouble::SetBack(Box::new(comes_short(key, known.unsigned_abs()))));
            }
        }
        let schema = read_value(schema).value;
        let (number, release) = schema.as_deref().and_then(schema::parse).ok_or(EtcdTrouble::Replaced)?;
        match StoreSchema::find(number) {
            Some(schema) => *locked(&self.schema) = schema,
            None if schema::is_newer(number) => return Err(EtcdTrouble::Newer(number, release.to_owned())),
            None => return Err(EtcdTrouble::Replaced),
        }
        self.raise(puts, commits);
        // It was asked for if this process served by then.
        match (self.replica_key.get(), rest.get(others)) {
            (Some(key), Some(found)) if !key.is_own(read_value(found).value.as_deref()) => Err(EtcdTrouble::Absent),
            _ => Ok(()),
        }
    }

    /// Does these reads at one moment, of the store that was opened.
    pub(super) async fn read(&self, until: Instant, reads: &[TxnOp]) -> Result<Vec<TxnOpResponse>, EtcdTrouble> {
        let counts = [get(&self.keys.mark()), get(&self.wrote)];
        let then: Vec<TxnOp> = reads.iter().cloned().chain(counts).collect();
        let (known, schema) = (self.reached(), *locked(&self.schema));
        let txn = Txn::new().when(self.guard(known)).and_then(then).or_else(self.guard_gets([]));
        let asked = self.members.ask(until, |client| {
            let txn = txn.clone();
            async move {
                client
                    .kv_client()
                    .max_decoding_message_size(super::MOST_ANSWER_BYTES)
                    .txn(txn)
                    .await
            }
        });
        let answer = asked.await.map_err(EtcdTrouble::Member)?;
        let mut answers = answer.op_responses();
        if !answer.succeeded() {
            return match self.check(known, &answers, 0) {
                // It was raised.
                Ok(()) if *locked(&self.schema) != schema => Box::pin(self.read(until, reads)).await,
                Ok(()) => Err(EtcdTrouble::Contended),
                Err(trouble) => Err(self.report_trouble(trouble).await),
            };
        }
        // How far it has come, whoever has written.
        let commits = answers.pop().as_ref().map_or(0, version);
        self.raise(answers.pop().as_ref().map_or(0, version), commits);
        Ok(answers)
    }
}

impl Says for OpenEtcdStore {
    fn overloaded(&self) -> StoreError {
        StoreError::Engine {
            engine: "etcd",
            place: self.members.place.clone(),
            problem: "too many transactions are waiting".to_owned(),
            advice: "etcd is too slow or does not answer: check `etcdctl endpoint status`".to_owned(),
        }
    }

    fn unanswered(&self) -> StoreError {
        let failure = MemberFailure {
            endpoint: "all members".to_owned(),
            problem: "there was no answer in time".to_owned(),
            kind: FailureKind::Unanswered,
        };
        self.members.explain(&failure, true)
    }
}

/// Returns the trouble for an identity other than that of the opened store.
pub(super) fn gone(identity: Option<&str>) -> EtcdTrouble {
    identity.and_then(identity::moved).map_or(EtcdTrouble::Replaced, EtcdTrouble::Moved)
}
