//! The seal's keys in the store that replicas share.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use attest_store::{EntryKind, Store, StoreEntry};
use tokio::sync::Mutex;

use super::document::{SealDocument, SealMaintenance, SharedKeys};
use super::key_file::KeyFile;
use super::state_file::{self, KeySetId};
use super::{SealError, SealKeys, Times};

/// The id of the one entry.
pub(super) const ENTRY: &str = "keys";
/// Shortest interval between reads of the store for an unknown key.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of attempts at a change while other replicas are faster. One of those that race wins each time.
const ATTEMPTS: usize = 32;

/// Location of the keys, with the set that was read last.
pub(super) struct SharedSeal {
    store: Arc<dyn Store>,
    key_file: PathBuf,
    cached: StdMutex<CachedSeal>,
    read: Mutex<Option<LastRead>>,
}

/// Last read of the store for an unknown key, and its success.
struct LastRead {
    began: Instant,
    ended: Instant,
    could: bool,
}

struct CachedSeal {
    keys: SharedKeys,
    now: Times,
}

/// Change of the keys in the store.
pub(super) enum SealChange {
    /// Only the changes that are due.
    Tend,
    /// An additional key, which seals when every replica has it.
    Rotate,
    /// A new key, which seals at once; texts that others have sealed become worthless. Unreadable keys are replaced, too. Keys encrypted by
    /// a key that this file lacks are replaced only if that key is lost: other replicas may have it.
    Drop { key_is_lost: bool },
}

impl SharedSeal {
    pub(super) async fn open(store: Arc<dyn Store>, key_file: &Path, now: Times) -> Result<Self, SealError> {
        let (keys, _) = change(&*store, key_file, now, &SealChange::Tend, None).await?;
        Ok(Self {
            store,
            key_file: key_file.to_owned(),
            cached: StdMutex::new(CachedSeal { keys, now }),
            read: Mutex::new(None),
        })
    }

    /// Returns the known keys, for use.
    pub(super) fn keys(&self) -> Result<SealKeys, SealError> {
        let known = self.lock();
        known.keys.keys(known.now.store)
    }

    /// Takes the keys over as they are in the store, with what is due; says whether there is a new one.
    pub(super) async fn maintain(&self, now: Times) -> Result<bool, SealError> {
        let known = self.current_set();
        let (keys, made) = change(&*self.store, &self.key_file, now, &SealChange::Tend, Some(&known)).await?;
        self.take(keys, Some(now));
        Ok(made)
    }

    /// Drops those of the keys that are known which have ended.
    pub(super) fn until_their_ends(&self, now: Times) {
        let mut known = self.lock();
        known.keys.drop_over(now);
        known.now = now;
    }

    /// Reads the store, unless that was done just now, or `is_known` by then; says whether it was read meanwhile, by whomever.
    pub(super) async fn reread(&self, is_known: impl Fn() -> bool) -> Result<bool, SealError> {
        let arrived = Instant::now();
        // Whoever comes meanwhile waits for what is read, and not for a turn: a slow store is not read by one after the other.
        let mut last = self.read.lock().await;
        if is_known() {
            return Ok(false);
        }
        if let Some(LastRead { began, ended, could }) = &*last
            && (*began >= arrived || ended.elapsed() < READ_EVERY)
        {
            // Whoever has read for it may not use yet what is known by now.
            return if *could { Ok(*ended >= arrived) } else { Err(SealError::Unread) };
        }
        let began = Instant::now();
        let found = self.read().await;
        *last = Some(LastRead {
            began,
            ended: Instant::now(),
            could: found.is_ok(),
        });
        found.map(|()| true)
    }

    /// Returns the known set, before the store is read: a set that is read after that must not be older.
    fn current_set(&self) -> KeySetId {
        let known = self.lock();
        KeySetId {
            store: known.keys.store.clone(),
            changes: known.keys.changes,
        }
    }

    async fn read(&self) -> Result<(), SealError> {
        let known = self.current_set();
        let keys = StoredSeal::read(&*self.store, &self.key_file).await?.not_before(Some(&known))?.keys;
        if let Some(keys) = keys {
            self.take(keys, None);
        }
        Ok(())
    }

    /// Knows these from now on, unless a newer set was read meanwhile.
    fn take(&self, keys: SharedKeys, now: Option<Times>) {
        let mut known = self.lock();
        known.now = now.unwrap_or(known.now);
        if keys.store != known.keys.store || keys.changes >= known.keys.changes {
            known.keys = keys;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CachedSeal> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the keys in the store.
struct StoredSeal {
    /// The entry as it was read.
    entry: Option<StoreEntry>,
    /// Id of the store.
    store: String,
    file: KeyFile,
    /// `None` if the store has no keys, or those of another store.
    keys: Option<SharedKeys>,
    /// The id of the key of the file that they are encrypted by.
    encrypted_by: Option<String>,
    /// Path of the file with the newest known set.
    set_file: Option<PathBuf>,
    /// The newest set that was read here before.
    known_set: Result<Option<KeySetId>, SealError>,
}

impl StoredSeal {
    async fn read(store: &dyn Store, key_file: &Path) -> Result<Self, SealError> {
        let mut found = Self::unread(store, key_file).await?;
        let known = std::mem::replace(&mut found.known_set, Ok(None))?;
        found.known_set = Ok(known.clone());
        if let Some(entry) = &found.entry {
            (found.encrypted_by, found.keys) = open(entry, &found.store, &found.file)?.unzip();
        }
        found.not_before(known.as_ref())
    }

    /// Checks that the set is not older than the known one.
    fn not_before(self, known: Option<&KeySetId>) -> Result<Self, SealError> {
        match (&self.keys, known) {
            (Some(keys), Some(known)) if keys.store == known.store && keys.changes < known.changes => Err(SealError::SetBack {
                found: keys.changes,
                known: known.changes,
                by: self
                    .set_file
                    .map_or_else(|| "this gateway".to_owned(), |path| path.display().to_string()),
            }),
            _ => Ok(self),
        }
    }

    /// Returns whether keys of this store are known or were read here earlier, and the store has no entry.
    fn is_gone(&self, known: Option<&KeySetId>) -> bool {
        let read = self.known_set.as_ref().ok().and_then(Option::as_ref);
        self.entry.is_none() && read.into_iter().chain(known).any(|set| set.store == self.store)
    }

    /// Writes down how far these have come, so that older ones in their place are noticed.
    async fn keep(kept: Option<&Path>, file: &KeyFile, keys: &SharedKeys) -> Result<(), SealError> {
        let set = KeySetId {
            store: keys.store.clone(),
            changes: keys.changes,
        };
        let Some(path) = kept else {
            return Ok(());
        };
        let is_newer = || {
            let known = state_file::read(path, file)?;
            Ok::<_, SealError>(known.is_none_or(|known| known.store != set.store || known.changes < set.changes))
        };
        if !is_newer()? {
            return Ok(());
        }
        let _alone = file.lock().await?;
        match is_newer()? {
            true => state_file::write(path, file.newest()?, &set),
            false => Ok(()),
        }
    }

    /// Returns the number of a new set at this time. It is higher than that of any earlier set, even of an unreadable one: no set is
    /// changed once a second. A forged entry in its place has no influence.
    fn next_set_number(&self, now: u64) -> u64 {
        let known = self
            .known_set
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .map_or(0, |known| known.changes);
        let next = self.entry.as_ref().map_or(1, |entry| {
            let found = open(entry, &self.store, &self.file).ok().flatten();
            now.max(found.map_or(0, |(_, keys)| keys.changes).saturating_add(1))
        });
        next.max(known.saturating_add(1))
    }

    async fn unread(store: &dyn Store, key_file: &Path) -> Result<Self, SealError> {
        let (file, kept) = (KeyFile::read(key_file)?, state_file::file(store));
        // Before what is compared with it: another process with this state may write both meanwhile.
        let known = kept.as_deref().map_or(Ok(None), |path| state_file::read(path, &file));
        let entry = store.get(EntryKind::SealKey, ENTRY).await?;
        Ok(Self {
            entry,
            // After it was read: an engine may know only then.
            store: store.store_mark().ok_or(SealError::Nameless)?.id,
            file,
            keys: None,
            encrypted_by: None,
            set_file: kept,
            known_set: known,
        })
    }

    /// Checks that the file has the key of the entry, if that names one: an older key file must not replace a newer one.
    fn for_drop(mut self, key_is_lost: bool) -> Result<Self, SealError> {
        let document = self.entry.as_ref().and_then(|entry| SealDocument::parse(&entry.value).ok());
        if let Some(document) = document.filter(|document| !key_is_lost && document.is_for(&self.store)) {
            self.encrypted_by = Some(document.store_key(&self.file)?.id.clone());
        }
        Ok(self)
    }

    /// Writes these in their place; returns whether no other replica was faster.
    async fn write(self, store: &dyn Store, keys: &SharedKeys, newest_key: bool) -> Result<bool, SealError> {
        let (kept, file) = (self.set_file.clone(), &self.file);
        // Replicas whose file is an older one go on until they have the newer.
        let key = match self.encrypted_by.as_deref() {
            Some(id) if !newest_key => self.file.key(id)?,
            _ => self.file.newest()?,
        };
        let entry = StoreEntry {
            id: ENTRY.to_owned(),
            value: keys.encrypt(key)?.text()?,
        };
        let written = match self.entry {
            Some(before) => store.change(EntryKind::SealKey, vec![before], vec![entry]).await?,
            None => store.insert(EntryKind::SealKey, entry).await?.is_none(),
        };
        if written {
            Self::keep(kept.as_deref(), file, keys).await?;
        }
        Ok(written)
    }
}

/// Returns the id of the key that encrypts an entry, and the keys in it. `None` if they are for another store: those need not be read.
pub(super) fn open(entry: &StoreEntry, store: &str, file: &KeyFile) -> Result<Option<(String, SharedKeys)>, SealError> {
    let document = SealDocument::parse(&entry.value)?;
    if !document.is_for(store) {
        return Ok(None);
    }
    let key = document.store_key(file)?;
    Ok(Some((key.id.clone(), document.decrypt(key)?)))
}

/// Changes the keys in the store, even if other replicas do so at the same time. Returns them, and whether this has made a new one. They
/// are never older than `known`, or than a set that was read here.
pub(super) async fn change(
    store: &dyn Store,
    key_file: &Path,
    now: Times,
    change: &SealChange,
    known: Option<&KeySetId>,
) -> Result<(SharedKeys, bool), SealError> {
    for _ in 0..ATTEMPTS {
        let mut found = match change {
            SealChange::Drop { key_is_lost } => StoredSeal::unread(store, key_file).await?.for_drop(*key_is_lost)?,
            SealChange::Tend | SealChange::Rotate => StoredSeal::read(store, key_file).await?.not_before(known)?,
        };
        let gone = found.is_gone(known);
        let (keys, made) = match found.keys.take() {
            None => (SharedKeys::new(found.store.clone(), now, found.next_set_number(now.store))?, true),
            Some(mut keys) => {
                let SealMaintenance { made, changed } = match change {
                    SealChange::Rotate => {
                        keys.rotate(now.store)?;
                        SealMaintenance { made: true, changed: true }
                    }
                    SealChange::Tend | SealChange::Drop { .. } => keys.maintain(now)?,
                };
                if !changed {
                    StoredSeal::keep(found.set_file.as_deref(), &found.file, &keys).await?;
                    return Ok((keys, false));
                }
                keys.changes = keys.changes.saturating_add(1);
                (keys, made)
            }
        };
        if found.write(store, &keys, false).await? {
            if gone {
                tracing::warn!(
                    "the seal's keys were missing from the store; created new ones. All challenges and tickets are invalid: nodes with a ticket have to boot again. No command removes these keys: find out who can write to the store, and check for other changes: `attest-gateway machines list`, `attest-gateway token list`"
                );
            }
            return Ok((keys, made));
        }
    }
    Err(SealError::Contended)
}

/// Gives the key file a new key, and encrypts the keys in the store by it. Gives the ids of the one before and of the new one.
pub(super) async fn replace_key_file(store: &dyn Store, key_file: &Path, now: Times) -> Result<(String, String), SealError> {
    let _alone = KeyFile::alone(key_file).await?;
    let before = StoredSeal::read(store, key_file).await?;
    let old = match &before.encrypted_by {
        Some(id) => id.clone(),
        None => before.file.newest()?.id.clone(),
    };
    // From here on the file opens what is there, and what will be there.
    let file = before.file.begin_to_replace(&old)?;
    let new = file.newest()?.id.clone();
    for _ in 0..ATTEMPTS {
        let mut found = StoredSeal::read(store, key_file).await?;
        found.file = found.file.begins_with(&new)?;
        let keys = match found.keys.take() {
            Some(mut keys) => {
                keys.changes = keys.changes.saturating_add(1);
                keys
            }
            None => SharedKeys::new(found.store.clone(), now, found.next_set_number(now.store))?,
        };
        if found.write(store, &keys, true).await? {
            KeyFile::read(key_file)?.begins_with(&new)?.end_replacing()?;
            return Ok((old, new));
        }
    }
    Err(SealError::Contended)
}
