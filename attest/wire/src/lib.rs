//! Messages about evidence between a node and its verifier, and values that both ends compute from it.
//!
//! This crate verifies nothing: the library `attest` does, which the node does not link. Each kind of evidence has a module here, with its
//! messages, and one there. No I/O, no clock, no async.

#![deny(unreachable_pub)]

pub mod aws;
pub mod azure;
pub mod der;
pub mod gcp;
pub mod kinds;
pub mod names;
pub mod nonce;
pub mod protocol;
pub mod purpose;
pub mod release;
pub mod token;
pub mod tpm;
pub mod values;

pub use kinds::Kind;
pub use nonce::SpkiSha256;
pub use tpm::ek::EkDigest;
pub use tpm::wire::HashAlg;
