//! Configs fetched from upstream.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use attest_ignition::{Config, NotAConfig, SpecVersion};
use bytes::Bytes;
use serde::Deserialize;

/// A config in one spec version, as upstream gave it.
#[derive(Clone)]
pub struct FetchedVersion {
    /// The JSON, byte for byte.
    pub bytes: Bytes,
    /// Upstream's entity tag, if it gives any.
    pub etag: Option<String>,
    /// The config parsed from `bytes`.
    pub config: Arc<Config>,
}

/// A config in every version that upstream gives; at least one is of spec 3.
#[derive(Debug, Clone)]
pub struct FetchedConfig {
    configs: BTreeMap<SpecVersion, FetchedVersion>,
    newest: (SpecVersion, FetchedVersion),
}

impl FetchedVersion {
    /// Parses a config, and returns its version with it.
    ///
    /// # Errors
    /// [`NotAConfig`].
    pub fn parse(bytes: Bytes, etag: Option<String>) -> Result<(SpecVersion, Self), NotAConfig> {
        let config = Arc::new(Config::parse(&bytes)?);
        let head: SpecVersionHead = serde_json::from_slice(&bytes).map_err(|_| NotAConfig::Version {
            found: "not found".to_owned(),
        })?;
        let version = head.ignition.version.parse().map_err(|_| NotAConfig::Version {
            found: "unknown".to_owned(),
        })?;
        Ok((version, Self { bytes, etag, config }))
    }
}

/// The version, which a parsed config no longer contains.
#[derive(Deserialize)]
struct SpecVersionHead {
    ignition: IgnitionHead,
}

#[derive(Deserialize)]
struct IgnitionHead {
    version: String,
}

impl FetchedConfig {
    /// Returns `None` without a version of spec 3.
    #[must_use]
    pub fn from_configs(configs: BTreeMap<SpecVersion, FetchedVersion>) -> Option<Self> {
        let (version, newest) = configs.last_key_value().filter(|(version, _)| **version > SpecVersion::V2_2)?;
        let newest = (*version, newest.clone());
        Some(Self { configs, newest })
    }

    /// Returns the config in each available version.
    #[must_use]
    pub const fn configs(&self) -> &BTreeMap<SpecVersion, FetchedVersion> {
        &self.configs
    }

    /// Returns the config in the newest version, which can express everything.
    #[must_use]
    pub fn newest(&self) -> &Config {
        &self.newest.1.config
    }

    /// Returns the newest version, and its config.
    #[must_use]
    pub const fn newest_version(&self) -> (SpecVersion, &FetchedVersion) {
        (self.newest.0, &self.newest.1)
    }

    /// Returns whether nodes would get the same: the same versions, byte for byte.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let bytes = |(version, given): (&SpecVersion, &FetchedVersion)| (*version, given.bytes.clone());
        self.configs.iter().map(bytes).eq(other.configs.iter().map(bytes))
    }
}

/// Shows sizes only: a config holds secrets.
impl fmt::Debug for FetchedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version")
            .field("bytes", &self.bytes.len())
            .field("etag", &self.etag)
            .field("config", &self.config)
            .finish()
    }
}
