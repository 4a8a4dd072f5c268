//! Reports in the store itself that it was rolled back, for gateways that cannot tell. The transaction that writes the report has etcd
//! confirm that the store is behind.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::time::Instant;

use super::super::expected_store::{ExpectedStore, StoreFile};
use super::super::remote::locked;
use super::super::remote::serving::host_of_this;
use super::super::remote::set_back::{Lack, RollbackStatement, lack};
use super::super::{StoreMark, Wrote};
use super::identity::ExistingStore;
use super::keys::KeyPrefix;
use super::members::Members;
use super::open_store::{EtcdTrouble, OpenEtcdStore};
use super::requests::comes_short;

impl RollbackStatement for ExistingStore {
    fn file(&self) -> StoreFile {
        match &self.moved {
            None => StoreFile::Store(self.mark.clone()),
            Some(moved) => StoreFile::Moved(self.mark.clone(), moved.clone()),
        }
    }

    fn mark(&self) -> StoreMark {
        self.mark.clone()
    }

    fn set_back_by(&self) -> Option<&str> {
        self.set_back_by.as_deref()
    }

    fn commits(&self, replica: &str) -> Option<u64> {
        Some(self.wrote(replica).unsigned_abs())
    }

    fn is_instead_of(&self, id: &str) -> bool {
        self.moved.is_none() && self.replaced.iter().any(|replaced| replaced == id)
    }
}

/// Returns the condition by which etcd confirms that the store lacks something known, if it does.
fn what_it_lacks(known: &ExpectedStore, keys: &KeyPrefix, found: &ExistingStore) -> Option<Compare> {
    Some(match lack(known, found)? {
        Lack::Mark(furthest) => comes_short(keys.mark(), furthest.saturating_sub(found.began)),
        Lack::Commits(Wrote { replica, commits }) => comes_short(keys.wrote(&replica), commits),
    })
}

/// Reports that the store that was found was rolled back, if so: gateways that cannot tell would go on with it.
pub(super) async fn report_rollback(known: &ExpectedStore, members: &Members, keys: &KeyPrefix, found: &ExistingStore, until: Instant) {
    if let Some(lack) = what_it_lacks(known, keys, found) {
        let is_it = Compare::value(keys.identity(), CompareOp::Equal, found.identity.as_str());
        write(members, keys, &found.mark.id, vec![is_it, lack], until).await;
    }
}

/// Reports that this store was rolled back, if etcd confirms it by these conditions.
async fn write(members: &Members, keys: &KeyPrefix, id: &str, by: Vec<Compare>, until: Instant) {
    let txn = Txn::new().when(by).and_then([TxnOp::put(keys.set_back(id), host_of_this(), None)]);
    let asked = members.ask(until, |mut client| {
        let txn = txn.clone();
        async move { client.txn(txn).await }
    });
    match asked.await {
        Ok(told) if told.succeeded() => tracing::error!("store {} was rolled back; all gateways have stopped using it", members.place),
        // It is another one by now, or as it was.
        Ok(_) => {}
        Err(failure) => {
            let error = members.explain(&failure, true);
            tracing::error!("store {} was rolled back; cannot tell the other gateways: {error}", members.place);
        }
    }
}

impl OpenEtcdStore {
    /// Reports the rollback of the store, if the trouble is one.
    pub(super) async fn report_trouble(&self, trouble: EtcdTrouble) -> EtcdTrouble {
        if let EtcdTrouble::SetBack(lack) = &trouble {
            self.report_if_confirmed((**lack).clone()).await;
        }
        trouble
    }

    /// Reports that the opened store was rolled back, if etcd confirms it by this comparison.
    async fn report_if_confirmed(&self, lack: Compare) {
        let id = locked(&self.mark).id.clone();
        let until = Instant::now() + self.timeout;
        write(&self.members, &self.keys, &id, vec![self.is_the_store(), lack], until).await;
    }
}
