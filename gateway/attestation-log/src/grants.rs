//! Grants of a pool: each kind of proof earns a config or nothing. They are a part of `pool.toml` and of records.

use serde::{Deserialize, Serialize};

/// The config that a kind of proof earns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Earns {
    /// The full config, with all that the pool has.
    Full,
    /// The pre-approved config: what a node needs to submit its CSR.
    PreApproved,
    /// A refusal: neither config.
    Refuse,
}

/// The grants of one pool, for each kind of proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Grants {
    /// A node that has attested.
    pub attested: Earns,
    /// A node with a provisioning token.
    pub token: Earns,
    /// A node whose kubelet has its client certificate.
    pub kubelet: Earns,
    /// A node that shows nothing.
    pub nothing: Earns,
}

/// The two configs of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigSet {
    /// The config that a node needs to submit its CSR; it has no secrets.
    PreApproved,
    /// The config with all that the pool has.
    Full,
}

impl std::fmt::Display for ConfigSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PreApproved => "pre-approved",
            Self::Full => "full",
        })
    }
}

impl std::fmt::Display for Earns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.set() {
            Some(set) => set.fmt(f),
            None => f.write_str("refuse"),
        }
    }
}

impl Earns {
    /// Returns the config set that is earned, if there is one.
    #[must_use]
    pub const fn set(self) -> Option<ConfigSet> {
        match self {
            Self::Full => Some(ConfigSet::Full),
            Self::PreApproved => Some(ConfigSet::PreApproved),
            Self::Refuse => None,
        }
    }
}

impl Grants {
    /// Returns whether any kind of proof earns this.
    #[must_use]
    pub fn earn(&self, earns: Earns) -> bool {
        [self.attested, self.token, self.kubelet, self.nothing].contains(&earns)
    }
}
