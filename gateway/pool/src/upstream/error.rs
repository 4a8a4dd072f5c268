//! What can go wrong with upstream, in the words of the administrator's log.

use std::path::PathBuf;

use attest_ignition::{NotAConfig, SpecVersion};

use super::ROUNDS_LIMIT;

/// Why there is no config from upstream. No text has anything of a config's contents.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The CA file cannot be read, or has no certificate.
    #[error("{path}: {problem}")]
    Ca {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No client can be made of the settings.
    #[error("{upstream}: {problem}")]
    Client { upstream: String, problem: String },
    /// An address for a name was given, but the URL has no name.
    #[error("{upstream}: address is for a URL with a name; write the address into the URL")]
    AddressOfAddress { upstream: String },
    /// No connection, no TLS, no answer in time, or half of one.
    #[error("{upstream}, spec {version}: {problem}")]
    Request {
        upstream: String,
        version: SpecVersion,
        problem: String,
    },
    /// A status that neither gives a config nor denies one.
    #[error("{upstream}, spec {version}: unexpected answer, HTTP {status}")]
    Status {
        upstream: String,
        version: SpecVersion,
        status: u16,
    },
    /// More than a config can have.
    #[error("{upstream}, spec {version}: the config has more than {limit} bytes")]
    TooLarge {
        upstream: String,
        version: SpecVersion,
        /// How many bytes are taken.
        limit: usize,
    },
    /// What came is not a config.
    #[error("{upstream}, spec {version}: {source}")]
    NotAConfig {
        upstream: String,
        version: SpecVersion,
        /// What is wrong with it.
        source: NotAConfig,
    },
    /// A config of a version that whoever asked for an older one could not read.
    #[error("{upstream}, spec {version}: the config is of spec {found}")]
    NewerVersion {
        upstream: String,
        version: SpecVersion,
        /// What came.
        found: SpecVersion,
    },
    /// There is no config of spec 3: so answers an upstream that does not know the pool.
    #[error("{upstream} has no config of spec 3 ({}); does it know the pool?", denial(*.status))]
    NotGiven {
        upstream: String,
        /// The first denial's status, if it had one.
        status: Option<u16>,
    },
    /// The config changed during each attempt.
    #[error("{upstream}: the config changed during each of {ROUNDS_LIMIT} attempts")]
    Changing { upstream: String },
    /// The gateway is being stopped.
    #[error("{upstream}: the gateway stops")]
    Stopped { upstream: String },
}

fn denial(status: Option<u16>) -> String {
    status.map_or_else(
        || "every answer was of another version".to_owned(),
        |status| format!("HTTP {status}"),
    )
}

impl UpstreamError {
    /// Whether nobody could be asked: the settings, or the files that they name, are wrong.
    #[must_use]
    pub const fn is_of_settings(&self) -> bool {
        matches!(self, Self::Ca { .. } | Self::Client { .. } | Self::AddressOfAddress { .. })
    }
}
