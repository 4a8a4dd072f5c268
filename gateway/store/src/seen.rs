//! What a decision was made from. Whoever decides reads in transactions of their own, and may stand still before what comes of it is
//! written: so the transaction that writes wants all of it unchanged, and whatever was changed meanwhile is decided on anew.
//!
//! Each use of a ticket or a token is such a transaction, also one that is made again. A kubelet's certificate uses nothing up: what was read for it
//! has to stand there at one moment ([`Store::confirm`]), and so does what somebody is refused for. Where a later step asks for all of it once more, reading in turn is enough: a
//! challenge is worth nothing before its evidence is judged, nor is a ticket before it is used. Who shows nothing gets what no entry decides on.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{Transaction, Unfinished};
use super::{Claim, Entry, EntryKind, Pending, Store, StoreError, held};

/// How often a decision is made anew because of changes meanwhile: somebody changes the same entries within milliseconds each time.
const ANEW_LIMIT: u32 = 8;

/// Entries as they were read, or that there was none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen(BTreeMap<(EntryKind, String), Option<String>>);

impl Seen {
    /// Notes what was read. What was read first counts: if it is another by now, that is a change.
    pub fn note(&mut self, kind: EntryKind, id: &str, value: Option<&str>) {
        let key = (kind, id.to_owned());
        self.0.entry(key).or_insert_with(|| value.map(str::to_owned));
    }

    /// Notes what a decision has written itself, or stands on with another: that is what has to be there from then on.
    fn note_own(&mut self, kind: EntryKind, Entry { id, value }: Entry) {
        self.0.insert((kind, id), Some(value));
    }
}

/// Reads entries for a decision, claims them for it, and notes both. An entry that is read once more is what it was the first time.
#[derive(Debug)]
pub struct Reading<'s> {
    pub store: &'s dyn Store,
    seen: Seen,
    /// What will be asked for, and was not read yet.
    soon: BTreeSet<(EntryKind, String)>,
    /// What was read for that, and not asked for yet: nothing is decided by it before.
    brought: BTreeMap<(EntryKind, String), Option<Entry>>,
}

impl<'s> Reading<'s> {
    #[must_use]
    pub const fn of(store: &'s dyn Store) -> Self {
        Self {
            store,
            seen: Seen(BTreeMap::new()),
            soon: BTreeSet::new(),
            brought: BTreeMap::new(),
        }
    }

    /// Says that these will be asked for: whatever is read next brings them along, so that they cost no transaction each. What is never asked for
    /// is not noted.
    pub fn soon<'i>(&mut self, kind: EntryKind, ids: impl IntoIterator<Item = &'i str>) {
        self.soon.extend(ids.into_iter().map(|id| (kind, id.to_owned())));
    }

    /// An entry.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&mut self, kind: EntryKind, id: &str) -> Result<Option<Entry>, StoreError> {
        let wanted = (kind, id.to_owned());
        if let Some(value) = self.seen.0.get(&wanted) {
            let entry = |value: &String| Entry {
                id: id.to_owned(),
                value: value.clone(),
            };
            return Ok(value.as_ref().map(entry));
        }
        if !self.brought.contains_key(&wanted) {
            self.bring(wanted.clone()).await?;
        }
        let found = self.brought.remove(&wanted).flatten();
        self.seen.note(kind, id, found.as_ref().map(|entry| entry.value.as_str()));
        Ok(found)
    }

    /// Reads this one, and what will be asked for.
    async fn bring(&mut self, wanted: (EntryKind, String)) -> Result<(), StoreError> {
        let mut soon = std::mem::take(&mut self.soon);
        soon.retain(|one| !self.brought.contains_key(one) && !self.seen.0.contains_key(one));
        soon.insert(wanted);
        let soon: Vec<_> = soon.into_iter().collect();
        let found = self.store.get_all(soon.clone()).await?;
        self.brought.extend(soon.into_iter().zip(found));
        Ok(())
    }

    /// Notes what was found in the way, if nothing is noted of it.
    pub fn note(&mut self, kind: EntryKind, found: &Entry) {
        self.seen.note(kind, &found.id, Some(&found.value));
    }

    /// That all of it stands there at one moment: what is refused for it is refused by the store, and not by what was read while it changed.
    ///
    /// # Errors
    /// [`StoreError::Changed`].
    pub async fn confirm(&self) -> Result<(), StoreError> {
        match self.seen.0.is_empty() {
            true => Ok(()),
            false => self.store.confirm(self.seen.clone()).await,
        }
    }

    /// Claims an entry for a decision, as [`Store::claim`], if all that was noted is unchanged. If somebody takes it away, that is a change.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn claim(&mut self, kind: EntryKind, claim: Claim, decision: &Pending) -> Result<Option<Entry>, StoreError> {
        let entry = claim.entry.clone();
        let found = self.store.claim(kind, claim, self.deciding(decision)).await?;
        if found.is_none() {
            self.seen.note_own(kind, entry);
        }
        Ok(found)
    }

    /// Lets an entry stand for a decision, too, as [`Store::share`], if all that was noted is unchanged. If somebody takes it away, that is a change.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn share(&mut self, kind: EntryKind, entry: Entry, decision: &Pending) -> Result<bool, StoreError> {
        let shared = self.store.share(kind, entry.clone(), self.deciding(decision)).await?;
        if shared {
            self.seen.note_own(kind, entry);
        }
        Ok(shared)
    }

    /// A decision, which is made from what was noted so far.
    #[must_use]
    pub fn deciding(&self, decision: &Pending) -> Deciding {
        Deciding {
            pending: decision.clone(),
            seen: self.seen.clone(),
        }
    }

    /// What was noted so far.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }
}

/// A decision, and what it was made from: what it uses up or claims is written only if that is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deciding {
    pub pending: Pending,
    pub seen: Seen,
}

impl From<Pending> for Deciding {
    /// It was made from no entry.
    fn from(pending: Pending) -> Self {
        let seen = Seen::default();
        Self { pending, seen }
    }
}

/// Decisions are made anew when what they were made from has changed, and not without end.
#[derive(Debug, Default)]
pub struct Anew(u32);

impl Anew {
    /// Lets a decision be made once more because of this error.
    ///
    /// # Errors
    /// The error, if it is another one or there was no end to changes: nobody gets anything.
    pub fn again(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.0 += 1;
        match error {
            StoreError::Changed { .. } if self.0 <= ANEW_LIMIT => Ok(()),
            error => Err(error),
        }
    }
}

/// Wants all of it unchanged.
pub(super) fn refuse_changed(transaction: &mut dyn Transaction, seen: &Seen) -> Result<(), Unfinished> {
    // All are asked for before one is looked at: an engine fetches them at once.
    let entries = seen.0.iter().map(|((kind, id), value)| {
        let unchanged = held::is_unchanged(transaction, (*kind, id), value.as_ref());
        (kind, id, unchanged)
    });
    for (kind, id, unchanged) in entries.collect::<Vec<_>>() {
        if !unchanged? {
            let (kind, id) = (kind.as_str(), id.clone());
            return Err(StoreError::Changed { kind, id }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;

    use super::super::engine::{Engine, Work};
    use super::super::tests::{entry, open};
    use super::super::through::Through;
    use super::super::{Embedded, Entry};
    use super::*;

    /// Counts transactions that read.
    #[derive(Debug)]
    struct Counting(Embedded, AtomicU32);

    #[async_trait]
    impl Through for Counting {
        fn engine(&self) -> &dyn Engine {
            &self.0
        }

        async fn read(&self, work: Work) -> Result<(), StoreError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(work).await
        }
    }

    #[tokio::test]
    async fn what_will_be_asked_for_is_brought_along_and_counts_once_it_is_asked_for() {
        let (_folder, store) = open();
        let store = Counting(store, AtomicU32::new(0));
        let put = async |id: &str, value: &str| store.put(EntryKind::Name, entry(id, value)).await.unwrap();
        put("a", "1").await;
        put("c", "1").await;
        let mut reading = Reading::of(&store);
        let get = async |reading: &mut Reading<'_>, id: &str| -> Option<Entry> { reading.get(EntryKind::Name, id).await.unwrap() };
        reading.soon(EntryKind::Name, ["b", "c", "d"]);
        assert_eq!(get(&mut reading, "a").await, Some(entry("a", "1")));
        assert_eq!(get(&mut reading, "b").await, None);
        // Said once more, of what is here and of what is noted.
        reading.soon(EntryKind::Name, ["a", "b", "c"]);
        assert_eq!(store.1.load(Ordering::Relaxed), 1);
        assert_eq!(get(&mut reading, "e").await, None);
        assert_eq!(store.1.load(Ordering::Relaxed), 2);
        // What nobody has asked for decides nothing.
        put("d", "2").await;
        put("c", "2").await;
        reading.confirm().await.unwrap();
        // What was brought counts as of when it was read.
        assert_eq!(get(&mut reading, "c").await, Some(entry("c", "1")));
        let changed = reading.confirm().await;
        assert!(
            matches!(changed, Err(StoreError::Changed { ref id, .. }) if id == "c"),
            "{changed:?}"
        );
    }
}
