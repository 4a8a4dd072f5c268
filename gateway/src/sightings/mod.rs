//! Sightings of pointers: the CAs that they claim to carry, and when and from where they were seen last. A pointer has the claim in its URL
//! (`?ca=`), which is a hint and not a proof. It helps to know when an old CA can go, and decides nothing.
//!
//! Sightings are noted in memory, where a request costs a lock and a look into a small map, and are written by a background task. The
//! amount that unauthenticated clients can cause to be kept is bounded: of a pointer's CAs only those count that the gateway knows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use attest_certificates::Fingerprint;
use attest_pointers::PARAMETER;
use attest_store::{EntryKind, Store, StoreEntry, StoreError, Transact};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Most sightings that are kept. With the usual bundle of two CAs there are five for each pool.
const SIGHTINGS_LIMIT: usize = 4096;
/// Interval, in seconds, at which a sighting is written that has only changed its time and place.
const WRITE_EVERY_SECONDS: u64 = 60;
/// Most sightings that are written at the same time.
const AT_ONCE: usize = 64;
/// Time for which an unused pointer is remembered, in seconds: far longer than an administrator looks back before an old CA goes.
const REMEMBERED_SECONDS: u64 = 400 * 24 * 3600;

/// Pointers of one pool that carry the same CAs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The pool that was asked for.
    pub pool: String,
    /// CAs that the pointer claims to carry, by the first 16 digits of their fingerprints: only those that the gateway knew then. `None`:
    /// the pointer makes no claim, like those of other programs.
    pub authorities: Option<Vec<String>>,
    /// The CA that signed the certificate which the node accepted when it was seen last, in the same way.
    pub accepted: String,
    /// First time one was seen, in seconds since 1970.
    pub first: u64,
    /// Last time one was seen, in seconds since 1970.
    pub last: u64,
    /// Address from which it was seen last.
    pub peer: String,
}

/// Returns all sightings that can be read, in no particular order. Those that cannot be read, for example because a newer release has
/// written them, are logged.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<Sighting>, StoreError> {
    let entries = store.list(EntryKind::Pointer).await?.into_iter();
    Ok(entries.filter_map(|entry| readable(entry, "not counting it")).collect())
}

fn readable(entry: StoreEntry, but: &str) -> Option<Sighting> {
    read(entry)
        .inspect_err(|error| tracing::warn!(%error, "cannot read a sighting of a pointer; {but}"))
        .ok()
}

fn read(entry: StoreEntry) -> Result<Sighting, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| broken(entry.id, source))
}

const fn broken(id: String, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: EntryKind::Pointer.as_str(),
        id,
        source,
    }
}

impl Sighting {
    fn key(&self) -> SightingKey {
        (self.pool.clone(), self.authorities.clone())
    }

    /// Merges another sighting of the same pointers into this one.
    fn with(&self, other: Self) -> Self {
        let first = self.first.min(other.first);
        let later = if other.last > self.last { other } else { self.clone() };
        Self { first, ..later }
    }

    fn entry(&self) -> Result<StoreEntry, StoreError> {
        let id = match &self.authorities {
            None => self.pool.clone(),
            Some(authorities) => format!("{}?{PARAMETER}={}", self.pool, authorities.join(",")),
        };
        match serde_json::to_string(self) {
            Ok(value) => Ok(StoreEntry { id, value }),
            Err(source) => Err(broken(id, source)),
        }
    }
}

/// Removes it, unless another gateway has seen that pointer meanwhile.
async fn forget(store: &dyn Store, entry: &StoreEntry) -> Result<(), StoreError> {
    let entry = entry.clone();
    store
        .transact(move |transaction| {
            if transaction.get(EntryKind::Pointer, &entry.id)?.as_ref() == Some(&entry) {
                transaction.remove(EntryKind::Pointer, &entry.id)?;
            }
            Ok(())
        })
        .await
}

/// A pool, and the claims of its pointers.
type SightingKey = (String, Option<Vec<String>>);

/// A [`Sighting`] in memory, and its state in the store.
#[derive(Debug)]
struct SightingState {
    sighting: Sighting,
    /// Time of its last write, in seconds since 1970.
    written: Option<u64>,
    /// Set if the store does not have the newest state.
    changed: bool,
}

/// The sightings of a gateway that serves.
#[derive(Debug, Default)]
pub struct Sightings {
    sightings: Mutex<BTreeMap<SightingKey, SightingState>>,
    /// Wakes the task that writes.
    first: Notify,
}

impl Sightings {
    /// Reads the sightings of the store. Those older than 400 days are forgotten, by this clock and by the store time: a gateway with a
    /// clock that is ahead does not forget for all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open(store: &dyn Store, now: u64) -> Result<Self, StoreError> {
        let time = store.time(now).await?.min(now);
        let mut seen = BTreeMap::new();
        for entry in store.list(EntryKind::Pointer).await? {
            let Some(sighting) = readable(entry.clone(), "keeping its entry") else {
                continue;
            };
            if time.saturating_sub(sighting.last) > REMEMBERED_SECONDS {
                forget(store, &entry).await?;
                continue;
            }
            seen.insert(
                sighting.key(),
                SightingState {
                    written: Some(sighting.last),
                    changed: false,
                    sighting,
                },
            );
        }
        Ok(Self {
            sightings: Mutex::new(seen),
            first: Notify::new(),
        })
    }

    /// Notes that a pointer was used for `pool`: its claim, the signer of the certificate that was accepted, and its origin.
    pub fn note(&self, pool: &str, authorities: Option<Vec<String>>, accepted: Fingerprint, peer: String, now: u64) {
        let mut seen = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.len();
        match seen.entry((pool.to_owned(), authorities)) {
            std::collections::btree_map::Entry::Occupied(mut there) => {
                let there = there.get_mut();
                there.sighting.accepted = accepted.short();
                there.sighting.last = now;
                there.sighting.peer = peer;
                there.changed = true;
            }
            std::collections::btree_map::Entry::Vacant(place) if known < SIGHTINGS_LIMIT => {
                let (pool, authorities) = place.key().clone();
                place.insert(SightingState {
                    sighting: Sighting {
                        pool,
                        authorities,
                        accepted: accepted.short(),
                        first: now,
                        last: now,
                        peer,
                    },
                    written: None,
                    changed: true,
                });
                self.first.notify_one();
            }
            std::collections::btree_map::Entry::Vacant(_) => {}
        }
    }

    /// Completes when something was noted for the first time.
    pub async fn first(&self) {
        self.first.notified().await;
    }

    /// Writes what is due: what was never written at once, the rest once a minute each.
    ///
    /// # Errors
    /// [`StoreError`]; what could not be written is due again in a minute.
    pub async fn write_due(&self, store: &dyn Store, now: u64) -> Result<(), StoreError> {
        // A clock that was set back must not keep anything from being written.
        self.write(store, now, |written| {
            written.is_none_or(|at| now.abs_diff(at) >= WRITE_EVERY_SECONDS)
        })
        .await
    }

    /// Writes everything that the store does not know.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn write_all(&self, store: &dyn Store, now: u64) -> Result<(), StoreError> {
        self.write(store, now, |_| true).await
    }

    async fn write(&self, store: &dyn Store, now: u64, due: impl Fn(Option<u64>) -> bool) -> Result<(), StoreError> {
        let due: Vec<Sighting> = {
            let mut seen = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
            let due = seen.values_mut().filter(|seen| seen.changed && due(seen.written));
            due.map(|seen| {
                seen.written = Some(now);
                seen.changed = false;
                seen.sighting.clone()
            })
            .collect()
        };
        let mut written = Ok(());
        for some in due.chunks(AT_ONCE) {
            let told = join_all(some.iter().map(|sighting| write_sighting(store, sighting))).await;
            for (sighting, told) in some.iter().zip(told) {
                if let Err(error) = told {
                    self.queue_again(sighting);
                    written = Err(error);
                }
            }
        }
        written
    }

    fn queue_again(&self, sighting: &Sighting) {
        let mut seen = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = seen.get_mut(&sighting.key()) {
            seen.changed = true;
        }
    }
}

/// Writes a sighting to the store. Another gateway may have seen such pointers before, or since.
async fn write_sighting(store: &dyn Store, sighting: &Sighting) -> Result<(), StoreError> {
    let entry = sighting.entry()?;
    let mut there = store.insert(EntryKind::Pointer, entry.clone()).await?;
    while let Some(known) = there.filter(|known| *known != entry) {
        let both = match read(known.clone()) {
            Ok(known) => sighting.with(known).entry()?,
            // One that cannot be read tells nobody anything.
            Err(_) => entry.clone(),
        };
        if store.change(EntryKind::Pointer, vec![known], vec![both]).await? {
            return Ok(());
        }
        there = store.get(EntryKind::Pointer, &entry.id).await?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
