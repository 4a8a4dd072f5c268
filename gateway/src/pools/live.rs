//! What is served at the moment. A pool changes as a whole, or not at all: one that cannot be read stays as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::folder::{Folder, Reader};
use super::inventory::{self, Twice};
use super::upstream::{Fetched, Upstream, UpstreamSettings};
use super::{Folders, Pool, PoolError, folders};
use crate::clock::{Clock, rfc3339};
use crate::metrics::Metrics;
use crate::watch::Quiet;

/// How soon a server that did not answer is asked again.
const UPSTREAM_RETRY: Duration = Duration::from_secs(10);

/// What is said of a pool that never was good.
pub(crate) const NOT_SERVED: &str = "it is not served until that is well";

/// All pools, as they are served.
#[derive(Debug)]
pub struct LivePools {
    folder: PathBuf,
    clock: Clock,
    metrics: Arc<Metrics>,
    pools: ArcSwap<BTreeMap<String, Live>>,
    /// Who reloads; one at a time.
    reloading: Mutex<BTreeMap<String, Server>>,
    /// The folders that what is served was read from.
    watched: RwLock<BTreeSet<PathBuf>>,
    /// What lies among the pools and is none, in words.
    misnamed: RwLock<BTreeSet<String>>,
}

/// One pool, as it is served.
#[derive(Debug, Clone)]
struct Live {
    /// The last state that was good; `None` if there never was one.
    pool: Option<Arc<Pool>>,
    /// What is wrong with the newer state, if there is one.
    broken: Option<Broken>,
}

#[derive(Debug, Clone)]
struct Broken {
    reason: String,
    since: u64,
    /// Whether another server is the cause.
    elsewhere: bool,
}

/// A pool that is not served, as it never was good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    pub name: String,
    pub reason: String,
    /// Whether another server is the cause, and not what lies here.
    pub elsewhere: bool,
}

/// What the log says of a reload.
enum News {
    Good(String),
    Bad(String),
}

/// Another server that a pool is fetched from.
#[derive(Debug)]
struct Server {
    settings: UpstreamSettings,
    upstream: Upstream,
    last: Option<Arc<Fetched>>,
    /// Whether it failed when it was asked last.
    failing: bool,
    due: Instant,
}

/// What there is under a pool's name.
#[derive(Debug)]
pub enum Lookup {
    Pool(Arc<Pool>),
    /// A pool that could not be read yet.
    NotYet,
    /// No such pool.
    Unknown,
}

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

    /// The pool of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Lookup {
        match self.pools.load().get(name) {
            Some(Live { pool: Some(pool), .. }) => Lookup::Pool(Arc::clone(pool)),
            Some(Live { pool: None, .. }) => Lookup::NotYet,
            None => Lookup::Unknown,
        }
    }

    /// Whether a pool is served as it was when it was looked up.
    #[must_use]
    pub fn is_current(&self, pool: &Arc<Pool>) -> bool {
        matches!(self.get(pool.name()), Lookup::Pool(current) if Arc::ptr_eq(&current, pool))
    }

    /// The names of all pools.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.pools.load().keys().cloned().collect()
    }

    /// Every pool that is served.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Pool>> {
        self.pools.load().values().filter_map(|live| live.pool.clone()).collect()
    }

    /// What is wrong with the newest state of pools, by their names, whether an older one is served or none.
    #[must_use]
    pub fn broken_sources(&self) -> BTreeMap<String, String> {
        let pools = self.pools.load();
        let broken = pools.iter().filter_map(|(name, live)| Some((name, live.broken.as_ref()?)));
        broken.map(|(name, broken)| (name.clone(), broken.reason.clone())).collect()
    }

    /// The pools that are not served.
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

    /// What lies among the pools and is none, in words.
    #[must_use]
    pub fn misnamed(&self) -> Vec<String> {
        let misnamed = self.misnamed.read().unwrap_or_else(PoisonError::into_inner);
        misnamed.iter().cloned().collect()
    }

    /// Says of what is no pool that it is not served, once.
    fn note(&self, misnamed: &[PoolError], news: &mut Vec<News>) {
        let misnamed: BTreeSet<String> = misnamed.iter().map(ToString::to_string).collect();
        let mut known = self.misnamed.write().unwrap_or_else(PoisonError::into_inner);
        news.extend(misnamed.difference(&known).map(|new| News::Bad(format!("{new}; it is not served"))));
        *known = misnamed;
    }

    /// Whether any pool is served, and a line for each whose newest state is not: without the reason, which is the log's.
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

    /// The folders to watch for changes.
    #[must_use]
    pub fn watched(&self) -> BTreeSet<PathBuf> {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn watch(&self, folders: BTreeSet<PathBuf>) {
        *self.watched.write().unwrap_or_else(PoisonError::into_inner) = folders;
    }

    /// When another server should be asked again, if there is one.
    pub async fn revalidation_due(&self) -> Option<Instant> {
        self.reloading.lock().await.values().map(|server| server.due).min()
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

    /// Makes a pool of what was read, with another server's help if that is its source. If that server fails, what it said last still
    /// makes a pool, with today's `pool.toml`: who takes a grant back must not have to wait for it. The failure comes along.
    async fn assemble(
        &self,
        name: &str,
        folder: Folder,
        servers: &mut BTreeMap<String, Server>,
        occasion: Occasion,
    ) -> Result<(Pool, Option<PoolError>), PoolError> {
        let Some(settings) = folder.file.upstream.clone() else {
            servers.remove(name);
            let name = name.to_owned();
            return Ok((blocking(move || Pool::of_folder(&name, folder)).await?, None));
        };
        let failed = |source| PoolError::Upstream {
            pool: name.to_owned(),
            source,
        };
        let now = Instant::now();
        if occasion != Occasion::Revalidation || !servers.contains_key(name) {
            // The CA's file may be another one by now.
            let upstream = Upstream::new(settings.clone(), name).map_err(failed)?;
            let known = servers.remove(name).filter(|server| server.settings == settings);
            let (last, due) = match known {
                // One that failed is asked at every occasion, so that nobody takes it for well.
                Some(server) if occasion == Occasion::Signal || server.failing => (server.last, now),
                Some(server) => (server.last, server.due),
                None => (None, now),
            };
            let server = Server {
                settings,
                upstream,
                last,
                failing: false,
                due,
            };
            servers.insert(name.to_owned(), server);
        }
        let Some(server) = servers.get_mut(name) else {
            return Err(PoolError::Name(PathBuf::from(name)));
        };
        let mut failure = None;
        if server.due <= now || server.failing || server.last.is_none() {
            let every = Duration::from_secs(server.settings.revalidate_seconds.into());
            let answer = server.upstream.fetch(server.last.as_deref()).await;
            server.failing = answer.is_err();
            server.due = now + if server.failing { UPSTREAM_RETRY.min(every) } else { every };
            match answer {
                Ok(fetched) => server.last = Some(Arc::new(fetched)),
                Err(error) => failure = Some(failed(error)),
            }
        }
        match (&server.last, failure) {
            (Some(fetched), failure) => Ok((Pool::of_upstream(name, folder, &server.upstream, fetched)?, failure)),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(PoolError::Name(PathBuf::from(name))),
        }
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, PoolError> + Send + 'static) -> Result<T, PoolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(PoolError::Io {
            path: PathBuf::new(),
            source: std::io::Error::other(error),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::pki::{self, Names};
    use crate::pools::SAMPLE;
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_server_that_cannot_be_asked_is_not_due_all_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names {
            hosts: vec!["localhost".to_owned()],
            addresses: Vec::new(),
        };
        let tls = Settings::defaults(folder.path()).unwrap().tls;
        pki::create(&tls, &names, Clock::System.now()).unwrap();
        let pool = folder.path().join("pools/worker");
        fs::create_dir_all(&pool).unwrap();
        // Nobody listens on port 1.
        let upstream = format!(
            "\n[upstream]\nurl = \"https://127.0.0.1:1\"\nca = {:?}\n[upstream.include]\nfiles = [\"/a\"]\n",
            tls.ca
        );
        fs::write(pool.join("pool.toml"), format!("{SAMPLE}{upstream}")).unwrap();
        let live = LivePools::open(&folder.path().join("pools"), Clock::System, Arc::default())
            .await
            .unwrap();
        assert!(matches!(live.get("worker"), Lookup::NotYet));
        assert!(live.revalidation_due().await.unwrap() > Instant::now());
        fs::write(pool.join("pool.toml"), "broken").unwrap();
        for occasion in [Occasion::Change, Occasion::Signal, Occasion::Revalidation] {
            let mut servers = live.reloading.lock().await;
            for server in servers.values_mut() {
                server.due = Instant::now();
            }
            drop(servers);
            live.reload(occasion, None).await;
            assert!(live.revalidation_due().await.unwrap() > Instant::now(), "{occasion:?}");
        }
        assert!(matches!(live.get("worker"), Lookup::NotYet));
    }
}
