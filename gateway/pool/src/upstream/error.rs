//! Errors of an upstream server, in the words of the administrator's log.

use std::path::PathBuf;

use attest_ignition::{NotAConfig, SpecVersion};

use super::ROUNDS_LIMIT;

/// Reason why upstream returned no config. No text contains anything of a config.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The CA file cannot be read, or has no certificate.
    #[error("{path}: {problem}")]
    Ca {
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// The settings do not make a valid client.
    #[error("{upstream}: {problem}")]
    Client { upstream: String, problem: String },
    /// An address for a name was given, but the URL has no name.
    #[error("{upstream}: upstream.url has an address already: remove upstream.address")]
    AddressOfAddress { upstream: String },
    /// No connection, no TLS, no response in time, or an incomplete one.
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
        /// The limit in bytes.
        limit: usize,
    },
    /// The response is not a config.
    #[error("{upstream}, spec {version}: {source}")]
    NotAConfig {
        upstream: String,
        version: SpecVersion,
        source: NotAConfig,
    },
    /// A config of a newer version than requested, which the client could not read.
    #[error("{upstream}, spec {version}: the config is of spec {found}")]
    NewerVersion {
        upstream: String,
        version: SpecVersion,
        /// Version of the returned config.
        found: SpecVersion,
    },
    /// No config of spec 3 exists. An upstream that does not know the pool responds so.
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
        || "every answer had another spec version".to_owned(),
        |status| format!("HTTP {status}"),
    )
}

impl UpstreamError {
    /// Returns whether no request was possible, because the settings or the files that they name are wrong.
    #[must_use]
    pub const fn is_of_settings(&self) -> bool {
        matches!(self, Self::Ca { .. } | Self::Client { .. } | Self::AddressOfAddress { .. })
    }
}
