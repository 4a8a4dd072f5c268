//! The seal's keys as they stand in the store: one document, so that replicas that change them at once agree by comparing it.

use serde::{Deserialize, Serialize};

use super::key::{Secret, random_id};
use super::key_file::{KeyFile, StoreKey};
use super::{Keys, ROTATE_EVERY, SealError};

/// What is encrypted, and for what.
const DOMAIN: &str = "attestation-gateway/v1/sealing-key";
/// What the keys are authenticated for, all together.
const SET_DOMAIN: &str = "attestation-gateway/v2/sealing-keys";
/// The document's version. What stands there is written so with its next change: an older gateway beside this one has its keys until then.
const VERSION: u8 = 2;
/// As earlier releases write it: each key is authenticated by itself, and nobody knows how many there were.
const UNCOUNTED: u8 = 1;
/// Bytes of a key's id.
const ID_BYTES: usize = 8;
/// How long before a key seals it is there: every replica reads the store many times meanwhile.
pub(super) const LEAD_SECONDS: u64 = 3600;
/// How long what a key has sealed can be good, and more than that: what settings allow at most (a test compares), not what those of one
/// replica say, so that replicas agree.
pub(super) const KEEP_SECONDS: u64 = 10 * 24 * 3600;
/// How long a key may seal if no other can take its place: a store that cannot be written for so long serves nobody.
const SEALS_AT_MOST_SECONDS: u64 = 2 * ROTATE_EVERY.as_secs();

/// The keys, encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    v: u8,
    /// Id of the key in the key file.
    key_file: String,
    /// Id of the store that they are for. In another one they are worth nothing: what was spent may not be known there.
    store: String,
    /// How often they were changed: a set that was put back has a lower number. Not there in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changes: Option<u64>,
    keys: Vec<EncryptedKey>,
    /// That these are all, and what stands above: made by the key of the file. Not there in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set: Option<String>,
}

/// What each version says.
#[derive(Deserialize)]
struct Versioned {
    v: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncryptedKey {
    id: String,
    /// When it was made, seconds since 1970.
    made: u64,
    seals_from: u64,
    /// From then on nothing that it has sealed is good.
    ends: u64,
    ciphertext: String,
}

/// A key of the seal that replicas share; its dates are those of [`EncryptedKey`].
struct SharedKey {
    id: String,
    made: u64,
    seals_from: u64,
    ends: u64,
    secret: Secret,
}

/// The keys of a store, readable.
pub(super) struct SharedKeys {
    pub(super) store: String,
    /// How often they were changed; 0 as long as nobody counts.
    pub(super) changes: u64,
    keys: Vec<SharedKey>,
}

impl Document {
    pub(super) fn parse(text: &str) -> Result<Self, SealError> {
        // Before anything else: a newer release's may have members that this one does not know.
        let Versioned { v } = serde_json::from_str(text).map_err(SealError::Document)?;
        match v {
            VERSION | UNCOUNTED => serde_json::from_str(text).map_err(SealError::Document),
            other => Err(SealError::Version(other)),
        }
    }

    pub(super) fn text(&self) -> Result<String, SealError> {
        Ok(serde_json::to_string(self)?)
    }

    /// The key of the file under which this is encrypted.
    pub(super) fn store_key<'f>(&self, file: &'f KeyFile) -> Result<&'f StoreKey, SealError> {
        file.key(&self.key_file)
    }

    pub(super) fn is_for(&self, store: &str) -> bool {
        self.store == store
    }

    /// All of them, or the id of one that was altered.
    pub(super) fn decrypt(self, key: &StoreKey) -> Result<SharedKeys, SealError> {
        let is_whole = self.is_whole(key);
        let changes = self.changes();
        let Self { store, keys, .. } = self;
        let keys = keys.into_iter().map(
            |encrypted| match key.decrypt(&encrypted.ciphertext, &encrypted.beside(key, &store)) {
                Some(secret) if could_be_an_id(&encrypted.id) => Ok(SharedKey {
                    id: encrypted.id,
                    made: encrypted.made,
                    seals_from: encrypted.seals_from,
                    ends: encrypted.ends,
                    secret,
                }),
                _ => Err(SealError::Altered(encrypted.id)),
            },
        );
        let keys = keys.collect::<Result<_, _>>()?;
        // One that is altered is named before.
        match is_whole {
            true => Ok(SharedKeys { store, changes, keys }),
            false => Err(SealError::OtherSet),
        }
    }

    /// How often they were changed, whoever says so.
    pub(super) fn changes(&self) -> u64 {
        self.changes.unwrap_or(0)
    }

    /// Whether these are the keys that were written, as far as their version says.
    fn is_whole(&self, key: &StoreKey) -> bool {
        match (self.v, &self.changes, &self.set) {
            (UNCOUNTED, None, None) => true,
            (VERSION, Some(_), Some(set)) => key.is_authentic(set, &self.beside()),
            _ => false,
        }
    }

    /// What is authenticated of all together.
    fn beside(&self) -> String {
        let Self { key_file, store, .. } = self;
        let mut beside = format!("{SET_DOMAIN}\n{key_file}\n{store}\n{}", self.changes());
        for EncryptedKey { id, ciphertext, .. } in &self.keys {
            // Its dates are authenticated by this.
            beside.push_str(&format!("\n{id} {ciphertext}"));
        }
        beside
    }
}

impl EncryptedKey {
    /// What stands beside the ciphertext and cannot be altered. No part has a line break: ids are hexadecimal.
    fn beside(&self, key: &StoreKey, store: &str) -> String {
        let Self {
            id,
            made,
            seals_from,
            ends,
            ..
        } = self;
        format!("{DOMAIN}\n{}\n{store}\n{id}\n{made}\n{seals_from}\n{ends}", key.id)
    }
}

impl SharedKeys {
    /// One new key, for a store that has none, or whose keys are worth nothing.
    pub(super) fn new(store: String, now: u64, changes: u64) -> Result<Self, SealError> {
        Ok(Self {
            store,
            changes,
            keys: vec![SharedKey::new(now, now)?],
        })
    }

    pub(super) fn encrypt(&self, key: &StoreKey) -> Result<Document, SealError> {
        let encrypt = |shared: &SharedKey| {
            let mut encrypted = EncryptedKey {
                id: shared.id.clone(),
                made: shared.made,
                seals_from: shared.seals_from,
                ends: shared.ends,
                ciphertext: String::new(),
            };
            encrypted.ciphertext = key.encrypt(&shared.secret, &encrypted.beside(key, &self.store))?;
            Ok::<_, SealError>(encrypted)
        };
        let mut document = Document {
            v: VERSION,
            key_file: key.id.clone(),
            store: self.store.clone(),
            changes: Some(self.changes),
            keys: self.keys.iter().map(encrypt).collect::<Result<_, _>>()?,
            set: None,
        };
        document.set = Some(key.authenticate(&document.beside())?);
        Ok(document)
    }

    pub(super) fn count(&self) -> usize {
        self.keys.len()
    }

    /// Drops keys whose time is over.
    pub(super) fn drop_over(&mut self, now: u64) {
        let over = self.keys.iter().map(|key| key.seals_from);
        // Of those that have sealed for so long that all before are over, the newest.
        let newest = over.filter(|from| from.saturating_add(KEEP_SECONDS) < now).max();
        self.keys
            .retain(|key| now <= key.ends && newest.is_none_or(|newest| key.seals_from >= newest));
    }

    /// Drops what is over, and makes a new key if it is time for one. Says whether it made one.
    pub(super) fn tend(&mut self, now: u64) -> Result<bool, SealError> {
        self.drop_over(now);
        let newest = self.keys.iter().map(|key| key.seals_from).max();
        let seals_from = match newest {
            // None may seal any longer: there is nothing to wait for.
            None => now,
            Some(newest) if newest.saturating_add(SEALS_AT_MOST_SECONDS) <= now => now,
            Some(newest) if newest.saturating_add(ROTATE_EVERY.as_secs()) <= now.saturating_add(LEAD_SECONDS) => {
                now.saturating_add(LEAD_SECONDS)
            }
            Some(_) => return Ok(false),
        };
        self.keys.push(SharedKey::new(now, seals_from)?);
        Ok(true)
    }

    /// One more key, which seals when every replica has it.
    pub(super) fn rotate(&mut self, now: u64) -> Result<(), SealError> {
        self.keys.push(SharedKey::new(now, now.saturating_add(LEAD_SECONDS))?);
        Ok(())
    }

    /// The keys for use: of those whose time to seal has come the newest seals; if none has, the one that is there for longest.
    pub(super) fn keys(&self, now: u64) -> Result<Keys, SealError> {
        let mut keys: Vec<&SharedKey> = self.keys.iter().collect();
        keys.sort_by_key(|key| {
            let has_come = key.seals_from <= now;
            let order = if has_come { u64::MAX - key.seals_from } else { key.seals_from };
            (!has_come, order, key.id.clone())
        });
        let keys = keys.into_iter().map(|SharedKey { id, secret, .. }| secret.key(id));
        Ok(Keys(keys.collect::<Result<_, _>>()?))
    }
}

impl SharedKey {
    fn new(made: u64, seals_from: u64) -> Result<Self, SealError> {
        Ok(Self {
            id: random_id::<ID_BYTES>()?,
            made,
            seals_from,
            ends: seals_from.saturating_add(SEALS_AT_MOST_SECONDS + KEEP_SECONDS),
            secret: Secret::random()?,
        })
    }
}

/// Whether a text begins with what could be the id of a key in a store.
pub(super) fn could_be_an_id(id: &str) -> bool {
    id.len() == 2 * ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::{Settings, TICKET_LATE_LIMIT_SECONDS};

    const DAY: u64 = 24 * 3600;
    const NOW: u64 = 20_000 * DAY;

    fn ids(keys: &Keys) -> Vec<&str> {
        keys.0.iter().map(|key| key.id.as_str()).collect()
    }

    #[test]
    fn no_settings_have_anything_good_for_longer_than_its_key() {
        let mut settings = Settings::defaults(Path::new("/")).unwrap();
        settings.ticket.late = std::time::Duration::from_secs(TICKET_LATE_LIMIT_SECONDS);
        settings.ticket.lifetime = std::time::Duration::from_secs(DAY);
        assert!(settings.seal_keep().as_secs() < KEEP_SECONDS);
    }

    #[test]
    fn a_new_key_is_there_before_it_seals_and_an_old_one_until_what_it_sealed_is_over() {
        let mut keys = SharedKeys::new("store".to_owned(), NOW, 1).unwrap();
        let first = keys.keys[0].id.clone();
        let month = NOW + 30 * DAY;
        assert!(!keys.tend(month - LEAD_SECONDS - 1).unwrap());
        assert!(keys.tend(month - LEAD_SECONDS).unwrap(), "in time");
        assert!(!keys.tend(month - LEAD_SECONDS).unwrap(), "one is enough");
        let second = keys.keys[1].id.clone();
        assert_eq!(ids(&keys.keys(month - 1).unwrap()), [first.as_str(), &second]);
        assert_eq!(ids(&keys.keys(month).unwrap()), [second.as_str(), &first]);
        // Whoever's clock is far behind seals with what is there for longest.
        assert_eq!(ids(&keys.keys(0).unwrap()), [first.as_str(), &second]);
        keys.drop_over(month + KEEP_SECONDS);
        assert_eq!(keys.count(), 2);
        keys.drop_over(month + KEEP_SECONDS + 1);
        assert_eq!(ids(&keys.keys(month + KEEP_SECONDS + 1).unwrap()), [second.as_str()]);
    }

    #[test]
    fn a_key_ends_also_if_no_other_takes_its_place() {
        let mut keys = SharedKeys::new("store".to_owned(), NOW, 1).unwrap();
        let first = keys.keys[0].id.clone();
        keys.drop_over(NOW + 70 * DAY);
        assert_eq!(ids(&keys.keys(NOW + 70 * DAY).unwrap()), [first.as_str()]);
        // It does not seal any more by then, as what it sealed would outlive it.
        assert!(keys.tend(NOW + 60 * DAY).unwrap());
        assert_ne!(ids(&keys.keys(NOW + 60 * DAY).unwrap())[0], first);
        let mut keys = SharedKeys::new("store".to_owned(), NOW, 1).unwrap();
        keys.drop_over(NOW + 70 * DAY + 1);
        assert!(keys.keys(NOW + 70 * DAY + 1).unwrap().0.is_empty());
        assert!(keys.tend(NOW + 70 * DAY + 1).unwrap());
    }

    #[test]
    fn a_key_that_is_rotated_by_hand_waits_as_well() {
        let mut keys = SharedKeys::new("store".to_owned(), NOW, 1).unwrap();
        let first = keys.keys[0].id.clone();
        keys.rotate(NOW + 10).unwrap();
        assert_eq!(ids(&keys.keys(NOW + 10 + LEAD_SECONDS - 1).unwrap())[0], first);
        assert_ne!(ids(&keys.keys(NOW + 10 + LEAD_SECONDS).unwrap())[0], first);
    }
}
