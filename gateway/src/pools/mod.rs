//! Pools of the gateway: [`live`] holds those that are served, and [`upstream`] fetches configs from other servers.

pub mod live;
pub mod upstream;
pub(crate) mod watch;

use std::path::Path;
use std::sync::Arc;

use attest_ignition::{Inexpressible, SpecVersion};
use attest_log::ConfigSet;
use attest_pool::folder::FileReader;
use attest_pool::needed_before_approval::NeededState;
use attest_pool::{Pool, PoolError, RenderedConfig};
use axum::body::Bytes;
use upstream::Upstream;

use crate::policy::Grant;

/// A config that is ready to be served to a client with the grant for it.
#[derive(Debug, Clone)]
pub struct PreparedConfig {
    pool: String,
    set: ConfigSet,
    config: Arc<RenderedConfig>,
}

impl PreparedConfig {
    /// Renders one of a pool's configs in a spec version, before anything has earned it.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn new(pool: &Pool, set: ConfigSet, version: SpecVersion) -> Result<Self, Inexpressible> {
        Ok(Self {
            pool: pool.name().to_owned(),
            set,
            config: pool.for_administrator(set).get(version)?,
        })
    }

    /// Returns the SHA-256 of the config, hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.config.sha256
    }

    /// Compresses the config, if that was not done before.
    pub async fn compress(&self) {
        compressed(&self.config).await;
    }

    /// Returns the spec version of the config.
    #[must_use]
    pub fn version(&self) -> SpecVersion {
        self.config.version
    }

    /// Returns the config that a grant gives the right to; `None` if the grant is for another one.
    #[must_use]
    pub fn for_grant(&self, grant: &Grant) -> Option<&Arc<RenderedConfig>> {
        (grant.pool() == self.pool && grant.set() == self.set).then_some(&self.config)
    }
}

/// Returns a config as gzip; compresses it in a thread of its own if that was not done before. `None` if the runtime shuts down.
pub async fn compressed(config: &Arc<RenderedConfig>) -> Option<Bytes> {
    if let Some(compressed) = config.compressed() {
        return Some(compressed.clone());
    }
    let config = Arc::clone(config);
    let compressing = tokio::task::spawn_blocking(move || config.gzip().clone());
    compressing.await.ok()
}

/// Reads one pool, from its folder, or from another server that the folder names. `needed` has the cluster's MachineConfigs for nodes
/// before they are approved.
///
/// # Errors
/// [`PoolError`].
pub async fn load(name: &str, folder: &Path, needed: &NeededState) -> Result<Pool, PoolError> {
    let read = FileReader::default().pool(folder)?;
    let Some(settings) = read.file.upstream.clone() else {
        return Pool::from_folder(name, read);
    };
    let upstream = |source| PoolError::Upstream {
        pool: name.to_owned(),
        source,
    };
    let server = Upstream::new(settings, name).map_err(upstream)?;
    let fetched = server.fetch(None).await.map_err(upstream)?;
    Pool::from_upstream(name, read, server.settings(), &fetched, needed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use attest_pool::SAMPLE;

    use super::*;

    fn pool(name: &str) -> Pool {
        let folder = tempfile::tempdir().unwrap();
        for set in ["full", "pre-approved"] {
            fs::create_dir(folder.path().join(set)).unwrap();
            fs::write(folder.path().join(set).join("config.ign"), r#"{"ignition":{"version":"3.1.0"}}"#).unwrap();
        }
        fs::write(folder.path().join("pool.toml"), SAMPLE).unwrap();
        Pool::from_folder(name, FileReader::default().pool(folder.path()).unwrap()).unwrap()
    }

    #[test]
    fn a_grant_is_valid_only_for_its_pool() {
        let (worker, infra) = (pool("worker"), pool("infra"));
        let grant = Grant::for_nothing(&worker.grants, "worker").unwrap();
        let prepared = |pool, set| PreparedConfig::new(pool, set, SpecVersion::V3_4).unwrap();
        assert!(prepared(&worker, grant.set()).for_grant(&grant).is_some());
        assert!(prepared(&infra, grant.set()).for_grant(&grant).is_none());
        assert_eq!(grant.set(), ConfigSet::PreApproved);
        assert!(prepared(&worker, ConfigSet::Full).for_grant(&grant).is_none(), "nor another config");
    }
}
