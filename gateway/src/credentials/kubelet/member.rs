use attest_certificates::kubelet::{NamePatterns, VerifiedKubelet};
use attest_machines::revocations;
use attest_store::EntryTransaction;

use super::MemberError;

/// The kubelet of a node that belongs to a pool and is not revoked. Only [`admit`] makes one.
#[derive(Debug, Clone)]
pub struct PoolMember {
    verified: VerifiedKubelet,
    pool: String,
}

impl PoolMember {
    /// Returns the facts that its certificate has proven.
    #[must_use]
    pub const fn verified(&self) -> &VerifiedKubelet {
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
pub fn admit(
    transaction: &mut EntryTransaction<'_>,
    verified: &VerifiedKubelet,
    pool: &str,
    names: &NamePatterns,
) -> Result<PoolMember, MemberError> {
    revocations::refuse(transaction, &[verified.name()], &[])?;
    names.check(verified.name(), pool)?;
    Ok(PoolMember {
        verified: verified.clone(),
        pool: pool.to_owned(),
    })
}
