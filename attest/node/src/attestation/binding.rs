//! Binding of evidence to a challenge.

use attest_wire::SpkiSha256;
use attest_wire::nonce::qualifying_data;

/// The values of a challenge that evidence is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChallengeBinding<'a> {
    /// The nonce of the challenge.
    pub(super) nonce: &'a [u8],
    pub(super) purpose: &'a str,
    pub(super) pool: &'a str,
    /// The key of the server that gave the challenge.
    pub(super) server_key: &'a SpkiSha256,
}

impl ChallengeBinding<'_> {
    /// Returns the digest of these values, 32 bytes: the qualifying data of a quote.
    #[must_use]
    pub(super) fn qualifying_data(&self) -> [u8; 32] {
        qualifying_data(self.nonce, self.purpose, self.pool, self.server_key)
    }
}
