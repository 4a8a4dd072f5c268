//! Pools in the state that is served. A pool changes as a whole, or not at all: one that cannot be read stays as it was.

mod occasion;
mod promised;
mod reload;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::ArcSwap;
use attest_pool::Pool;
use attest_pool::file_stamps::FileStamps;
use attest_pool::needed_before_approval::NeededState;
use attest_system::clock::{Clock, rfc3339};
pub use occasion::ReloadCause;
use promised::PreviousState;
pub use promised::Promised;
use servers::UpstreamServer;
pub use servers::UpstreamUpdates;
use tokio::sync::{Mutex, Notify};

use crate::metrics::Metrics;

/// Words of messages about a pool that has never been readable.
pub(crate) const NOT_SERVED: &str = "not served until this is fixed";

/// All pools, in the state that is served.
#[derive(Debug)]
pub struct LivePools {
    folder: PathBuf,
    clock: Clock,
    metrics: Arc<Metrics>,
    pools: ArcSwap<BTreeMap<String, Live>>,
    /// State of reloads, of which only one runs at a time.
    reloading: Mutex<Reloading>,
    /// The folders that what is served was read from.
    watched: RwLock<BTreeSet<PathBuf>>,
    /// MachineConfigs that nodes need before they are approved, as the cluster states them.
    needed: ArcSwap<NeededState>,
    /// Signal that the cluster has reported something new.
    cluster_changed: Notify,
    /// Messages about folders whose names cannot be those of pools.
    misnamed: RwLock<BTreeSet<String>>,
    /// SHA-256 of the last config that was promised by another gateway, and is not here yet.
    awaited: std::sync::Mutex<String>,
}

/// State that is kept from one reload to the next.
#[derive(Debug, Default)]
struct Reloading {
    servers: BTreeMap<String, UpstreamServer>,
    /// Stamps of the folders of pools that are served exactly as their folders are.
    pool_states: BTreeMap<String, PoolState>,
}

/// Stamps of a pool's files when it was read, and the folders to watch.
#[derive(Debug, Default)]
struct PoolState {
    stamps: FileStamps,
    watched: BTreeSet<PathBuf>,
}

/// A pool in the state that is served.
#[derive(Debug, Clone, Default)]
struct Live {
    /// The last state that was good; `None` if there never was one.
    pool: Option<Arc<Pool>>,
    /// Time since which its configs are served, in seconds since 1970.
    since: u64,
    /// States with other configs that it has replaced lately, oldest first.
    previous: Vec<PreviousState>,
    /// Error in the newer state, if there is one.
    broken: Option<Broken>,
}

#[derive(Debug, Clone)]
struct Broken {
    reason: String,
    since: u64,
    /// Set if another server is the cause.
    elsewhere: bool,
}

/// A pool that is not served, because no state of it has been good yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    pub name: String,
    pub reason: String,
    /// Set if another server is the cause, and not the pool's own files.
    pub elsewhere: bool,
}

/// Result of looking up a pool by its name.
#[derive(Debug)]
pub enum Lookup {
    Pool(Arc<Pool>),
    /// A pool that could not be read yet.
    NotYet,
    /// No pool has that name.
    Unknown,
}

impl LivePools {
    /// Returns the pool of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Lookup {
        match self.pools.load().get(name) {
            Some(Live { pool: Some(pool), .. }) => Lookup::Pool(Arc::clone(pool)),
            Some(Live { pool: None, .. }) => Lookup::NotYet,
            None => Lookup::Unknown,
        }
    }

    /// Returns whether a pool has not changed since it was looked up.
    #[must_use]
    pub fn is_current(&self, pool: &Arc<Pool>) -> bool {
        matches!(self.get(pool.name()), Lookup::Pool(current) if Arc::ptr_eq(&current, pool))
    }

    /// Returns the names of all pools.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.pools.load().keys().cloned().collect()
    }

    /// Returns every pool that is served.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Pool>> {
        self.pools.load().values().filter_map(|live| live.pool.clone()).collect()
    }

    /// Drops rendered configs of all pools that have not been requested since the last call, and replaced states whose time is over.
    pub fn forget_unasked(&self) {
        self.forget_previous();
        for pool in self.all() {
            pool.forget_unasked();
        }
    }

    /// Returns the errors in the newest state of pools, by the pools' names, whether an older state is served or not.
    #[must_use]
    pub fn broken_sources(&self) -> BTreeMap<String, String> {
        let pools = self.pools.load();
        let broken = pools.iter().filter_map(|(name, live)| Some((name, live.broken.as_ref()?)));
        broken.map(|(name, broken)| (name.clone(), broken.reason.clone())).collect()
    }

    /// Returns the pools that are not served.
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        let pools = self.pools.load();
        let unserved = pools.iter().filter(|(_, live)| live.pool.is_none());
        unserved
            .filter_map(|(name, live)| {
                let Broken { reason, elsewhere, .. } = live.broken.clone()?;
                Some(Unserved {
                    name: name.clone(),
                    reason,
                    elsewhere,
                })
            })
            .collect()
    }

    /// Returns messages about folders whose names cannot be those of pools.
    #[must_use]
    pub fn misnamed(&self) -> Vec<String> {
        let misnamed = self.misnamed.read().unwrap_or_else(PoisonError::into_inner);
        misnamed.iter().cloned().collect()
    }

    /// Returns whether any pool is served, and a line for each pool whose newest state is not. The reason is only in the log.
    #[must_use]
    pub fn health(&self) -> (bool, Vec<String>) {
        let pools = self.pools.load();
        let lines = pools.iter().filter_map(|(name, live)| {
            let since = rfc3339(live.broken.as_ref()?.since);
            Some(match live.pool {
                Some(_) => format!("pool {name}: its source is broken since {since}, the last good state is served; the log says why"),
                None => format!("pool {name}: not served, its source could not be read since {since}; the log says why"),
            })
        });
        // Whoever wants a pool that is served must not be kept from it by one that is not.
        (pools.values().any(|live| live.pool.is_some()), lines.collect())
    }

    /// Returns the folders to watch for changes.
    #[must_use]
    pub fn watched(&self) -> BTreeSet<PathBuf> {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn watch(&self, folders: BTreeSet<PathBuf>) {
        *self.watched.write().unwrap_or_else(PoisonError::into_inner) = folders;
    }
}

#[cfg(test)]
mod tests;
