//! Outbox: changes that are not recorded yet. An entry is written in the transaction of the change, so that neither exists without the
//! other. It stays until a gateway has recorded it in its attestation log.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::documents::{DocumentVersion, EntryDocument, parse, read, write};
use super::engine::{Engine, KeyRange, KeyValue, Transaction, Work, WorkInterrupted, run};
use super::engine_layer::EngineLayer;
use super::witness::{EntryChange, Witness};
use super::{LeaderGuard, StoreEntry, StoreError, keys, schema};

/// Additional keys that an outbox entry reads and writes.
const OWN_WRITES: usize = 2;

/// Number of all outbox entries so far, which gives their order.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutboxCounter {
    v: DocumentVersion,
    pub(super) number: u64,
}

/// A store whose changes are written to the outbox, as the witness describes them.
#[derive(Debug)]
pub struct Witnessed {
    engine: Arc<dyn Engine>,
    witness: Arc<dyn Witness>,
}

impl Witnessed {
    pub fn new(engine: Arc<dyn Engine>, witness: Arc<dyn Witness>) -> Self {
        Self { engine, witness }
    }

    fn watch(&self, mut work: Work) -> Result<Work, StoreError> {
        // One for all runs: what is done once is told once.
        let (witness, random) = (Arc::clone(&self.witness), schema::new_id()?);
        Ok(Box::new(move |transaction| {
            let mut watched = WitnessedTransaction {
                transaction,
                changes: BTreeMap::new(),
            };
            work(&mut watched)?;
            let changes = watched.into_changes()?;
            match witness.outbox_entry(&changes)? {
                Some(told) if !changes.is_empty() => put(transaction, &random, &told),
                _ => Ok(()),
            }
        }))
    }
}

#[async_trait]
impl EngineLayer for Witnessed {
    fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.engine.transact(self.watch(work)?).await
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        Ok(self
            .engine
            .acquire_leadership(work)
            .await?
            .map(|lead| lead.witnessed(&self.witness)))
    }

    fn most_writes(&self) -> usize {
        self.engine.most_writes().saturating_sub(OWN_WRITES)
    }
}

/// A transaction of which it is remembered which entries it changes.
struct WitnessedTransaction<'t> {
    transaction: &'t mut dyn Transaction,
    /// The previous and the new document of each key.
    changes: BTreeMap<String, (Option<String>, Option<String>)>,
}

impl WitnessedTransaction<'_> {
    fn changes(&mut self, key: &str, after: Option<&str>) -> Result<(), WorkInterrupted> {
        if keys::kind_and_id(key).is_none() {
            return Ok(());
        }
        let after = after.map(str::to_owned);
        if let Some(known) = self.changes.get_mut(key) {
            known.1 = after;
            return Ok(());
        }
        let before = self.transaction.get(key)?;
        self.changes.insert(key.to_owned(), (before, after));
        Ok(())
    }

    fn into_changes(self) -> Result<Vec<EntryChange>, StoreError> {
        let mut changes = Vec::new();
        for (key, (before, after)) in self.changes {
            let value = |text: Option<String>| match text {
                Some(text) => parse::<EntryDocument>(&key, &text).map(|document| Some(document.value)),
                None => Ok(None),
            };
            let (before, after) = (value(before)?, value(after)?);
            if let Some((kind, id)) = keys::kind_and_id(&key).filter(|_| before != after) {
                changes.push(EntryChange { kind, id, before, after });
            }
        }
        Ok(changes)
    }
}

impl Transaction for WitnessedTransaction<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        self.transaction.get(key)
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted> {
        self.changes(key, Some(value))?;
        self.transaction.put(key, value)
    }

    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted> {
        self.changes(key, None)?;
        self.transaction.delete(key)
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted> {
        self.transaction.delete_range(range)
    }
}

fn put(transaction: &mut dyn Transaction, random: &str, told: &str) -> Result<(), WorkInterrupted> {
    let mut last: OutboxCounter = read(transaction, keys::TOLD)?.unwrap_or_default();
    last.number = last.number.saturating_add(1);
    write(transaction, keys::TOLD, &last)?;
    transaction.put(&keys::outbox(&format!("{:020}-{random}", last.number)), told)
}

/// Writes an outbox entry without a change of the store.
pub(super) async fn append_to_outbox(engine: &impl Engine, told: String) -> Result<(), StoreError> {
    let random = schema::new_id()?;
    run(engine, move |transaction| put(transaction, &random, &told)).await
}

/// Returns the outbox entries after one of them, in their order; at most `most`.
pub(super) async fn page(engine: &impl Engine, after: Option<&str>, most: usize) -> Result<Vec<StoreEntry>, StoreError> {
    let range = match after {
        Some(id) => keys::after(&keys::outbox(id), &keys::outboxes()),
        None => keys::outboxes(),
    };
    let page = engine.page(range, most).await?.into_iter();
    page.map(|KeyValue { key, value }| match keys::last(&key) {
        Some(id) => Ok(StoreEntry { id, value }),
        None => Err(StoreError::Key { key }),
    })
    .collect()
}

/// Removes recorded entries from the outbox.
pub(super) async fn remove(engine: &impl Engine, ids: Vec<String>) -> Result<(), StoreError> {
    // As many as a transaction takes.
    for batch in ids.chunks(engine.most_writes().max(1)) {
        let batch = batch.to_vec();
        run(engine, move |transaction| {
            batch.iter().try_for_each(|id| transaction.delete(&keys::outbox(id)))
        })
        .await?;
    }
    Ok(())
}
