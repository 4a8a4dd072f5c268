//! Leader election among the gateways of one store on etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::StoreError;
use super::super::fence::Fence;
use super::super::remote::leadership::Leadership;
use super::super::remote::locked;
use super::keys::LEADER;
use super::open_store::OpenEtcdStore;
use super::{Etcd, identity};

/// Shortest lease that etcd grants: its election takes as long.
const LEAST_LEASE: Duration = Duration::from_secs(2);

impl Etcd {
    /// Leads a work, if no process does, for as long as etcd gets a keep-alive from this process every `lease`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn acquire_lease(&self, work: &str, lease: Duration) -> Result<Option<Leadership>, StoreError> {
        let runtime = self.open.desk.threads.handle.clone();
        let opened = Arc::clone(&self.open.opened);
        let (key, value) = (format!("{LEADER}{work}"), identity::new_id()?);
        let lease = lease.max(LEAST_LEASE);
        let (taking, fence) = (Arc::clone(&opened), Fence::held(work, &key, &value));
        let Some(id) = self
            .open
            .desk
            .spawn(async move { take(&taking, &key, &value, lease).await })
            .await?
        else {
            return Ok(None);
        };
        locked(&opened.leases).push(id);
        let (tell, lost) = watch::channel(false);
        let abandoned = Arc::new(AtomicBool::new(false));
        runtime.spawn(keep(Arc::clone(&opened), id, lease, tell, Arc::clone(&abandoned)));
        let abandon = move || {
            abandoned.store(true, Ordering::Relaxed);
            runtime.spawn(async move { opened.leave(id).await });
        };
        Ok(Some(Leadership::new(fence, lost, abandon)))
    }
}

impl OpenEtcdStore {
    /// Revokes a lease by which this process led.
    async fn leave(&self, lease: i64) {
        let until = Instant::now() + self.timeout;
        let revoke = |mut client: Client| async move { client.lease_revoke(lease).await };
        // It ends by itself as well.
        drop(self.members.ask_one(until, revoke).await);
        locked(&self.leases).retain(|of| *of != lease);
    }

    /// Gives back the remaining leases when the store is closed: no task waits for a revocation that has just begun.
    pub(super) async fn leave_all(&self) {
        let left = locked(&self.leases).clone();
        for lease in left {
            self.leave(lease).await;
        }
    }
}

/// Puts the key, with a lease, unless another has.
async fn take(opened: &OpenEtcdStore, key: &str, value: &str, lease: Duration) -> Result<Option<i64>, StoreError> {
    let until = Instant::now() + opened.timeout;
    let explain = |failure| opened.members.explain(&failure, false);
    let seconds = i64::try_from(lease.as_secs()).unwrap_or(i64::MAX);
    let grant = |mut client: Client| async move { client.lease_grant(seconds, None).await };
    let id = opened.members.ask(until, grant).await.map_err(explain)?.id();
    let stored = opened.keys.full_key(key);
    let known = opened.reached();
    let mut when = opened.guard(known);
    when.push(Compare::create_revision(stored.as_str(), CompareOp::Equal, 0));
    let txn = Txn::new()
        .when(when)
        .and_then([TxnOp::put(stored.as_str(), value, Some(PutOptions::new().with_lease(id)))])
        .or_else([TxnOp::get(stored.as_str(), None)]);
    let asked = opened.members.ask(until, |mut client| {
        let txn = txn.clone();
        async move { client.txn(txn).await }
    });
    let answer = asked.await.map_err(explain)?;
    // Asked twice, because an answer was lost, it finds itself.
    let own = answer.op_responses().first().is_some_and(|answer| match answer {
        etcd_client::TxnOpResponse::Get(found) => found.kvs().first().is_some_and(|found| found.value() == value.as_bytes()),
        _ => false,
    });
    if answer.succeeded() || own {
        return Ok(Some(id));
    }
    drop(
        opened
            .members
            .ask_one(until, |mut client| async move { client.lease_revoke(id).await })
            .await,
    );
    Ok(None)
}

/// Keeps the lease, until that fails for as long as it lasts.
async fn keep(opened: Arc<OpenEtcdStore>, id: i64, lease: Duration, tell: watch::Sender<bool>, abandoned: Arc<AtomicBool>) {
    let mut kept = Instant::now();
    while !abandoned.load(Ordering::Relaxed) {
        sleep(lease / 3).await;
        let asked = Instant::now();
        match opened.members.ask_one(asked + lease / 3, |client| keep_alive(client, id)).await {
            Ok(0) => break,
            Ok(_) => kept = asked,
            Err(_) if kept.elapsed() < lease => {}
            Err(_) => break,
        }
    }
    // Nobody may listen any more.
    let _ = tell.send(true);
}

/// Renews a lease; returns its remaining seconds, or 0 if it is over.
pub(super) async fn keep_alive(mut client: Client, id: i64) -> Result<i64, etcd_client::Error> {
    let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
    keeper.keep_alive().await?;
    Ok(answers.message().await?.map_or(0, |answer| answer.ttl()))
}
