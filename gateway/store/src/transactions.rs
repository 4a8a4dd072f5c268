//! Operations of a store, over any engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::documents::{EntryDocument, PendingDocument, parse, read, write};
use super::engine::{Engine, KeyRange, KeyValue, Mode, Transaction, Work, WorkInterrupted, run, run_in, work_in};
use super::transaction::{EntryTransaction, remove};
use super::{
    DecisionRecord, EntryKind, EntryWork, LeaderGuard, Pending, Store, StoreEntry, StoreError, StoreMark, Tick, Witness, Witnessed, keys,
    outbox, store_time, uses,
};

/// Seconds that another gateway may be away before its decisions are recorded here: longer than the repair of a machine takes.
const PENDING_LIMIT_SECONDS: u64 = 7 * 86_400;
/// Number of values that are read at once: some hundred kilobytes.
const PAGE: usize = 500;

/// All that a range has, page by page.
async fn all(engine: &impl Engine, range: KeyRange) -> Result<Vec<KeyValue>, StoreError> {
    let (mut found, mut left) = (Vec::new(), range);
    loop {
        let page = engine.page(left.clone(), PAGE).await?;
        let Some(last) = page.last().filter(|_| page.len() == PAGE) else {
            found.extend(page);
            return Ok(found);
        };
        left = keys::after(&last.key, &left);
        found.extend(page);
    }
}

/// The last part of a key.
fn last(key: &str) -> Result<String, StoreError> {
    keys::last(key).ok_or_else(|| StoreError::Key { key: key.to_owned() })
}

/// Gives back the use of a decision; returns whether it did. This is tried once: a use that is not given back is kept.
fn give_back(transaction: &mut dyn Transaction, decision: &str) -> Result<bool, WorkInterrupted> {
    let key = keys::pending(decision);
    let Some(mut document) = read::<PendingDocument>(transaction, &key)? else {
        return Ok(false);
    };
    let Some(mut made) = document.made.take_if(|made| !made.kept) else {
        return Ok(false);
    };
    let given = uses::give_back(transaction, &made)?;
    if !given {
        made.kept = true;
        document.made = Some(made);
    }
    write(transaction, &key, &document)?;
    Ok(given)
}

/// Adopts these decisions, so that this gateway's log gets them; the uses that they have made stay used. They are of gateways that have
/// been away for too long to record them themselves. Or the store came from another engine or a backup. A gateway that serves keeps its
/// decisions: its clock may be wrong, or this one's.
async fn adopt(engine: &impl Engine, is_one: impl Fn(&PendingDocument) -> bool) -> Result<(), StoreError> {
    for KeyValue { key, value } in all(engine, keys::pendings()).await? {
        let document: PendingDocument = parse(&key, &value)?;
        if document.replica.as_deref() == engine.replica() || !is_one(&document) {
            continue;
        }
        let own = engine.replica().map(str::to_owned);
        run(engine, move |transaction| {
            let served = match &document.replica {
                Some(replica) => transaction.get(&keys::serving(replica))?.is_some(),
                None => false,
            };
            match read::<PendingDocument>(transaction, &key)? {
                Some(found) if found == document && !served => {
                    let replica = own.clone();
                    write(transaction, &key, &PendingDocument { replica, ..found })?;
                    uses::adopt(transaction, &key)
                }
                _ => Ok(()),
            }
        })
        .await?;
    }
    Ok(())
}

#[async_trait]
impl<E: Engine + 'static> Store for E {
    async fn work(&self, mode: Mode, mut work: EntryWork) -> Result<(), StoreError> {
        let replica = self.replica().map(str::to_owned);
        let work: Work = Box::new(move |keys| {
            let mut transaction = EntryTransaction::new(keys, replica.as_deref());
            let done = work(&mut transaction);
            match transaction.is_interrupted() {
                true => Err(WorkInterrupted::Engine),
                false => Ok(done?),
            }
        });
        work_in(self, mode, work).await
    }

    fn settle(&self, decision: &str) {
        let key = keys::pending(decision);
        self.later(Box::new(move |transaction| transaction.delete(&key)));
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        let wanted = decision.to_owned();
        let given = run_in(Mode::ForRecord, self, move |transaction| give_back(transaction, &wanted)).await;
        if given.is_err() {
            self.give_back_later(decision);
        }
        given
    }

    fn give_back_later(&self, decision: &str) {
        let decision = decision.to_owned();
        self.later(Box::new(move |transaction| give_back(transaction, &decision).map(drop)));
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        let mut found = Vec::new();
        for KeyValue { key, value } in all(self, keys::pendings()).await? {
            let PendingDocument {
                at,
                replica,
                record,
                adopted,
                made,
                ..
            } = parse(&key, &value)?;
            if replica.as_deref() == self.replica() {
                let decision = last(&key)?;
                let decided = DecisionRecord { decision, at, record };
                let has_use = made.is_some();
                found.push(Pending { decided, has_use, adopted });
            }
        }
        found.sort_by(|a, b| (a.decided.at, &a.decided.decision).cmp(&(b.decided.at, &b.decided.decision)));
        Ok(found)
    }

    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let wanted = id.to_owned();
        let removed = run(self, move |transaction| remove(transaction, kind, &wanted)).await?;
        if kind == EntryKind::Token {
            // It is gone whatever becomes of these: nobody can make another use.
            let id = id.to_owned();
            let forget = move |transaction: &mut dyn Transaction| uses::forget(transaction, EntryKind::TokenUse, &id);
            if run(self, forget.clone()).await.is_err() {
                self.later(Box::new(forget));
            }
        }
        Ok(removed)
    }

    fn has_room(&self) -> Result<(), StoreError> {
        Engine::has_room(self)
    }

    async fn list(&self, kind: EntryKind) -> Result<Vec<StoreEntry>, StoreError> {
        let mut entries = Vec::new();
        for KeyValue { key, value } in all(self, keys::entries(kind.as_str())).await? {
            let EntryDocument { value, .. } = parse(&key, &value)?;
            entries.push(StoreEntry { id: last(&key)?, value });
        }
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store> {
        Arc::new(Witnessed::new(self, witness))
    }

    async fn append_to_outbox(&self, told: String) -> Result<(), StoreError> {
        outbox::append_to_outbox(self, told).await
    }

    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<StoreEntry>, StoreError> {
        outbox::page(self, after, most).await
    }

    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError> {
        outbox::remove(self, ids).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        Engine::sync(self)
    }

    fn atomic_writes_limit(&self) -> Option<usize> {
        Engine::atomic_writes_limit(self)
    }

    fn store_mark(&self) -> Option<StoreMark> {
        Engine::store_mark(self)
    }

    fn recent_mark(&self) -> Option<u64> {
        Engine::recent_mark(self)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        Engine::keep_mark(self).await
    }

    fn mark_path(&self) -> Option<&Path> {
        Engine::mark_path(self)
    }

    async fn serve(&self) -> Result<(), StoreError> {
        Engine::serve(self).await?;
        adopt(self, |document| document.replica.is_some() != self.replica().is_some()).await
    }

    async fn join(&self) -> Result<(), StoreError> {
        Engine::join(self).await
    }

    fn serves_as(&self) -> Option<&str> {
        self.replica()
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        Engine::acquire_leadership(self, work).await
    }

    async fn time(&self, now: u64) -> Result<u64, StoreError> {
        let passed = Duration::ZERO;
        store_time::go_on(self, Tick { now, passed }).await
    }

    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError> {
        let believed = store_time::go_on(self, tick).await?;
        // A store that was begun while the clock was ahead must not forget what is spent when it is right: both have to say so.
        let both = believed.min(tick.now);
        store_time::forget(self, both, self.most_challenges()).await?;
        let long_ago = both.saturating_sub(PENDING_LIMIT_SECONDS);
        adopt(self, |document| document.at < long_ago).await?;
        Ok(believed)
    }
}
