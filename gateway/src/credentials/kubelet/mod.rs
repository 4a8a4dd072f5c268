//! Kubelets: nodes that show the client certificate which their cluster has signed for them.
//!
//! A node that started with the pre-approved config submits a CSR. Once that is approved, its kubelet has a certificate for
//! `system:node:NAME`, and the node can return for the rest. The handshake proves that the client holds the certificate's key
//! ([`PossessionVerifier`]). Everything else is checked for each request, by the state at that time:
//!
//! ```text
//! TLS handshake → Presented → Verified (verify: chain, dates, usage, subject) → Member (admit: not revoked, of this pool) → Grant
//! ```

mod handshake;
mod member;
mod member_error;

#[cfg(test)]
mod tests;

pub use handshake::PossessionVerifier;
pub use member::{PoolMember, admit};
pub use member_error::MemberError;
