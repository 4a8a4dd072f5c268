use attest_certificates::kubelet::{NamePatterns, Verified};
use attest_machines::revocations;
use attest_store::EntryTransaction;

use super::MemberError;

/// The kubelet of a node that belongs to a pool and is not revoked. Only [`admit`] makes one.
#[derive(Debug, Clone)]
pub struct Member {
    verified: Verified,
    pool: String,
}

impl Member {
    /// Returns the facts that its certificate has proven.
    #[must_use]
    pub const fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Returns the pool that it belongs to.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }
}

/// Decides whether the node belongs to the pool; the store is asked each time whether it is revoked.
///
/// # Errors
/// [`MemberError`].
pub fn admit(transaction: &mut EntryTransaction<'_>, verified: &Verified, pool: &str, names: &NamePatterns) -> Result<Member, MemberError> {
    revocations::refuse(transaction, &[verified.name()], &[])?;
    names.check(verified.name(), pool)?;
    Ok(Member {
        verified: verified.clone(),
        pool: pool.to_owned(),
    })
}
