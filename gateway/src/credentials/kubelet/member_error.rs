use attest_certificates::kubelet::WrongPool;
use attest_machines::revocations::RevocationError;
use attest_store::StoreError;

/// The reason why a node with a good certificate is not of the pool.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its name is not one of the pool's.
    #[error(transparent)]
    WrongPool(#[from] WrongPool),
    /// It is revoked, or the store failed.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
