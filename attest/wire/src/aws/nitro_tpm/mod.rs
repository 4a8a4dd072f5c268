//! NitroTPM attestation documents: the input of the request for them, and their message.

mod kind;
mod messages;

use crate::nonce::{SpkiSha256, qualifying_data};

pub use kind::NitroTpm;
pub use messages::NitroTpmEvidence;

/// Largest document, in bytes. With every field as long as it may be, nine certificates and 32 PCRs, it has under 15 KiB; real
/// ones have 5.
pub const DOCUMENT_LIMIT_BYTES: usize = 16 * 1024;

/// Computes the node's `user_data`, in addition to the challenge's nonce as `nonce`: `nitro-tpm-attest --nonce <nonce> --user-data <this>`.
/// It is the value that a TPM's quote would have as extraData ([`qualifying_data`]), so that a document for one purpose, pool and gateway
/// is worth nothing for another.
#[must_use]
pub fn expected_user_data(nonce: &[u8], purpose: &str, pool: &str, server_key: &SpkiSha256) -> [u8; 32] {
    qualifying_data(nonce, purpose, pool, server_key)
}
