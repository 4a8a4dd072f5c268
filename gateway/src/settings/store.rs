//! Which engine keeps the store, and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `https://HOST:PORT` of each member; or `http://`, all of them.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// The CAs of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Who the gateway is to etcd, and the file with the password, where it wants one.
    pub user: Option<(String, PathBuf)>,
    /// How long whoever asks waits for an answer.
    pub timeout: Duration,
}

impl EtcdSettings {
    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:"))
    }

    /// Where the store is, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{} below {}", self.endpoints.join(","), self.prefix)
    }
}
