//! Other servers, and the times at which they are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_pool::folder::PoolFolder;
use attest_pool::needed_before_approval::NeededState;
use attest_pool::upstream::{FetchedConfig, UpstreamSettings};
use attest_pool::{Pool, PoolError};

use super::super::upstream::Upstream;
use super::LivePools;
use super::occasion::ReloadCause;

/// Pause before a server that failed is asked again.
pub(super) const UPSTREAM_RETRY: Duration = Duration::from_secs(10);

/// Pools for which the cluster has something new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamUpdates {
    All,
    Of(BTreeSet<String>),
}

impl UpstreamUpdates {
    /// Returns the pools of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Of(mut pools), Self::Of(more)) => {
                pools.extend(more);
                Self::Of(pools)
            }
            _ => Self::All,
        }
    }

    fn is_of(&self, pool: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(pools) => pools.contains(pool),
        }
    }
}

/// Another server that a pool is fetched from.
#[derive(Debug)]
pub(super) struct UpstreamServer {
    settings: UpstreamSettings,
    upstream: Upstream,
    last: Option<Arc<FetchedConfig>>,
    /// Set if the last request to it failed.
    failing: bool,
    pub(super) due: Instant,
}

impl LivePools {
    /// Returns the time at which the next other server is to be asked, if there is one.
    pub async fn revalidation_due(&self) -> Option<Instant> {
        self.reloading.lock().await.servers.values().map(|server| server.due).min()
    }

    /// Marks the servers of these pools as due, by the pools' names there, because the cluster has something new for them.
    pub async fn mark_due(&self, news: &UpstreamUpdates) {
        let now = Instant::now();
        for server in self.reloading.lock().await.servers.values_mut() {
            if news.is_of(server.upstream.pool()) {
                server.due = now;
            }
        }
        self.cluster_changed.notify_one();
    }

    /// Sets the MachineConfigs that nodes need before they are approved, as the cluster states them. Pools that depend on them are made
    /// again.
    pub fn needs(&self, needed: NeededState) {
        self.needed.store(Arc::new(needed));
        self.cluster_changed.notify_one();
    }

    /// Completes when the cluster has reported something new.
    pub(in crate::pools) async fn news(&self) {
        self.cluster_changed.notified().await;
    }

    /// Makes a pool of its folder, and of another server's answer if that is its source. If that server fails, its last answer still makes
    /// a pool, with today's `pool.toml`: an administrator who takes a grant back must not have to wait for it. The failure is returned too.
    pub(super) async fn assemble(
        &self,
        name: &str,
        folder: PoolFolder,
        servers: &mut BTreeMap<String, UpstreamServer>,
        occasion: ReloadCause,
    ) -> Result<(Pool, Option<PoolError>), PoolError> {
        let Some(settings) = folder.file.upstream.clone() else {
            servers.remove(name);
            let name = name.to_owned();
            return Ok((blocking(move || Pool::from_folder(&name, folder)).await?, None));
        };
        let failed = |source| PoolError::Upstream {
            pool: name.to_owned(),
            source,
        };
        let now = Instant::now();
        if occasion != ReloadCause::Revalidation || !servers.contains_key(name) {
            // The CA's file may be another one by now.
            let upstream = Upstream::new(settings.clone(), name).map_err(failed)?;
            let known = servers.remove(name).filter(|server| server.settings == settings);
            let (last, due) = match known {
                // One that failed is asked at every occasion, so that nobody takes it for well.
                Some(server) if occasion == ReloadCause::Signal || server.failing => (server.last, now),
                Some(server) => (server.last, server.due),
                None => (None, now),
            };
            let server = UpstreamServer {
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
            (Some(fetched), failure) => Ok((
                Pool::from_upstream(name, folder, server.upstream.settings(), fetched, &self.needed.load())?,
                failure,
            )),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(PoolError::Name(PathBuf::from(name))),
        }
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, PoolError> + Send + 'static) -> Result<T, PoolError> {
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

    use super::super::Lookup;
    use super::*;
    use crate::pki::{self, GatewayNames};
    use crate::settings::Settings;
    use attest_pool::SAMPLE;
    use attest_system::clock::Clock;

    #[tokio::test]
    async fn unreachable_upstream_is_not_revalidated_continuously() {
        let folder = tempfile::tempdir().unwrap();
        let names = GatewayNames {
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
        let live = LivePools::open(&folder.path().join("pools"), Clock::System, Arc::default(), NeededState::default())
            .await
            .unwrap();
        assert!(matches!(live.get("worker"), Lookup::NotYet));
        assert!(live.revalidation_due().await.unwrap() > Instant::now());
        fs::write(pool.join("pool.toml"), "broken").unwrap();
        for occasion in [ReloadCause::Change, ReloadCause::Signal, ReloadCause::Revalidation] {
            let mut reloading = live.reloading.lock().await;
            for server in reloading.servers.values_mut() {
                server.due = Instant::now();
            }
            drop(reloading);
            live.reload(occasion, None).await;
            assert!(live.revalidation_due().await.unwrap() > Instant::now(), "{occasion:?}");
        }
        assert!(matches!(live.get("worker"), Lookup::NotYet));
    }
}
