//! What a node and its verifier say to one another about evidence, and what both ends compute from it.
//!
//! It verifies nothing: the library `attest` does, which the node does not link. No I/O, no clock, no async.

pub mod nonce;
pub mod tpm;
pub mod values;

pub use nonce::SpkiSha256;
pub use tpm::wire::HashAlg;
