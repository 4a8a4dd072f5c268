//! The appraisal policy for attestation results: what each kind of proof earns in a pool.

use attest::AttestationResult;
use attest_log::{ConfigSet, Earns, Grants};

use crate::credentials::kubelet::PoolMember;
use crate::credentials::{tickets, tokens};

/// The right to one config of one pool. It is made of [`Grants`] and a proof, here alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pool: String,
    set: ConfigSet,
}

impl Grant {
    /// Returns the pool that it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the config set that it is for.
    #[must_use]
    pub const fn set(&self) -> ConfigSet {
        self.set
    }

    /// Returns what an attestation earns. `None` is a refusal.
    #[must_use]
    pub fn for_attested(grants: &Grants, result: &AttestationResult) -> Option<Self> {
        grant(grants.attested, result.claims().pool())
    }

    /// Returns what a ticket earns: the same as the attestation it represents, by today's policy.
    #[must_use]
    pub fn for_ticket(grants: &Grants, ticket: &tickets::RedeemedTicket) -> Option<Self> {
        grant(grants.attested, ticket.pool())
    }

    /// Returns what a token earns.
    #[must_use]
    pub fn for_token(grants: &Grants, token: &tokens::RedeemedToken) -> Option<Self> {
        grant(grants.token, token.pool())
    }

    /// Returns what a kubelet's client certificate earns.
    #[must_use]
    pub fn for_kubelet(grants: &Grants, member: &PoolMember) -> Option<Self> {
        grant(grants.kubelet, member.pool())
    }

    /// Returns what an unauthenticated node earns.
    #[must_use]
    pub fn for_nothing(grants: &Grants, pool: &str) -> Option<Self> {
        grant(grants.nothing, pool)
    }
}

fn grant(earns: Earns, pool: &str) -> Option<Grant> {
    Some(Grant {
        pool: pool.to_owned(),
        set: earns.set()?,
    })
}
