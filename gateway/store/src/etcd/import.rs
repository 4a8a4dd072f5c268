//! A store on etcd that takes what another holds.
//!
//! etcd takes some hundred keys in one transaction, so an import runs page by page. Until it is complete, the prefix has a key `taking` in
//! place of `schema` and `store`. A process that opens such a store reports it as incomplete, and a new import begins by removing what is
//! there. Each page requires that key to be as its process has put it, so that only one of two concurrent imports continues.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnResponse};

use super::super::engine::{KeyRange, KeyValue};
use super::super::expected_store::{self, ExpectedStore};
use super::super::migration::{ExportError, MigrationTarget};
use super::super::schema::StoreSchema;
use super::super::threads::under_lock;
use super::super::{StoreError, StoreMark};
use super::identity;
use super::overlay::{BATCH_BYTES, MOST_KEYS};
use super::requests::{get, read_value};
use super::snapshot::EtcdPages;
use crate::settings::EtcdSettings;

/// An import below a prefix, which is not a store yet.
pub(crate) struct EtcdImport {
    below: Arc<EtcdPages>,
    /// The store's file, if it were embedded: files next to it tell what is known of the store.
    mark_path: PathBuf,
    expected: ExpectedStore,
    /// The value that this process has put under `taking`.
    session: String,
    /// Pairs that were not sent yet.
    waiting: Vec<KeyValue>,
    bytes: usize,
}

impl EtcdImport {
    /// Begins an import, where there is nothing, or another import that was not completed.
    pub(crate) fn begin(settings: &EtcdSettings, beside: &Path) -> Result<Self, ExportError> {
        let below = Arc::new(EtcdPages::open(settings)?);
        let taking = Self {
            mark_path: beside.to_owned(),
            expected: ExpectedStore::load(beside).or_else(|_| ExpectedStore::but_for_file(beside))?,
            session: identity::new_id()?,
            waiting: Vec::new(),
            bytes: 0,
            below,
        };
        let keys = &taking.below.keys;
        let (from, end) = keys.all();
        let count = GetOptions::new().with_range(end.clone()).with_count_only();
        let looked = taking
            .below
            .send(Txn::new().and_then([get(&keys.taking()), TxnOp::get(from.clone(), Some(count))]))?;
        let answers = looked.op_responses();
        let unfinished = taken_by(&looked);
        let there = match answers.get(1) {
            Some(etcd_client::TxnOpResponse::Get(found)) => found.count().unsigned_abs(),
            _ => 0,
        };
        let free = match (&unfinished, there) {
            (Some(session), _) => Compare::value(keys.taking(), CompareOp::Equal, session.as_str()),
            (None, 0) => Compare::create_revision(keys.taking(), CompareOp::Equal, 0),
            (None, _) => return Err(ExportError::NotEmpty(there)),
        };
        let no_store = Compare::create_revision(keys.identity(), CompareOp::Equal, 0);
        let mine = TxnOp::put(keys.taking(), taking.session.as_str(), None);
        taking.must(Txn::new().when([free, no_store]).and_then([mine]))?;
        taking.must(Txn::new().when([taking.is_mine()]).and_then([taking.below.delete_all()]))?;
        Ok(taking)
    }

    /// Aborts a running import of any process: removes what has arrived.
    pub(crate) fn abandon(settings: &EtcdSettings) -> Result<(), StoreError> {
        let below = Arc::new(EtcdPages::open(settings)?);
        let looked = below.send(Txn::new().and_then([get(&below.keys.taking())]))?;
        let Some(session) = taken_by(&looked) else { return Ok(()) };
        Self::remove(&below, &session)
    }

    /// Removes the import of this session, unless it was completed.
    fn remove(below: &Arc<EtcdPages>, session: &str) -> Result<(), StoreError> {
        let is_his = Compare::value(below.keys.taking(), CompareOp::Equal, session);
        let gone = [below.delete_all(), TxnOp::delete(below.keys.taking(), None)];
        if !below.send(Txn::new().when([is_his]).and_then(gone))?.succeeded() {
            let looked = below.send(Txn::new().and_then([get(&below.keys.taking()), get(&below.keys.identity())]))?;
            let answers = looked.op_responses();
            // An answer may have been lost, and the first request done.
            if answers.iter().any(|answer| read_value(answer).value.is_some()) {
                return Err(StoreError::Replaced(below.members.place.clone().into()));
            }
        }
        Ok(())
    }

    fn is_mine(&self) -> Compare {
        Compare::value(self.below.keys.taking(), CompareOp::Equal, self.session.as_str())
    }

    fn must(&self, txn: Txn) -> Result<(), StoreError> {
        let mine = Txn::new().and_then([get(&self.below.keys.taking())]);
        if self.below.send(txn)?.succeeded() {
            return Ok(());
        }
        // An answer may have been lost, and the first request done.
        match taken_by(&self.below.send(mine)?) {
            Some(session) if session == self.session => Ok(()),
            _ => Err(StoreError::Replaced(self.below.members.place.clone().into())),
        }
    }

    fn send_waiting(&mut self) -> Result<(), StoreError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let puts: Vec<TxnOp> = self
            .waiting
            .drain(..)
            .map(|pair| TxnOp::put(self.below.keys.full_key(&pair.key), pair.value, None))
            .collect();
        self.bytes = 0;
        self.must(Txn::new().when([self.is_mine()]).and_then(puts))
    }
}

/// Returns the session of the process that imports, by the first answer.
fn taken_by(looked: &TxnResponse) -> Option<String> {
    read_value(looked.op_responses().first()?).value
}

impl MigrationTarget for EtcdImport {
    fn expected_store(&self) -> &ExpectedStore {
        &self.expected
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        let bytes = pair.key.len() + pair.value.len();
        if self.waiting.len() >= MOST_KEYS || self.bytes + bytes > BATCH_BYTES {
            self.send_waiting()?;
        }
        self.bytes += bytes;
        self.waiting.push(pair.clone());
        Ok(())
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.send_waiting()?;
        self.below.page(range, most, 0)
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        let keys = &self.below.keys;
        let instead_of = [Some(from), self.expected.expected()].into_iter().flatten();
        let (identity, now) = identity::taken(id, self.expected.furthest().max(from.mark), instead_of);
        let writes = identity::writes(keys, schema, &identity)
            .into_iter()
            .chain([TxnOp::delete(keys.taking(), None)]);
        let finished = self
            .below
            .send(Txn::new().when([self.is_mine()]).and_then(writes.collect::<Vec<_>>()))?;
        if !finished.succeeded() {
            // An answer may have been lost, and the first request done.
            let (found, _) = self.below.read_identity()?;
            if found.is_none_or(|found| found.mark.id != now.id) {
                return Err(StoreError::Replaced(self.below.members.place.clone().into()));
            }
        }
        under_lock(&self.mark_path, || expected_store::replace_mark(&self.mark_path, &now))?;
        Ok(now)
    }
}
