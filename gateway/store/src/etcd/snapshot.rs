//! Snapshot of a store on etcd at one revision, unaffected by other writers.

use std::path::Path;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnResponse};
use tokio::time::Instant;

use super::super::engine::{KeyRange, KeyValue};
use super::super::expected_store::ExpectedStore;
use super::super::migration::{ExportError, MigrationSource};
use super::super::moved::Moved;
use super::super::remote::serving::user;
use super::super::remote::set_back;
use super::super::schema::{self, StoreSchema};
use super::super::threads::Threads;
use super::super::{StoreError, StoreMark, StoreUser};
use super::identity::ExistingStore;
use super::keys::KeyPrefix;
use super::members::Members;
use super::requests::pair;
use super::{MOST_ANSWER_BYTES, identity};
use crate::settings::EtcdSettings;

/// Snapshot of the content of a store on etcd.
pub(crate) struct EtcdSnapshot {
    below: Arc<EtcdPages>,
    found: ExistingStore,
    revision: i64,
}

/// Access to the keys below a prefix, for synchronous callers.
pub(super) struct EtcdPages {
    pub threads: Threads,
    pub settings: EtcdSettings,
    pub members: Members,
    pub keys: KeyPrefix,
}

impl EtcdPages {
    pub(super) fn open(settings: &EtcdSettings) -> Result<Self, StoreError> {
        Ok(Self {
            threads: Threads::start("etcd", &settings.place())?,
            settings: settings.clone(),
            members: Members::from_settings(settings)?,
            keys: KeyPrefix::below(&settings.prefix),
        })
    }

    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// Asked twice, because an answer was lost, it does the same.
    pub(super) fn send(self: &Arc<Self>, txn: Txn) -> Result<TxnResponse, StoreError> {
        let below = Arc::clone(self);
        self.threads.wait(async move {
            let asked = below.members.ask(below.until(), |mut client| {
                let txn = txn.clone();
                async move { client.txn(txn).await }
            });
            asked.await.map_err(|failure| below.members.explain(&failure, false))
        })
    }

    /// Returns the operation that deletes all content of the store.
    pub(super) fn delete_all(&self) -> TxnOp {
        let (from, until) = (self.keys.full_key(""), self.keys.full_key("\u{10ffff}"));
        TxnOp::delete(from, Some(DeleteOptions::new().with_range(until)))
    }

    /// The store that is there, and the revision at which it was looked at.
    pub(super) fn read_identity(self: &Arc<Self>) -> Result<(Option<ExistingStore>, i64), StoreError> {
        let below = Arc::clone(self);
        self.threads
            .wait(async move { identity::read_identity_at(&below.settings, &below.members, below.until()).await })
    }

    /// Returns the processes that use the store, and the revision of that state.
    pub(super) fn users(self: &Arc<Self>) -> Result<(Vec<StoreUser>, i64), StoreError> {
        let (from, until) = (self.keys.replica(""), self.keys.replica("\u{10ffff}"));
        let below = Arc::clone(self);
        self.threads.wait(async move {
            let options = GetOptions::new().with_range(until);
            let asked = below.members.ask(below.until(), |mut client| {
                let (from, options) = (from.clone(), options.clone());
                async move { client.get(from, Some(options)).await }
            });
            let answer = asked.await.map_err(|failure| below.members.explain(&failure, false))?;
            let found = answer.kvs().iter();
            let users = found.map(|found| user(&String::from_utf8_lossy(found.value()))).collect();
            Ok((users, answer.header().map_or(0, etcd_client::ResponseHeader::revision)))
        })
    }

    /// The first of a range at this revision; 0 is now.
    pub(super) fn page(self: &Arc<Self>, range: &KeyRange, most: usize, revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        let (from, until) = (self.keys.full_key(&range.from), self.keys.full_key(&range.until));
        let options = GetOptions::new()
            .with_range(until)
            .with_limit(i64::try_from(most).unwrap_or(i64::MAX))
            .with_revision(revision);
        let below = Arc::clone(self);
        self.threads.wait(async move {
            let asked = below.members.ask(below.until(), |client| {
                let (from, options) = (from.clone(), options.clone());
                async move {
                    let mut client = client.kv_client().max_decoding_message_size(MOST_ANSWER_BYTES);
                    client.get(from, Some(options)).await
                }
            });
            let answer = asked.await.map_err(|failure| below.members.explain(&failure, false))?;
            answer.kvs().iter().map(|found| pair(&below.keys, found)).collect()
        })
    }
}

impl EtcdSnapshot {
    pub(crate) fn open(settings: &EtcdSettings, beside: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = ExpectedStore::load(beside)?;
        let below = Arc::new(EtcdPages::open(settings)?);
        let (found, revision) = below.read_identity()?;
        let place = Path::new(&below.members.place);
        set_back::check_to_move(&known, place, found.as_ref())?;
        let Some(found) = found else {
            return Err(StoreError::Lost {
                path: place.to_owned(),
                known: "its content was requested".to_owned(),
            });
        };
        Ok(Self { below, found, revision })
    }

    /// Replaces the identity entry, if the store is unchanged and no gateway serves on it.
    fn replace_identity(&self, identity: &str) -> Result<bool, StoreError> {
        let keys = &self.below.keys;
        let (replicas, until) = (keys.replica(""), keys.replica("\u{10ffff}"));
        let when = [
            Compare::value(keys.identity(), CompareOp::Equal, self.found.identity.as_str()),
            Compare::version(keys.mark(), CompareOp::Equal, self.found.puts()),
            Compare::value(keys.schema(), CompareOp::Equal, schema::text(self.found.schema)),
            Compare::create_revision(keys.set_back(&self.found.mark.id), CompareOp::Equal, 0),
            Compare::create_revision(replicas, CompareOp::Equal, 0).with_range(until),
        ];
        let write = Txn::new().when(when).and_then([TxnOp::put(keys.identity(), identity, None)]);
        if self.below.send(write)?.succeeded() {
            return Ok(true);
        }
        // An answer may have been lost, and the first request done.
        let (now, _) = self.below.read_identity()?;
        Ok(now.is_some_and(|now| now.identity == identity))
    }
}

impl MigrationSource for EtcdSnapshot {
    fn store(&self) -> StoreMark {
        self.found.mark.clone()
    }

    fn schema(&self) -> StoreSchema {
        self.found.schema
    }

    fn moved(&self) -> Option<&Moved> {
        self.found.moved.as_ref()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.below.page(range, most, self.revision)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let (found, _) = self.below.read_identity()?;
        let found = found.filter(|found| found.moved == self.found.moved);
        Ok(found
            .ok_or_else(|| StoreError::Replaced(self.below.members.place.clone().into()))?
            .mark)
    }

    fn move_to(&mut self, to: &Moved) -> Result<(), ExportError> {
        if self.replace_identity(&self.found.identity_moved(Some(to)))? {
            return Ok(());
        }
        match (served_by(&self.below.settings)?, self.below.read_identity()?.0) {
            (hosts, _) if !hosts.is_empty() => Err(ExportError::Served {
                place: self.below.members.place.clone(),
                hosts: hosts.join(", "),
            }),
            (_, Some(ExistingStore { moved: Some(moved), .. })) => Err(moved.error(self.below.members.place.as_ref()).into()),
            _ => Err(ExportError::WentOn),
        }
    }

    fn undo_move(&mut self) -> Result<(), ExportError> {
        match self.replace_identity(&self.found.identity_moved(None))? {
            true => Ok(()),
            false => Err(ExportError::WentOn),
        }
    }
}

/// On which hosts processes use the store.
pub(crate) fn served_by(settings: &EtcdSettings) -> Result<Vec<String>, StoreError> {
    let (users, _) = Arc::new(EtcdPages::open(settings)?).users()?;
    Ok(users.into_iter().map(|user| user.host).collect())
}

/// Returns the store that is there, regardless of the known one.
pub(crate) fn existing_store(settings: &EtcdSettings) -> Result<Option<StoreMark>, StoreError> {
    match Arc::new(EtcdPages::open(settings)?).read_identity() {
        Ok((found, _)) => Ok(found.filter(|found| found.moved.is_none()).map(|found| found.mark)),
        Err(StoreError::Unfinished(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
