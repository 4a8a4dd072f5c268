//! A transaction of a store, in terms of entries, uses and decisions.

use super::documents::{DocumentVersion, EntryDocument, PendingDocument, UseOfDecision, read, write};
use super::engine::{self, Transaction, WorkInterrupted};
use super::{DecisionRecord, EntryKind, Spend, Spendable, StoreEntry, StoreError, UseOccasion, keys, store_time, uses};

/// A transaction whose reads see one snapshot and its own writes. Its writes take effect at that same moment, all or none. Callers have to
/// pass on its errors.
pub struct EntryTransaction<'t> {
    keys: &'t mut dyn Transaction,
    /// The gateway that decides, where several share the store.
    replica: Option<&'t str>,
    /// The use that was made.
    made: Option<UseOfDecision>,
    /// Set if the engine has to fetch something and begin again.
    interrupted: bool,
}

impl std::fmt::Debug for EntryTransaction<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EntryTransaction").finish_non_exhaustive()
    }
}

impl<'t> EntryTransaction<'t> {
    pub(super) fn new(keys: &'t mut dyn Transaction, replica: Option<&'t str>) -> Self {
        Self {
            keys,
            replica,
            made: None,
            interrupted: false,
        }
    }

    /// Returns whether the engine has to begin again, whatever this run returned.
    pub(super) const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn reach<T>(&mut self, done: Result<T, WorkInterrupted>) -> Result<T, StoreError> {
        done.map_err(|unfinished| match unfinished {
            WorkInterrupted::Engine => {
                self.interrupted = true;
                StoreError::Interrupted
            }
            WorkInterrupted::Refused(error) => error,
        })
    }

    /// Reads these entries in advance: an engine across a network fetches them in one request, and not one after the other.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn fetch<'i>(&mut self, wanted: impl IntoIterator<Item = (EntryKind, &'i str)>) -> Result<(), StoreError> {
        let wanted = wanted.into_iter().map(|(kind, id)| keys::entry(kind.as_str(), id));
        let done = engine::fetch(self.keys, wanted);
        self.reach(done)
    }

    /// Returns the entry with that id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&mut self, kind: EntryKind, id: &str) -> Result<Option<StoreEntry>, StoreError> {
        let done = read::<EntryDocument>(self.keys, &keys::entry(kind.as_str(), id));
        let id = id.to_owned();
        Ok(self.reach(done)?.map(|EntryDocument { value, .. }| StoreEntry { id, value }))
    }

    /// Writes an entry, whatever was there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn put(&mut self, kind: EntryKind, StoreEntry { id, value }: StoreEntry) -> Result<(), StoreError> {
        let key = keys::entry(kind.as_str(), &id);
        let done = write(self.keys, &key, &EntryDocument { v: DocumentVersion, value });
        self.reach(done)
    }

    /// Removes an entry; returns whether it existed. The uses of a token stay ([`super::Store::remove`]).
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn remove(&mut self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let done = remove(self.keys, kind, id);
        self.reach(done)
    }

    /// Uses a thing, on this occasion, at this time in seconds since 1970. A decision makes one use at most, beside that of its challenge.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn spend(&mut self, thing: &Spendable, occasion: &UseOccasion, at: u64) -> Result<Spend, StoreError> {
        let done = store_time::refuse_forgotten(self.keys, thing).and_then(|()| uses::spend(self.keys, thing, occasion, at));
        let found = self.reach(done)?;
        self.made = uses::decision_use(thing, occasion, found).or(self.made.take());
        Ok(found)
    }

    /// Returns what [`Self::spend`] would. Nothing is used up.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn would_spend(&mut self, thing: &Spendable, occasion: &UseOccasion, at: u64) -> Result<Spend, StoreError> {
        let done = store_time::refuse_forgotten(self.keys, thing).and_then(|()| uses::check_use(self.keys, thing, occasion, at));
        self.reach(done)
    }

    /// Returns how often a thing was used; 0 also when its uses are forgotten.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn uses(&mut self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        let done = uses::uses(self.keys, kind, id);
        self.reach(done)
    }

    /// Returns whether the gateway with this id serves ([`super::Store::serves_as`]). One that was killed serves until its lease is over.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn is_served_by(&mut self, gateway: &str) -> Result<bool, StoreError> {
        let done = self.keys.get(&keys::serving(gateway));
        Ok(self.reach(done)?.is_some())
    }

    /// Returns whether the attestation log does not have a decision yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn is_pending(&mut self, decision: &str) -> Result<bool, StoreError> {
        let done = self.keys.get(&keys::pending(decision));
        Ok(self.reach(done)?.is_some())
    }

    /// Keeps a decision until the attestation log has it ([`super::Store::settle`]), with the use that this transaction has made.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn decide(&mut self, DecisionRecord { decision, at, record }: DecisionRecord) -> Result<(), StoreError> {
        let document = PendingDocument {
            v: DocumentVersion,
            at,
            replica: self.replica.map(str::to_owned),
            record,
            adopted: false,
            made: self.made.clone(),
        };
        let done = write(self.keys, &keys::pending(&decision), &document);
        self.reach(done)
    }
}

/// Removes an entry; returns whether it existed. Does not read the uses of a token: otherwise continuous use would delay its removal for as
/// long as it lasts.
pub(super) fn remove(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<bool, WorkInterrupted> {
    let key = keys::entry(kind.as_str(), id);
    let was_there = read::<EntryDocument>(transaction, &key)?.is_some();
    if was_there {
        transaction.delete(&key)?;
    }
    Ok(was_there)
}
