//! Reloads of all pools: each changes as a whole, or stays as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use attest_pool::folder::{FileReader, PoolFolder};
use attest_pool::inventory::{self, Twice};
use attest_pool::needed_before_approval::NeededState;
use attest_pool::{Pool, PoolError, PoolFolders, PoolInventory, folders};
use attest_system::clock::Clock;
use tokio::sync::{Mutex, Notify};

use super::occasion::ReloadCause;
use super::servers::{UPSTREAM_RETRY, blocking};
use super::{Broken, Live, LivePools, NOT_SERVED, PoolState};
use crate::metrics::Metrics;
use crate::watch::Quiet;

/// Log message about a reload.
enum ReloadMessage {
    Good(String),
    Bad(String),
}

impl LivePools {
    /// Reads every pool for the first time, with the MachineConfigs that nodes need before they are approved. A pool that cannot be served
    /// does not stop the others: [`LivePools::unserved`] names it.
    ///
    /// # Errors
    /// [`PoolError`], if the folder cannot be read or has no pools.
    pub async fn open(folder: &Path, clock: Clock, metrics: Arc<Metrics>, needed: NeededState) -> Result<Self, PoolError> {
        let live = Self {
            folder: folder.to_owned(),
            clock,
            metrics,
            pools: ArcSwap::default(),
            reloading: Mutex::default(),
            watched: RwLock::default(),
            needed: ArcSwap::from_pointee(needed),
            cluster_changed: Notify::new(),
            misnamed: RwLock::default(),
            awaited: std::sync::Mutex::default(),
        };
        let mut reloading = live.reloading.lock().await;
        let mut pools = BTreeMap::new();
        let mut watched = BTreeSet::from([folder.to_owned()]);
        let PoolFolders { pools: folders, misnamed } = folders(folder)?;
        live.note(&misnamed, &mut Vec::new());
        let mut reads = Vec::new();
        for (name, folder) in folders {
            reads.push(live.read(name, folder, None).await);
        }
        one_pool_each(&mut reads, &BTreeMap::new());
        for FolderRead {
            name, found, state: known, ..
        } in reads
        {
            watched.extend(known.watched.iter().cloned());
            let made = match found {
                LoadResult::Pool(result) => *result,
                LoadResult::Upstream(folder) => {
                    let made = live.assemble(&name, *folder, &mut reloading.servers, ReloadCause::Change).await;
                    // Nothing was said before that a failing server could be served by.
                    made.map(|(pool, _)| pool)
                }
                LoadResult::Same => continue,
            };
            let pool = match made {
                Ok(pool) => {
                    reloading.pool_states.insert(name.clone(), known);
                    Live::default().replaced(Arc::new(pool), clock.now().as_secs())
                }
                Err(error) => Live {
                    broken: Some(live.broken(&error)),
                    ..Live::default()
                },
            };
            live.metrics.pool_broken(&name, pool.broken.is_some());
            if pool.pool.is_some() {
                live.metrics.pool_serves(&name);
            }
            pools.insert(name, pool);
        }
        drop(reloading);
        live.pools.store(Arc::new(pools));
        live.watch(watched);
        Ok(live)
    }

    /// Reads the pools that have changed, or all for [`ReloadCause::Signal`], and returns the names of those that were judged again. Good
    /// states are served from now on; for the rest the last good state is. A pool with a folder that is not `quiet` stays as it is: a file
    /// there may be half written.
    pub async fn reload(&self, occasion: ReloadCause, quiet: Option<&Quiet>) -> BTreeSet<String> {
        let mut reloading = self.reloading.lock().await;
        let PoolFolders { pools: folders, misnamed } = match folders(&self.folder) {
            Ok(folders) => folders,
            Err(error) => {
                tracing::error!("{error}; keeping the previous state of all pools");
                return BTreeSet::new();
            }
        };
        let before = self.pools.load_full();
        let mut pools = BTreeMap::new();
        let mut news = Vec::new();
        self.note(&misnamed, &mut news);
        let mut others = Vec::new();
        let mut watched = BTreeSet::from([self.folder.clone()]);
        let mut still = match occasion {
            ReloadCause::Signal => BTreeMap::new(),
            ReloadCause::Change | ReloadCause::Revalidation => still(std::mem::take(&mut reloading.pool_states)).await,
        };
        reloading.pool_states.clear();
        let mut reads = Vec::new();
        for (name, folder) in folders {
            let read = match still.remove(&name) {
                Some(known) if !reloading.servers.contains_key(&name) && is_good(before.get(&name)) => FolderRead::same(name, known),
                _ => self.read(name, folder, quiet).await,
            };
            if !read.settled {
                news.push(ReloadMessage::Good(format!(
                    "pool {}: reload delayed: a file in its folders is, or was just, being written; send SIGHUP to reload it now",
                    read.name
                )));
            }
            reads.push(read);
        }
        let judged = reads.iter().filter(|read| !matches!(read.found, LoadResult::Same));
        let judged = judged.map(|read| read.name.clone()).collect();
        one_pool_each(&mut reads, &before);
        for FolderRead {
            name,
            found,
            settled,
            state: known,
            ..
        } in reads
        {
            watched.extend(known.watched.iter().cloned());
            let old = before.get(&name);
            let live = match found {
                _ if !settled => old.cloned(),
                LoadResult::Same => {
                    reloading.pool_states.insert(name.clone(), known);
                    old.cloned()
                }
                LoadResult::Upstream(folder) => {
                    others.push((name.clone(), folder));
                    old.cloned()
                }
                LoadResult::Pool(result) => {
                    let result = *result;
                    if result.is_ok() {
                        reloading.servers.remove(&name);
                        reloading.pool_states.insert(name.clone(), known);
                    }
                    Some(self.changed(&name, old, result.map(|pool| (pool, None)), &mut news))
                }
            };
            pools.extend(live.map(|live| (name, live)));
        }
        let gone = |name: &String| !pools.contains_key(name) && !others.iter().any(|(other, _)| other == name);
        for name in before.keys().filter(|name| gone(name)) {
            news.push(ReloadMessage::Bad(format!("pool {name}: its folder was removed; no longer served")));
            self.metrics.pool_gone(name);
            reloading.servers.remove(name);
        }
        self.watch(watched);
        self.publish(&pools, &mut news);
        // Last: another server may take its time, and no other pool has to wait for it.
        for (name, folder) in others {
            let result = self.assemble(&name, *folder, &mut reloading.servers, occasion).await;
            let live = self.changed(&name, before.get(&name), result, &mut news);
            pools.insert(name, live);
            self.publish(&pools, &mut news);
        }
        // One that was not asked, because its pool could not be read, would otherwise stay due.
        let now = Instant::now();
        for server in reloading.servers.values_mut().filter(|server| server.due <= now) {
            server.due = now + UPSTREAM_RETRY;
        }
        judged
    }

    /// Reads a pool's folder, off the threads that serve. Makes the pool of it, if the folder is its source and no file is being written.
    async fn read(&self, name: String, folder: PathBuf, quiet: Option<&Quiet>) -> FolderRead {
        let (now, quiet, pool) = (self.clock.now(), quiet.cloned(), name.clone());
        let read = blocking(move || {
            let mut reader = FileReader::at(now);
            let read = reader.pool(&folder);
            let settled = quiet.is_none_or(|quiet| quiet.covers(&reader.watched));
            let inventory = read.as_ref().ok().and_then(|folder| folder.inventory.clone());
            let is_read = read.is_ok();
            let found = match read {
                Ok(folder) if folder.file.upstream.is_some() => LoadResult::Upstream(Box::new(folder)),
                Ok(folder) if settled => LoadResult::Pool(Pool::from_folder(&pool, folder).into()),
                // Nobody asks what would come of it.
                Ok(_) => LoadResult::Same,
                Err(error) => LoadResult::Pool(Err(error).into()),
            };
            let known = PoolState {
                stamps: reader.stamps,
                watched: reader.watched,
            };
            Ok((found, inventory, is_read, settled, known))
        });
        let (found, inventory, is_read, settled, known) = read.await.unwrap_or_else(|error: PoolError| {
            tracing::error!("pool {name}: {error}");
            (LoadResult::Pool(Err(error).into()), None, false, true, PoolState::default())
        });
        FolderRead {
            name,
            found,
            inventory,
            is_read,
            settled,
            state: known,
        }
    }

    /// Serves these pools from now on, and then logs the news.
    fn publish(&self, pools: &BTreeMap<String, Live>, news: &mut Vec<ReloadMessage>) {
        self.pools.store(Arc::new(pools.clone()));
        for news in news.drain(..) {
            match news {
                ReloadMessage::Good(text) => tracing::info!("{text}"),
                ReloadMessage::Bad(text) => tracing::error!("{text}"),
            }
        }
    }

    /// Returns a pool's state after it was read again: the new one, or the old one with the error.
    fn changed(
        &self,
        name: &str,
        before: Option<&Live>,
        result: Result<(Pool, Option<PoolError>), PoolError>,
        news: &mut Vec<ReloadMessage>,
    ) -> Live {
        let old = before.and_then(|live| live.pool.clone());
        let was_broken = before.and_then(|live| live.broken.as_ref());
        let (read, error) = match result {
            Ok((pool, failure)) => (Some(pool), failure),
            Err(error) => (None, Some(error)),
        };
        // What was rendered for a state stays rendered if the next one is the same.
        let new = read.filter(|read| old.as_ref().is_none_or(|old| !old.same(read)));
        if let Some(pool) = &new {
            let observes = match pool.policy.observes() {
                true => "; observing: no machine is refused for what it has booted",
                false => "",
            };
            news.push(ReloadMessage::Good(format!(
                "pool {name}: serving a new state; {}{observes}",
                pool.summary()
            )));
            self.metrics.pool_reloaded(name, true);
        } else if error.is_none() && was_broken.is_some() {
            news.push(ReloadMessage::Good(format!(
                "pool {name}: its source can be read again, and is unchanged"
            )));
        }
        let old = before.cloned().unwrap_or_default();
        let live = match new {
            Some(new) => old.replaced(Arc::new(new), self.clock.now().as_secs()),
            None => old,
        };
        let broken = error.map(|error| {
            self.metrics.pool_reloaded(name, false);
            match was_broken {
                // Said once, not at each revalidation.
                Some(known) if known.reason == error.to_string() => known.clone(),
                _ => {
                    let served = match live.pool {
                        Some(_) => "still serving the last good state",
                        None => NOT_SERVED,
                    };
                    news.push(ReloadMessage::Bad(format!("pool {name}: {error}; {served}")));
                    self.broken(&error)
                }
            }
        });
        self.metrics.pool_broken(name, broken.is_some());
        Live { broken, ..live }
    }

    fn broken(&self, error: &PoolError) -> Broken {
        Broken {
            reason: error.to_string(),
            since: self.clock.now().as_secs(),
            elsewhere: error.is_elsewhere(),
        }
    }

    /// Logs once for each misnamed folder that it is not served.
    fn note(&self, misnamed: &[PoolError], news: &mut Vec<ReloadMessage>) {
        let misnamed: BTreeSet<String> = misnamed.iter().map(ToString::to_string).collect();
        let mut known = self.misnamed.write().unwrap_or_else(PoisonError::into_inner);
        news.extend(
            misnamed
                .difference(&known)
                .map(|new| ReloadMessage::Bad(format!("{new}; not served"))),
        );
        *known = misnamed;
    }
}

/// Result of reading a pool.
enum LoadResult {
    /// The state that is served already.
    Same,
    /// The pool that its folder holds.
    Pool(Box<Result<Pool, PoolError>>),
    /// The folder of a pool whose source is another server.
    Upstream(Box<PoolFolder>),
}

/// Result of reading a pool's folder, and whether its files have settled.
struct FolderRead {
    name: String,
    found: LoadResult,
    /// Inventory that it would have from now on, even if the rest is refused.
    inventory: Option<PoolInventory>,
    /// Set if its folder could be read.
    is_read: bool,
    settled: bool,
    state: PoolState,
}

impl FolderRead {
    /// Returns a pool that was not read, because nothing has changed.
    const fn same(name: String, known: PoolState) -> Self {
        Self {
            name,
            found: LoadResult::Same,
            inventory: None,
            is_read: false,
            settled: true,
            state: known,
        }
    }
}

/// Returns those in whose folders nothing has changed.
async fn still(mut known: BTreeMap<String, PoolState>) -> BTreeMap<String, PoolState> {
    let looked = blocking(move || {
        known.retain(|_, known| known.stamps.is_still());
        Ok(known)
    });
    // All are read.
    looked.await.unwrap_or_default()
}

fn is_good(live: Option<&Live>) -> bool {
    live.is_some_and(|live| live.pool.is_some() && live.broken.is_none())
}

/// Refuses new states of pools whose inventories would share a machine.
fn one_pool_each(reads: &mut [FolderRead], before: &BTreeMap<String, Live>) {
    let would_have = reads.iter().filter_map(|read| {
        let inventory = match read.is_read && read.settled {
            true => read.inventory.as_ref(),
            false => before.get(&read.name)?.pool.as_ref()?.inventory.as_ref(),
        };
        Some((read.name.as_str(), inventory?))
    });
    let mut twice = inventory::twice(would_have);
    for read in reads.iter_mut().filter(|read| read.settled) {
        // What could not be read is refused for that.
        if (read.is_read || matches!(read.found, LoadResult::Same))
            && let Some(Twice { machine, other }) = twice.remove(&read.name)
        {
            let pool = read.name.clone();
            read.found = LoadResult::Pool(Err(PoolError::TwoInventories { pool, other, machine }).into());
        }
    }
}
