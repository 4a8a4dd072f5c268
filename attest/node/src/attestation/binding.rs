//! The values of one challenge that evidence is bound to.

use attest_wire::SpkiSha256;
use attest_wire::nonce::qualifying_data;

/// What the evidence is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Binding<'a> {
    /// The challenge's nonce.
    pub(super) nonce: &'a [u8],
    pub(super) purpose: &'a str,
    pub(super) pool: &'a str,
    /// The key of the server that gave the challenge.
    pub(super) server_key: &'a SpkiSha256,
}

impl Binding<'_> {
    /// As 32 bytes.
    #[must_use]
    pub(super) fn qualifying_data(&self) -> [u8; 32] {
        qualifying_data(self.nonce, self.purpose, self.pool, self.server_key)
    }
}
