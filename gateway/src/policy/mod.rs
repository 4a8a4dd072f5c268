//! The appraisal policy for attestation results: what each kind of proof earns in a pool.

use attest::AttestationResult;
use serde::{Deserialize, Serialize};

use crate::credentials::kubelet::Member;
use crate::credentials::{tickets, tokens};

/// What a kind of proof earns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Earns {
    /// The full config.
    Full,
    /// The pre-approved config: what a node needs to submit its CSR.
    PreApproved,
    /// Nothing.
    Refuse,
}

/// What each kind of proof earns in one pool.
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

/// Which of a pool's two configs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigSet {
    /// What a node needs to submit its CSR; no secrets.
    PreApproved,
    /// Everything.
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

/// The right to one config of one pool. Only [`Grants`] makes one, and only from a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pool: String,
    set: ConfigSet,
}

impl Grant {
    /// The pool it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The config it is for.
    #[must_use]
    pub const fn set(&self) -> ConfigSet {
        self.set
    }
}

impl Earns {
    /// Which config it is.
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
    /// Whether any kind of proof earns this.
    #[must_use]
    pub fn earn(&self, earns: Earns) -> bool {
        [self.attested, self.token, self.kubelet, self.nothing].contains(&earns)
    }

    /// What an attestation earns. `None` is a refusal.
    #[must_use]
    pub fn for_attested(&self, result: &AttestationResult) -> Option<Grant> {
        grant(self.attested, result.claims().pool())
    }

    /// What a ticket earns: the same as the attestation it stands for, by the policy of today.
    #[must_use]
    pub fn for_ticket(&self, ticket: &tickets::Redeemed) -> Option<Grant> {
        grant(self.attested, ticket.pool())
    }

    /// What a token earns.
    #[must_use]
    pub fn for_token(&self, token: &tokens::Redeemed) -> Option<Grant> {
        grant(self.token, token.pool())
    }

    /// What a kubelet's client certificate earns.
    #[must_use]
    pub fn for_kubelet(&self, member: &Member) -> Option<Grant> {
        grant(self.kubelet, member.pool())
    }

    /// What a node earns that shows nothing.
    #[must_use]
    pub fn for_nothing(&self, pool: &str) -> Option<Grant> {
        grant(self.nothing, pool)
    }
}

fn grant(earns: Earns, pool: &str) -> Option<Grant> {
    Some(Grant {
        pool: pool.to_owned(),
        set: earns.set()?,
    })
}
