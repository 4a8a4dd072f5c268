//! The seal's keys in the store that replicas share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::document::{Document, SharedKeys};
use super::key_file::KeyFile;
use super::{Keys, SealError};
use crate::store::{Entry, EntryKind, Store};

/// The id of the one entry.
pub(super) const ENTRY: &str = "keys";
/// How often the store is read for the sake of a key that is not known.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often a change is tried again when another replica was faster. One of those that race wins each time.
const ATTEMPTS: usize = 32;

/// Where the keys are, and what was read of them last.
pub(super) struct Shared {
    store: Arc<dyn Store>,
    key_file: PathBuf,
    known: StdMutex<Known>,
    read: Mutex<Option<LastRead>>,
}

/// When the store was read last for a key that was not known, and whether it could be.
struct LastRead {
    began: Instant,
    ended: Instant,
    could: bool,
}

struct Known {
    keys: SharedKeys,
    /// The store's time.
    now: u64,
}

/// What becomes of the keys.
pub(super) enum Change {
    /// What is due.
    Tend,
    /// One more key, which seals when every replica has it.
    Rotate,
    /// One new key, which seals at once; whatever others have sealed is worthless. What cannot be read is replaced, too; what is encrypted by a
    /// key that the file here lacks only if that key is lost: others may have it.
    Drop { key_is_lost: bool },
}

impl Shared {
    pub(super) async fn open(store: Arc<dyn Store>, key_file: &Path, now: u64) -> Result<(Self, Keys), SealError> {
        let (keys, _) = change(&*store, key_file, now, &Change::Tend).await?;
        let ready = keys.keys(now)?;
        let shared = Self {
            store,
            key_file: key_file.to_owned(),
            known: StdMutex::new(Known { keys, now }),
            read: Mutex::new(None),
        };
        Ok((shared, ready))
    }

    /// The keys as they are in the store, with what is due; and whether there is a new one.
    pub(super) async fn tend(&self, now: u64) -> Result<(Keys, bool), SealError> {
        let (keys, made) = change(&*self.store, &self.key_file, now, &Change::Tend).await?;
        let ready = keys.keys(now)?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known { keys, now };
        Ok((ready, made))
    }

    /// The keys that are known, but for those that have ended.
    pub(super) fn until_their_ends(&self, now: u64) -> Result<Keys, SealError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.keys.drop_over(now);
        known.now = now;
        known.keys.keys(now)
    }

    /// Reads the store, unless that was done just now, or `is_known` by then.
    pub(super) async fn read_again(&self, is_known: impl Fn() -> bool) -> Result<Option<Keys>, SealError> {
        let arrived = Instant::now();
        // Whoever comes meanwhile waits for what is read, and not for a turn: a slow store is not read by one after the other.
        let mut last = self.read.lock().await;
        if is_known() {
            return Ok(None);
        }
        if let Some(LastRead { began, ended, could }) = &*last
            && (*began >= arrived || ended.elapsed() < READ_EVERY)
        {
            return if *could { Ok(None) } else { Err(SealError::Unread) };
        }
        let began = Instant::now();
        let found = self.read().await;
        *last = Some(LastRead {
            began,
            ended: Instant::now(),
            could: found.is_ok(),
        });
        found.map(Some)
    }

    async fn read(&self) -> Result<Keys, SealError> {
        let keys = Found::read(&*self.store, &self.key_file).await?.keys;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = keys {
            known.keys = keys;
        }
        known.keys.keys(known.now)
    }
}

/// What stands in the store.
struct Found {
    /// As it is there.
    entry: Option<Entry>,
    /// Which store it is.
    store: String,
    file: KeyFile,
    /// None if there are none, or those of another store.
    keys: Option<SharedKeys>,
    /// The id of the key of the file that they are encrypted by.
    encrypted_by: Option<String>,
}

impl Found {
    async fn read(store: &dyn Store, key_file: &Path) -> Result<Self, SealError> {
        let mut found = Self::unread(store, key_file).await?;
        if let Some(entry) = &found.entry {
            let (id, keys) = open(entry, &found.store, &found.file)?;
            found.encrypted_by = Some(id);
            found.keys = keys;
        }
        Ok(found)
    }

    async fn unread(store: &dyn Store, key_file: &Path) -> Result<Self, SealError> {
        let file = KeyFile::read(key_file)?;
        let entry = store.get(EntryKind::SealKey, ENTRY).await?;
        Ok(Self {
            entry,
            // After it was read: an engine may know only then.
            store: store.standing().ok_or(SealError::Nameless)?.id,
            file,
            keys: None,
            encrypted_by: None,
        })
    }

    /// Wants the key of what is there, as far as that says it: an older key file does not take the place of a newer one.
    fn for_drop(mut self, key_is_lost: bool) -> Result<Self, SealError> {
        let document = self.entry.as_ref().and_then(|entry| Document::parse(&entry.value).ok());
        if let Some(document) = document.filter(|document| !key_is_lost && document.is_for(&self.store)) {
            self.encrypted_by = Some(document.store_key(&self.file)?.id.clone());
        }
        Ok(self)
    }

    /// Puts these in their place; says whether nobody else was faster.
    async fn write(self, store: &dyn Store, keys: &SharedKeys, newest_key: bool) -> Result<bool, SealError> {
        // Replicas whose file is an older one go on until they have the newer.
        let key = match self.encrypted_by.as_deref() {
            Some(id) if !newest_key => self.file.key(id)?,
            _ => self.file.newest()?,
        };
        let entry = Entry {
            id: ENTRY.to_owned(),
            value: keys.encrypt(key)?.text()?,
        };
        match self.entry {
            Some(before) => Ok(store.change(EntryKind::SealKey, vec![before], vec![entry]).await?),
            None => Ok(store.insert(EntryKind::SealKey, entry).await?.is_none()),
        }
    }
}

/// The id of the key that an entry is encrypted by, and the keys in it, if they are for this store.
pub(super) fn open(entry: &Entry, store: &str, file: &KeyFile) -> Result<(String, Option<SharedKeys>), SealError> {
    let document = Document::parse(&entry.value)?;
    let key = document.store_key(file)?;
    let keys = match document.is_for(store) {
        true => Some(document.decrypt(key)?),
        false => None,
    };
    Ok((key.id.clone(), keys))
}

/// Changes the keys in the store, whoever else does so at the same time; gives them, and whether there is a new one by this.
pub(super) async fn change(store: &dyn Store, key_file: &Path, now: u64, change: &Change) -> Result<(SharedKeys, bool), SealError> {
    for _ in 0..ATTEMPTS {
        let mut found = match change {
            Change::Drop { key_is_lost } => Found::unread(store, key_file).await?.for_drop(*key_is_lost)?,
            Change::Tend | Change::Rotate => Found::read(store, key_file).await?,
        };
        let (keys, made) = match found.keys.take() {
            None => (SharedKeys::new(found.store.clone(), now)?, true),
            Some(mut keys) => {
                let before = keys.count();
                let made = match change {
                    Change::Rotate => keys.rotate(now).map(|()| true)?,
                    Change::Tend | Change::Drop { .. } => keys.tend(now)?,
                };
                if !made && keys.count() == before {
                    return Ok((keys, false));
                }
                (keys, made)
            }
        };
        if found.write(store, &keys, false).await? {
            return Ok((keys, made));
        }
    }
    Err(SealError::Contended)
}

/// Gives the key file a new key, and encrypts the keys in the store by it. Gives the ids of the one before and of the new one.
pub(super) async fn replace_key_file(store: &dyn Store, key_file: &Path, now: u64) -> Result<(String, String), SealError> {
    let _alone = KeyFile::alone(key_file).await?;
    let before = Found::read(store, key_file).await?;
    let old = match &before.encrypted_by {
        Some(id) => id.clone(),
        None => before.file.newest()?.id.clone(),
    };
    // From here on the file opens what is there, and what will be there.
    let file = before.file.begin_to_replace(&old)?;
    let new = file.newest()?.id.clone();
    for _ in 0..ATTEMPTS {
        let mut found = Found::read(store, key_file).await?;
        found.file = found.file.begins_with(&new)?;
        let keys = match found.keys.take() {
            Some(keys) => keys,
            None => SharedKeys::new(found.store.clone(), now)?,
        };
        if found.write(store, &keys, true).await? {
            KeyFile::read(key_file)?.begins_with(&new)?.end_replacing()?;
            return Ok((old, new));
        }
    }
    Err(SealError::Contended)
}
