use attest_store::StoreError;

use crate::machines::revocations::RevocationError;

/// The reason why a node with a good certificate is not of the pool.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its name is none of the pool's.
    #[error("node {name} does not belong to pool {pool}, whose kubelet.names are {}", names.join(", "))]
    WrongPool {
        /// The name in the node's certificate.
        name: String,
        pool: String,
        /// The patterns of the pool's names.
        names: Vec<String>,
    },
    /// It is revoked, or the store cannot tell.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}
