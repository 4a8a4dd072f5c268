//! All pools are read again: each as a whole, or it stays as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::super::folder::{Folder, Reader};
use super::super::inventory::{self, Twice};
use super::super::{Folders, Pool, PoolError, folders};
use super::servers::{UPSTREAM_RETRY, blocking};
use super::{Broken, Live, LivePools, NOT_SERVED};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::watch::Quiet;

/// Why pools are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Files have changed.
    Change,
    /// The administrator says so.
    Signal,
    /// Other servers may have something new.
    Revalidation,
}

/// What the log says of a reload.
enum News {
    Good(String),
    Bad(String),
}

impl LivePools {
    /// Reads every pool for the first time. One that cannot be served is in nobody's way: [`LivePools::unserved`] names it.
    ///
    /// # Errors
    /// [`PoolError`], if there are none.
    pub async fn open(folder: &Path, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, PoolError> {
        let live = Self {
            folder: folder.to_owned(),
            clock,
            metrics,
            pools: ArcSwap::default(),
            reloading: Mutex::default(),
            watched: RwLock::default(),
            misnamed: RwLock::default(),
        };
        let mut servers = live.reloading.lock().await;
        let mut pools = BTreeMap::new();
        let mut watched = BTreeSet::from([folder.to_owned()]);
        let Folders { pools: folders, misnamed } = folders(folder)?;
        live.note(&misnamed, &mut Vec::new());
        let mut reads = Vec::new();
        for (name, folder) in folders {
            let (result, reader) = read(&name, &folder).await;
            watched.extend(reader.watched);
            let settled = true;
            reads.push(Read { name, result, settled });
        }
        one_pool_each(&mut reads, &BTreeMap::new());
        for Read { name, result, .. } in reads {
            let assembled = match result {
                Ok(read) => live.assemble(&name, read, &mut servers, Occasion::Change).await,
                Err(error) => Err(error),
            };
            let pool = match assembled {
                // Nothing was said before that a failing server could be served by.
                Ok((pool, _)) => Live {
                    pool: Some(Arc::new(pool)),
                    broken: None,
                },
                Err(error) => Live {
                    pool: None,
                    broken: Some(live.broken(&error)),
                },
            };
            live.metrics.pool_broken(&name, pool.broken.is_some());
            pools.insert(name, pool);
        }
        drop(servers);
        live.pools.store(Arc::new(pools));
        live.watch(watched);
        Ok(live)
    }

    /// Reads everything again. What is good is served from now on; for the rest the last good state is. A pool with a folder that is not
    /// `quiet` stays as it is: a file there may be half of what it is going to be.
    pub async fn reload(&self, occasion: Occasion, quiet: Option<&Quiet>) {
        let mut servers = self.reloading.lock().await;
        let Folders { pools: folders, misnamed } = match folders(&self.folder) {
            Ok(folders) => folders,
            Err(error) => return tracing::error!("{error}; all pools stay as they are"),
        };
        let before = self.pools.load_full();
        let mut pools = BTreeMap::new();
        let mut news = Vec::new();
        self.note(&misnamed, &mut news);
        let mut others = Vec::new();
        let mut watched = BTreeSet::from([self.folder.clone()]);
        let mut reads = Vec::new();
        for (name, folder) in folders {
            let (result, reader) = read(&name, &folder).await;
            let settled = quiet.is_none_or(|quiet| quiet.covers(&reader.watched));
            watched.extend(reader.watched);
            if !settled {
                news.push(News::Good(format!(
                    "pool {name}: not read again yet, a file in its folders is being written, or was a moment ago; SIGHUP has it read now"
                )));
            }
            reads.push(Read { name, result, settled });
        }
        one_pool_each(&mut reads, &before);
        for Read { name, result, settled } in reads {
            let old = before.get(&name);
            let live = match result {
                _ if !settled => old.cloned(),
                Ok(read) if read.file.upstream.is_some() => {
                    others.push((name.clone(), read));
                    old.cloned()
                }
                Ok(read) => {
                    let result = self.assemble(&name, read, &mut servers, occasion).await;
                    Some(self.changed(&name, old, result, &mut news))
                }
                Err(error) => Some(self.changed(&name, old, Err(error), &mut news)),
            };
            pools.extend(live.map(|live| (name, live)));
        }
        let gone = |name: &String| !pools.contains_key(name) && !others.iter().any(|(other, _)| other == name);
        for name in before.keys().filter(|name| gone(name)) {
            news.push(News::Bad(format!("pool {name}: its folder is gone, it is not served any longer")));
            self.metrics.pool_gone(name);
            servers.remove(name);
        }
        self.watch(watched);
        self.publish(&pools, &mut news);
        // Last: another server may take its time, and no other pool has to wait for it.
        for (name, read) in others {
            let result = self.assemble(&name, read, &mut servers, occasion).await;
            let live = self.changed(&name, before.get(&name), result, &mut news);
            pools.insert(name, live);
            self.publish(&pools, &mut news);
        }
        // One that was not asked, because its pool could not be read, would otherwise stay due.
        let now = Instant::now();
        for server in servers.values_mut().filter(|server| server.due <= now) {
            server.due = now + UPSTREAM_RETRY;
        }
    }

    /// Serves these from now on, and says what is new: when it is true.
    fn publish(&self, pools: &BTreeMap<String, Live>, news: &mut Vec<News>) {
        self.pools.store(Arc::new(pools.clone()));
        for news in news.drain(..) {
            match news {
                News::Good(text) => tracing::info!("{text}"),
                News::Bad(text) => tracing::error!("{text}"),
            }
        }
    }

    /// What is served of a pool after it was read again.
    fn changed(
        &self,
        name: &str,
        before: Option<&Live>,
        result: Result<(Pool, Option<PoolError>), PoolError>,
        news: &mut Vec<News>,
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
            news.push(News::Good(format!("pool {name}: a new state is served; {}", pool.summary())));
            self.metrics.pool_reloaded(name, true);
        } else if error.is_none() && was_broken.is_some() {
            news.push(News::Good(format!(
                "pool {name}: its source is well again, and says what is served already"
            )));
        }
        let pool = new.map(Arc::new).or(old);
        let broken = error.map(|error| {
            self.metrics.pool_reloaded(name, false);
            match was_broken {
                // Said once, not at each revalidation.
                Some(known) if known.reason == error.to_string() => known.clone(),
                _ => {
                    let served = match pool {
                        Some(_) => "the last good state is still served",
                        None => NOT_SERVED,
                    };
                    news.push(News::Bad(format!("pool {name}: {error}; {served}")));
                    self.broken(&error)
                }
            }
        });
        self.metrics.pool_broken(name, broken.is_some());
        Live { pool, broken }
    }

    fn broken(&self, error: &PoolError) -> Broken {
        Broken {
            reason: error.to_string(),
            since: self.clock.now().as_secs(),
            elsewhere: error.is_elsewhere(),
        }
    }

    /// Says of what is no pool that it is not served, once.
    fn note(&self, misnamed: &[PoolError], news: &mut Vec<News>) {
        let misnamed: BTreeSet<String> = misnamed.iter().map(ToString::to_string).collect();
        let mut known = self.misnamed.write().unwrap_or_else(PoisonError::into_inner);
        news.extend(misnamed.difference(&known).map(|new| News::Bad(format!("{new}; it is not served"))));
        *known = misnamed;
    }
}

/// What was read of a pool's folder, and whether nobody writes there.
struct Read {
    name: String,
    result: Result<Folder, PoolError>,
    settled: bool,
}

/// Refuses what is new of pools whose inventories would share a machine.
fn one_pool_each(reads: &mut [Read], before: &BTreeMap<String, Live>) {
    let would_have = reads.iter().filter_map(|read| {
        let inventory = match &read.result {
            Ok(folder) if read.settled => folder.inventory.as_ref(),
            _ => before.get(&read.name)?.pool.as_ref()?.inventory.as_ref(),
        };
        Some((read.name.as_str(), inventory?))
    });
    let mut twice = inventory::twice(would_have);
    for read in reads.iter_mut().filter(|read| read.settled && read.result.is_ok()) {
        if let Some(Twice { machine, other }) = twice.remove(&read.name) {
            let pool = read.name.clone();
            read.result = Err(PoolError::TwoInventories { pool, other, machine });
        }
    }
}

/// Reads a pool's folder, off the threads that serve.
async fn read(name: &str, folder: &Path) -> (Result<Folder, PoolError>, Reader) {
    let (name, folder) = (name.to_owned(), folder.to_owned());
    let read = blocking(move || {
        let mut reader = Reader::default();
        let read = reader.pool(&folder);
        Ok((read, reader))
    });
    read.await.unwrap_or_else(|error: PoolError| {
        tracing::error!("pool {name}: {error}");
        (Err(error), Reader::default())
    })
}
