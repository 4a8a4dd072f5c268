//! Kubelets: what a node is that shows the client certificate which its cluster has signed for it.
//!
//! A node that started with the pre-approved config submits a CSR; once that is approved, its kubelet has a certificate for
//! `system:node:NAME`, and the node can come back for the rest. Whoever holds the certificate's key has proven in the handshake that
//! he does ([`PossessionVerifier`]). Everything else is judged for each request, by what holds then:
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
pub use member::{Member, admit};
pub use member_error::MemberError;
