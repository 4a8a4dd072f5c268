//! The seal's keys in the store: one document, so that replicas that change them at once agree by comparing it.

#[cfg(test)]
mod tests;

use attest_system::newer_format::NewerFormat;
use serde::{Deserialize, Serialize};

use super::key::{KeyBytes, random_id};
use super::key_file::{KeyFile, StoreKey};
use super::{ROTATE_EVERY, SealError, SealKeys, Times};

/// Prefix of the data that is authenticated with one encrypted key.
const DOMAIN: &str = "attestation-gateway/v1/sealing-key";
/// Prefix of the data that is authenticated for all keys together.
const SET_DOMAIN: &str = "attestation-gateway/v2/sealing-keys";
/// The version of the document: a newer one is refused.
pub const VERSION: u8 = 2;
/// Bytes of a key's id.
const ID_BYTES: usize = 8;
/// Time that a key is in the store before it seals, in seconds: every replica reads the store many times meanwhile.
pub(super) const LEAD_SECONDS: u64 = 3600;
/// Upper bound of the validity of sealed texts, in seconds. It exceeds what settings allow at most (a test compares), not what those of one
/// replica say, so that replicas agree.
pub(super) const KEEP_SECONDS: u64 = 10 * 24 * 3600;
/// Time that a key may seal if no other can replace it, in seconds. A store that cannot be written for so long serves no client.
const SEALS_AT_MOST_SECONDS: u64 = 2 * ROTATE_EVERY.as_secs();
/// Difference of two gateways' clocks, in seconds, up to which neither counts as wrong.
const CLOCKS_DIFFER_SECONDS: u64 = 3600;

/// The keys, encrypted, with their metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealDocument {
    v: u8,
    /// Id of the key in the key file.
    key_file: String,
    /// Id of the store that they are for. In another one they are worth nothing: what was spent may not be known there.
    store: String,
    /// The number of changes: a set that was put back has a lower number.
    changes: u64,
    keys: Vec<EncryptedKey>,
    /// A tag over the members above and all keys, by the key of the file.
    set: String,
}

/// The members that every version has.
#[derive(Deserialize)]
struct Versioned {
    v: u8,
    /// First release that reads the document; versions above 2 have it.
    release: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncryptedKey {
    id: String,
    /// Creation time, in seconds since 1970.
    made: u64,
    seals_from: u64,
    /// Time from which nothing that it has sealed is valid.
    ends: u64,
    /// Time at which a gateway first saw it seal, by that gateway's clock: texts of the key before it expire by clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealing_since: Option<u64>,
    ciphertext: String,
}

/// A key of the seal that replicas share; its dates are those of [`EncryptedKey`].
struct SharedKey {
    id: String,
    made: u64,
    seals_from: u64,
    ends: u64,
    sealing_since: Option<u64>,
    secret: KeyBytes,
}

/// The keys of a store, readable.
pub(super) struct SharedKeys {
    pub(super) store: String,
    /// The number of changes.
    pub(super) changes: u64,
    keys: Vec<SharedKey>,
}

/// Changes that [`SharedKeys::maintain`] has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SealMaintenance {
    /// There is a new key.
    pub(super) made: bool,
    /// The keys have changed in any way.
    pub(super) changed: bool,
}

impl SealDocument {
    pub(super) fn parse(text: &str) -> Result<Self, SealError> {
        // Before anything else: a newer release's may have members that this one does not know.
        let Versioned { v, release } = serde_json::from_str(text).map_err(SealError::Document)?;
        match v {
            VERSION => serde_json::from_str(text).map_err(SealError::Document),
            other => Err(SealError::Version(NewerFormat {
                format: "version",
                found: other.into(),
                known: VERSION.into(),
                release,
            })),
        }
    }

    pub(super) fn text(&self) -> Result<String, SealError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Returns the key of the file that encrypts this document.
    pub(super) fn store_key<'f>(&self, file: &'f KeyFile) -> Result<&'f StoreKey, SealError> {
        file.key(&self.key_file)
    }

    pub(super) fn is_for(&self, store: &str) -> bool {
        self.store == store
    }

    /// Returns all keys, or the id of one that was altered.
    pub(super) fn decrypt(self, key: &StoreKey) -> Result<SharedKeys, SealError> {
        let is_whole = key.is_authentic(&self.set, &self.associated_data());
        let Self { store, keys, changes, .. } = self;
        let keys = keys.into_iter().map(
            |encrypted| match key.decrypt(&encrypted.ciphertext, &encrypted.associated_data(key, &store)) {
                Some(secret) if could_be_an_id(&encrypted.id) => Ok(SharedKey {
                    id: encrypted.id,
                    made: encrypted.made,
                    seals_from: encrypted.seals_from,
                    ends: encrypted.ends,
                    sealing_since: encrypted.sealing_since,
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

    /// Returns the data that is authenticated for all keys together.
    fn associated_data(&self) -> String {
        let Self {
            key_file, store, changes, ..
        } = self;
        let mut beside = format!("{SET_DOMAIN}\n{key_file}\n{store}\n{changes}");
        for EncryptedKey { id, ciphertext, .. } in &self.keys {
            // Its dates are authenticated by this.
            beside.push_str(&format!("\n{id} {ciphertext}"));
        }
        beside
    }
}

impl EncryptedKey {
    /// Returns the data that is authenticated with the ciphertext. No part has a line break: ids are hexadecimal.
    fn associated_data(&self, key: &StoreKey, store: &str) -> String {
        let Self {
            id,
            made,
            seals_from,
            ends,
            sealing_since,
            ciphertext: _,
        } = self;
        let since = sealing_since.map_or_else(String::new, |since| format!("\n{since}"));
        format!("{DOMAIN}\n{}\n{store}\n{id}\n{made}\n{seals_from}\n{ends}{since}", key.id)
    }
}

impl SharedKeys {
    /// Creates a set of one key, for a store that has none, or whose keys are worthless.
    pub(super) fn new(store: String, now: Times, changes: u64) -> Result<Self, SealError> {
        let mut first = SharedKey::new(now.store, now.store)?;
        first.sealing_since = Some(now.clock);
        Ok(Self {
            store,
            changes,
            keys: vec![first],
        })
    }

    pub(super) fn encrypt(&self, key: &StoreKey) -> Result<SealDocument, SealError> {
        let encrypt = |shared: &SharedKey| {
            let mut encrypted = EncryptedKey {
                id: shared.id.clone(),
                made: shared.made,
                seals_from: shared.seals_from,
                ends: shared.ends,
                sealing_since: shared.sealing_since,
                ciphertext: String::new(),
            };
            encrypted.ciphertext = key.encrypt(&shared.secret, &encrypted.associated_data(key, &self.store))?;
            Ok::<_, SealError>(encrypted)
        };
        let mut document = SealDocument {
            v: VERSION,
            key_file: key.id.clone(),
            store: self.store.clone(),
            changes: self.changes,
            keys: self.keys.iter().map(encrypt).collect::<Result<_, _>>()?,
            set: String::new(),
        };
        document.set = key.authenticate(&document.associated_data())?;
        Ok(document)
    }

    /// Drops keys that are over. Their successor has sealed for so long, by the store time and by the clock, that nothing which they have
    /// sealed is valid. The store time may pass faster than a clock, and a clock may jump.
    pub(super) fn drop_over(&mut self, now: Times) {
        let is_over = |since: u64, now: u64| since.saturating_add(KEEP_SECONDS) < now;
        let sealed_for_long =
            |key: &&SharedKey| is_over(key.seals_from, now.store) && key.sealing_since.is_some_and(|since| is_over(since, now.clock));
        let over = self.keys.iter().filter(sealed_for_long).map(SharedKey::seals_since).max();
        self.keys.retain(|key| over.is_none_or(|over| key.seals_since() >= over));
        // One that none has taken the place of.
        let come = self.keys.iter().filter(|key| key.seals_since() <= now.store);
        let has_ended = |key: &SharedKey| {
            let by_clock = |since: u64| since.saturating_add(SEALS_AT_MOST_SECONDS + KEEP_SECONDS) < now.clock;
            key.ends < now.store && key.sealing_since.is_none_or(by_clock)
        };
        if come.max_by_key(|key| key.seals_since()).is_some_and(has_ended) {
            self.keys.retain(|key| key.seals_since() > now.store);
        }
    }

    /// Drops what is over, and makes a new key if it is time for one.
    pub(super) fn maintain(&mut self, now: Times) -> Result<SealMaintenance, SealError> {
        let before = self.keys.len();
        self.drop_over(now);
        let changed = self.keys.len() < before;
        let changed = self.note_sealing(now) || changed;
        let Some(seals_from) = self.next_seals_from(now.store) else {
            return Ok(SealMaintenance { made: false, changed });
        };
        self.keys.push(SharedKey::new(now.store, seals_from)?);
        Ok(SealMaintenance { made: true, changed: true })
    }

    /// Returns the time from which a new key is to seal, if one is due.
    fn next_seals_from(&self, now: u64) -> Option<u64> {
        let lead = now.saturating_add(LEAD_SECONDS);
        // A date beyond that was given by a clock that was ahead.
        let in_time = self.keys.iter().filter(|key| key.seals_since() <= lead);
        match in_time.max_by_key(|key| key.seals_since()) {
            // None may seal any longer: there is nothing to wait for.
            None => self.keys.is_empty().then_some(now),
            Some(newest) if newest.ends.saturating_sub(KEEP_SECONDS) <= now => Some(now),
            Some(newest) if newest.seals_since().saturating_add(ROTATE_EVERY.as_secs()) <= lead => Some(lead),
            Some(_) => None,
        }
    }

    /// Notes since when the present key has been seen to seal. If its date has not come, because the clock that gave it was ahead, the
    /// earliest time counts. Otherwise it would seal for as long as that clock was ahead. It is the oldest key then.
    fn note_sealing(&mut self, now: Times) -> bool {
        let Some(id) = self.in_order(now.store).first().map(|key| key.id.clone()) else {
            return false;
        };
        let Some(key) = self.keys.iter_mut().find(|key| key.id == id) else {
            return false;
        };
        let is_ahead = |since: u64| key.seals_from > now.store && since > now.clock.saturating_add(CLOCKS_DIFFER_SECONDS);
        if key.sealing_since.is_some_and(|since| !is_ahead(since)) {
            return false;
        }
        key.sealing_since = Some(now.clock);
        true
    }

    /// Adds a key, which seals when every replica has it.
    pub(super) fn rotate(&mut self, now: u64) -> Result<(), SealError> {
        self.keys.push(SharedKey::new(now, now.saturating_add(LEAD_SECONDS))?);
        Ok(())
    }

    /// Returns the keys for use, the one that seals first.
    pub(super) fn keys(&self, now: u64) -> Result<SealKeys, SealError> {
        let keys = self.in_order(now).into_iter().map(|SharedKey { id, secret, .. }| secret.key(id));
        Ok(SealKeys(keys.collect::<Result<_, _>>()?))
    }

    /// Returns the keys, the one that seals first: the newest of those whose time to seal has come, or else the oldest.
    fn in_order(&self, now: u64) -> Vec<&SharedKey> {
        let mut keys: Vec<&SharedKey> = self.keys.iter().collect();
        keys.sort_by_key(|key| {
            let since = key.seals_since();
            let has_come = since <= now;
            let order = if has_come { u64::MAX - since } else { since };
            (!has_come, order, key.id.clone())
        });
        keys
    }
}

impl SharedKey {
    fn new(made: u64, seals_from: u64) -> Result<Self, SealError> {
        Ok(Self {
            id: random_id::<ID_BYTES>()?,
            made,
            seals_from,
            ends: seals_from.saturating_add(SEALS_AT_MOST_SECONDS + KEEP_SECONDS),
            sealing_since: None,
            secret: KeyBytes::random()?,
        })
    }

    /// Returns the time from which it seals: not later than it was seen to do so.
    fn seals_since(&self) -> u64 {
        self.sealing_since.map_or(self.seals_from, |since| self.seals_from.min(since))
    }
}

/// Returns whether a text could be the id of a key in a store.
pub(super) fn could_be_an_id(id: &str) -> bool {
    id.len() == 2 * ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}
