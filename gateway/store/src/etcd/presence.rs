//! Presence of a serving gateway: a key under a lease, by the replica's id.
//!
//! Every request of a serving gateway requires its key to be as the gateway has put it. If a gateway was paused for longer than its lease,
//! etcd refuses its requests until it has a lease again. A gateway that was killed on this host starts again at once; anywhere else it
//! waits for the lease's end.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::{Instant, sleep, timeout};

use super::super::StoreError;
use super::super::remote::serving::{LEASE, LOOK_EVERY, ServingEntry, WAIT_LIMIT, user};
use super::identity;
use super::leader::keep_alive;
use super::open_store::{OpenEtcdStore, gone};
use super::replica_key::ReplicaKey;
use super::requests::{get, read_value};

/// The lease of a gateway that serves, and the key under it.
#[derive(Debug)]
pub(super) struct Presence {
    key: Arc<ReplicaKey>,
    serving: ServingEntry,
    replica: String,
}

/// Result of an attempt to put the key.
enum PresenceResult {
    Own,
    /// Another's value, and its lease.
    Others(String, i64),
}

impl Presence {
    pub(super) fn new(opened: &OpenEtcdStore, replica: &str, state: &Path) -> Result<Self, StoreError> {
        let serving = ServingEntry::new(&identity::new_id()?, state);
        Ok(Self {
            key: Arc::new(ReplicaKey::new(opened.keys.replica(replica), serving.text())),
            serving,
            replica: replica.to_owned(),
        })
    }

    pub(super) fn key(&self) -> Arc<ReplicaKey> {
        Arc::clone(&self.key)
    }

    /// Puts the key. Another's is waited for: its lease may be over soon, if it was killed.
    pub(super) async fn begin(&self, opened: &OpenEtcdStore) -> Result<(), StoreError> {
        let (begun, mut left) = (Instant::now(), i64::MAX);
        let mut others = None;
        while begun.elapsed() < WAIT_LIMIT {
            let (value, lease) = match self.take(opened, others.as_deref()).await? {
                PresenceResult::Own => return Ok(()),
                PresenceResult::Others(value, lease) => (value, lease),
            };
            if value.is_empty() {
                others = None;
                continue;
            }
            if self.serving.was_here(&value) {
                others = Some(value);
                continue;
            }
            let host = user(&value).host;
            if left == i64::MAX {
                tracing::warn!(
                    "a gateway on {host} serves, or served, as replica {}: waiting up to {} s for its lease to expire",
                    self.replica,
                    WAIT_LIMIT.as_secs()
                );
            }
            let now = self.time_left(opened, lease).await?;
            if now > left {
                return Err(self.copied(opened, &host));
            }
            left = now;
            sleep(LOOK_EVERY).await;
        }
        Err(self.copied(opened, "another host"))
    }

    fn copied(&self, opened: &OpenEtcdStore, host: &str) -> StoreError {
        ServingEntry::copied(&self.replica, host, &opened.members.place)
    }

    /// Puts the key if it is not there, or in the place of this value.
    async fn take(&self, opened: &OpenEtcdStore, instead_of: Option<&str>) -> Result<PresenceResult, StoreError> {
        let until = Instant::now() + opened.timeout;
        let explain = |failure| opened.members.explain(&failure, false);
        let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
        let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let lease = opened.members.ask(until, grant).await.map_err(explain)?.id();
        let free = match instead_of {
            Some(value) => Compare::value(self.key.name.as_str(), CompareOp::Equal, value),
            None => Compare::create_revision(self.key.name.as_str(), CompareOp::Equal, 0),
        };
        let when = [opened.is_the_store(), free];
        let put = PutOptions::new().with_lease(lease);
        let txn = Txn::new()
            .when(when)
            .and_then([TxnOp::put(self.key.name.as_str(), self.key.value.as_str(), Some(put))])
            .or_else([self.key.get(), get(&opened.keys.identity())]);
        let asked = opened.members.ask(until, |mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        });
        let answer = asked.await.map_err(explain)?;
        if answer.succeeded() {
            self.key.lease.store(lease, Ordering::Relaxed);
            return Ok(PresenceResult::Own);
        }
        let answers = answer.op_responses();
        let found = answers.first().and_then(|answer| match answer {
            TxnOpResponse::Get(found) => found.kvs().first(),
            _ => None,
        });
        let (value, of) = found.map_or((String::new(), 0), |found| {
            (String::from_utf8_lossy(found.value()).into_owned(), found.lease())
        });
        if value == self.key.value {
            // Asked twice, because an answer was lost, it finds itself.
            self.key.lease.store(of, Ordering::Relaxed);
            if of != lease {
                give_back(opened, lease).await;
            }
            return Ok(PresenceResult::Own);
        }
        give_back(opened, lease).await;
        if found.is_none() && instead_of.is_none() {
            let identity = answers.get(1).and_then(|answer| read_value(answer).value);
            return Err(opened.error(&gone(identity.as_deref())));
        }
        Ok(PresenceResult::Others(value, of))
    }

    /// Returns the remaining seconds of another process's lease.
    async fn time_left(&self, opened: &OpenEtcdStore, lease: i64) -> Result<i64, StoreError> {
        let until = Instant::now() + opened.timeout;
        let ask = |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
        let answer = opened.members.ask(until, ask).await;
        Ok(answer.map_err(|failure| opened.members.explain(&failure, false))?.ttl())
    }

    /// Keeps the lease, or takes a new one, for as long as the store is open.
    pub(super) async fn keep(self, opened: Weak<OpenEtcdStore>) {
        loop {
            // The time is over, or somebody has missed it.
            let missed = timeout(LEASE / 3, self.key.missed.notified()).await.is_ok();
            let Some(opened) = opened.upgrade().filter(|_| !self.key.over.load(Ordering::Relaxed)) else {
                return;
            };
            let (until, lease) = (Instant::now() + LEASE / 3, self.key.lease.load(Ordering::Relaxed));
            let kept = opened.members.ask_one(until, |client| keep_alive(client, lease)).await;
            let is_over = missed || matches!(kept, Ok(0));
            if is_over && let Err(error) = self.reacquire(&opened).await {
                tracing::error!("lost this gateway's lease in etcd; refusing decisions until it has a new one: {error}");
                sleep(LOOK_EVERY).await;
            }
        }
    }

    async fn reacquire(&self, opened: &OpenEtcdStore) -> Result<(), StoreError> {
        match self.take(opened, None).await? {
            PresenceResult::Own => Ok(()),
            PresenceResult::Others(value, _) => Err(self.copied(opened, &user(&value).host)),
        }
    }
}

/// Gives the lease back, if this process serves.
pub(super) async fn end(opened: &OpenEtcdStore) {
    let Some(key) = opened.replica_key.get() else { return };
    key.over.store(true, Ordering::Relaxed);
    let lease = key.lease.load(Ordering::Relaxed);
    if lease != 0 {
        give_back(opened, lease).await;
    }
}

async fn give_back(opened: &OpenEtcdStore, lease: i64) {
    let until = Instant::now() + opened.timeout;
    // It ends by itself as well.
    drop(
        opened
            .members
            .ask_one(until, |mut client| async move { client.lease_revoke(lease).await })
            .await,
    );
}
