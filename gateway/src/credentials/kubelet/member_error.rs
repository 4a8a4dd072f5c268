use attest_store::StoreError;

use crate::machines::revocations::RevocationError;

/// Why a node with a good certificate is no member.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its name is none of the pool's.
    #[error("node {name} is none of pool {pool}, whose kubelet.names are {}", names.join(", "))]
    WrongPool {
        /// The node's name.
        name: String,
        pool: String,
        /// Its patterns.
        names: Vec<String>,
    },
    /// It is revoked, or the store cannot tell.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}
