//! What a store does, over any engine: each method is one transaction, and what takes more pages and transactions says so.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::documents::{EntryDocument, PendingDocument, parse};
use super::engine::{As, Engine, KeyRange, KeyValue, Transaction, Unfinished, run, run_as};
use super::{
    ChangeUnlessServed, Claim, Deciding, Entry, EntryKind, Lead, Occasion, Pending, Rewrite, Seen, Spend, Spendable, Store, StoreError,
    StoreMark, Tick, Witness, Witnessed, believed, held, keys, outbox, outcomes, seen, uses,
};

/// How long another gateway may stay away before what its decisions stood on counts as used: longer than a machine is repaired.
const PENDING_LIMIT_SECONDS: u64 = 7 * 86_400;
/// Values that are read at once: some hundred kilobytes.
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

/// As [`run`], for a decision of this gateway, if what it was made from is unchanged.
async fn decide<T: Send + 'static>(
    engine: &impl Engine,
    Deciding { pending, seen }: Deciding,
    work: impl Fn(&mut dyn Transaction, &Pending) -> Result<T, Unfinished> + Send + 'static,
) -> Result<T, StoreError> {
    let (replica, decision) = (engine.replica().map(str::to_owned), pending.decision.clone());
    let decided = run_as(As::ForRecord, engine, move |transaction| {
        seen::refuse_changed(transaction, &seen)?;
        let found = work(transaction, &pending)?;
        super::pending::is_of(transaction, &pending.decision, replica.as_deref())?;
        Ok(found)
    })
    .await;
    // It may have been done, and whoever asked takes it for not done: nobody gets anything for it.
    give_back_in_doubt(engine, decision, decided)
}

/// Has what a decision used up given back some time later, if whether this was done is not known.
fn give_back_in_doubt<T>(engine: &impl Engine, decision: String, done: Result<T, StoreError>) -> Result<T, StoreError> {
    if let Err(StoreError::Engine { .. } | StoreError::Unanswered { .. } | StoreError::Closed) = &done {
        engine.later(Box::new(move |transaction| outcomes::give_back(transaction, &decision).map(drop)));
    }
    done
}

/// Settles what decisions of other gateways stand on that have been pending for so long that these will not come back to say what became of
/// them: it was used. Of one that serves the clock may be wrong, or this one's: it says so itself, now or when it starts again.
async fn settle_others(engine: &impl Engine, now: u64) -> Result<(), StoreError> {
    let long_ago = now.saturating_sub(PENDING_LIMIT_SECONDS);
    let is_theirs = |document: &PendingDocument| document.replica.as_deref() != engine.replica() && document.at < long_ago;
    settle_where(engine, is_theirs, |transaction, document| match &document.replica {
        Some(replica) => Ok(transaction.get(&keys::serving(replica))?.is_none()),
        None => Ok(true),
    })
    .await
    .map(drop)
}

/// Settles what decisions stand on that are nobody's: a store that came from another engine or gateway, or from a backup of one, has some that no gateway
/// takes for its own. It was used.
async fn settle_nobodys(engine: &impl Engine) -> Result<(), StoreError> {
    let is_nobodys = |document: &PendingDocument| document.replica.is_some() != engine.replica().is_some();
    match settle_where(engine, is_nobodys, |_, _| Ok(true)).await? {
        0 => {}
        settled => tracing::warn!(
            "{settled} decisions that were never recorded were made while another engine, or another gateway, had the store: what they used up counts as used"
        ),
    }
    Ok(())
}

/// Settles what some decisions stand on, if this holds in the transaction that does so; says how many.
async fn settle_where(
    engine: &impl Engine,
    is_one: impl Fn(&PendingDocument) -> bool,
    holds: impl Fn(&mut dyn Transaction, &PendingDocument) -> Result<bool, Unfinished> + Send + Copy + 'static,
) -> Result<usize, StoreError> {
    let mut settled = 0;
    for pending in all(engine, keys::pendings()).await? {
        let document = parse(&pending.key, &pending.value)?;
        if !is_one(&document) {
            continue;
        }
        let decision = last(&pending.key)?;
        let done = run(engine, move |transaction| {
            let holds = holds(transaction, &document)?;
            if holds {
                outcomes::settle(transaction, &decision)?;
            }
            Ok(holds)
        });
        settled += usize::from(done.await?);
    }
    Ok(settled)
}

#[async_trait]
impl<E: Engine + 'static> Store for E {
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        if thing.kind == EntryKind::Challenge {
            self.has_room()?;
        }
        run_as(As::ForRecord, self, move |transaction| {
            believed::refuse_forgotten(transaction, &thing)?;
            uses::spend(transaction, &thing)
        })
        .await
    }

    async fn spend_for(&self, thing: Spendable, occasion: Occasion, decision: Deciding) -> Result<Spend, StoreError> {
        decide(self, decision, move |transaction, pending| {
            believed::refuse_forgotten(transaction, &thing)?;
            uses::spend_for(transaction, &thing, &occasion, pending)
        })
        .await
    }

    async fn confirm(&self, seen: Seen) -> Result<(), StoreError> {
        run_as(As::Read, self, move |transaction| seen::refuse_changed(transaction, &seen)).await
    }

    async fn would_spend(&self, thing: Spendable, occasion: Occasion, at: u64) -> Result<Spend, StoreError> {
        run(self, move |transaction| {
            believed::refuse_forgotten(transaction, &thing)?;
            uses::look(transaction, &thing, &occasion, at)
        })
        .await
    }

    async fn claim(&self, kind: EntryKind, claim: Claim, decision: Deciding) -> Result<Option<Entry>, StoreError> {
        decide(self, decision, move |transaction, pending| {
            held::claim(transaction, kind, &claim, pending)
        })
        .await
    }

    async fn share(&self, kind: EntryKind, entry: Entry, decision: Deciding) -> Result<bool, StoreError> {
        decide(self, decision, move |transaction, pending| {
            held::share(transaction, kind, &entry, pending)
        })
        .await
    }

    fn settle(&self, decision: &str) {
        let decision = decision.to_owned();
        self.later(Box::new(move |transaction| outcomes::settle(transaction, &decision)));
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        let (given, decision) = (decision.to_owned(), decision.to_owned());
        let given = run_as(As::ForRecord, self, move |transaction| outcomes::give_back(transaction, &given)).await;
        // Nobody asks for it again while this gateway runs, and others take what stays pending for used one day.
        give_back_in_doubt(self, decision, given)
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        let mut found = Vec::new();
        for pending in all(self, keys::pendings()).await? {
            let document: PendingDocument = parse(&pending.key, &pending.value)?;
            if document.replica.as_deref() != self.replica() {
                continue;
            }
            let decision = last(&pending.key)?;
            found.extend(run(self, move |transaction| outcomes::look(transaction, &decision)).await?);
        }
        found.sort_by(|a, b| (a.at, &a.decision).cmp(&(b.at, &b.decision)));
        Ok(found)
    }

    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        let id = id.to_owned();
        run_as(As::Read, self, move |transaction| uses::uses(transaction, kind, &id)).await
    }

    async fn insert(&self, kind: EntryKind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        run(self, move |transaction| held::insert(transaction, kind, &entry)).await
    }

    async fn put(&self, kind: EntryKind, entry: Entry) -> Result<(), StoreError> {
        run(self, move |transaction| held::put(transaction, kind, &entry)).await
    }

    async fn note(&self, kind: EntryKind, entries: Vec<Entry>) -> Result<(), StoreError> {
        run_as(As::ForRecord, self, move |transaction| {
            entries.iter().try_for_each(|entry| held::put(transaction, kind, entry))
        })
        .await
    }

    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<Entry>, StoreError> {
        let id = id.to_owned();
        run_as(As::Read, self, move |transaction| held::get(transaction, kind, &id)).await
    }

    async fn get_all(&self, wanted: Vec<(EntryKind, String)>) -> Result<Vec<Option<Entry>>, StoreError> {
        run_as(As::Read, self, move |transaction| {
            // All are asked for before one is looked at: an engine fetches them at once.
            let found = wanted.iter().map(|(kind, id)| held::get(transaction, *kind, id));
            found.collect::<Vec<_>>().into_iter().collect()
        })
        .await
    }

    async fn stays(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        run(self, move |transaction| held::stays(transaction, kind, &id)).await
    }

    async fn stands(&self, kind: EntryKind, entry: Entry) -> Result<bool, StoreError> {
        run(self, move |transaction| held::stands(transaction, kind, &entry)).await
    }

    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let removed = {
            let id = id.clone();
            run(self, move |transaction| held::remove(transaction, kind, &id)).await?
        };
        if kind == EntryKind::Token {
            // It is gone whatever becomes of these: nobody can make another use.
            let forget = move |transaction: &mut dyn Transaction| uses::forget(transaction, EntryKind::TokenUse, &id);
            if run(self, forget.clone()).await.is_err() {
                self.later(Box::new(forget));
            }
        }
        Ok(removed)
    }

    async fn change(&self, kind: EntryKind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        run(self, move |transaction| held::change(transaction, kind, &expected, &write)).await
    }

    async fn change_unless_served(
        &self,
        gateways: Vec<String>,
        kind: EntryKind,
        expected: Vec<Entry>,
        write: Vec<Entry>,
    ) -> Result<ChangeUnlessServed, StoreError> {
        run(self, move |transaction| {
            for id in &gateways {
                if transaction.get(&keys::serving(id))?.is_some() {
                    return Ok(ChangeUnlessServed::Serves(id.clone()));
                }
            }
            let changed = held::change(transaction, kind, &expected, &write)?;
            Ok(if changed {
                ChangeUnlessServed::Changed
            } else {
                ChangeUnlessServed::Otherwise
            })
        })
        .await
    }

    async fn rewrite(&self, seen: Seen, rewrites: Vec<Rewrite>) -> Result<(), StoreError> {
        run(self, move |transaction| {
            seen::refuse_changed(transaction, &seen)?;
            held::rewrite(transaction, &rewrites)
        })
        .await
    }

    async fn list(&self, kind: EntryKind) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for KeyValue { key, value } in all(self, keys::entries(kind.as_str())).await? {
            // What is gone, and a decision stands on what it was.
            let EntryDocument { value: Some(value), .. } = parse(&key, &value)? else {
                continue;
            };
            entries.push(Entry { id: last(&key)?, value });
        }
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store> {
        Arc::new(Witnessed::new(self, witness))
    }

    async fn tell(&self, told: String) -> Result<(), StoreError> {
        outbox::tell(self, told).await
    }

    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError> {
        outbox::page(self, after, most).await
    }

    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError> {
        outbox::remove(self, ids).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        Engine::sync(self)
    }

    fn standing(&self) -> Option<StoreMark> {
        Engine::standing(self)
    }

    fn recent_mark(&self) -> Option<u64> {
        Engine::recent_mark(self)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        Engine::keep_mark(self).await
    }

    fn beside(&self) -> Option<&Path> {
        Engine::beside(self)
    }

    async fn serve(&self) -> Result<(), StoreError> {
        Engine::serve(self).await?;
        settle_nobodys(self).await
    }

    fn serves_as(&self) -> Option<&str> {
        self.replica()
    }

    async fn lead(&self, work: &str) -> Result<Option<Lead>, StoreError> {
        Engine::lead(self, work).await
    }

    async fn time(&self, now: u64) -> Result<u64, StoreError> {
        let passed = Duration::ZERO;
        believed::go_on(self, Tick { now, passed }).await
    }

    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError> {
        let believed = believed::go_on(self, tick).await?;
        // A store that was begun while the clock was ahead must not forget what is spent when it is right: both have to say so.
        let both = believed.min(tick.now);
        believed::forget(self, both, self.most_challenges()).await?;
        settle_others(self, both).await?;
        Ok(believed)
    }
}
