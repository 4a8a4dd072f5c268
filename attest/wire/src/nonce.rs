//! Binding of evidence to one challenge, one purpose, one pool and one server.

use std::fmt;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::FromDer;

use crate::values::HexDigest;

/// The purpose of evidence that earns an Ignition config. Evidence for one purpose is worth nothing for another.
pub const PURPOSE_CONFIG: &str = "ignition-config";

/// Length of the nonce in a challenge, in bytes.
pub const NONCE_BYTES: usize = 32;

/// Separates this use of SHA-256 from every other.
const DOMAIN: &[u8] = b"attestation-gateway/v1/quote\0";

/// SHA-256 of a SubjectPublicKeyInfo (DER): which server the node talked to, or which key its kubelet will have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "HexDigest", into = "HexDigest")]
pub struct SpkiSha256(pub [u8; 32]);

impl SpkiSha256 {
    /// Computes the digest for a certificate (DER) from a TLS handshake; `None` for bytes that are not a certificate.
    #[must_use]
    pub fn from_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
        Some(Self::from_spki(certificate.public_key().raw))
    }

    /// Computes the digest of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn from_spki(der: &[u8]) -> Self {
        Self(sha256(&[der]))
    }
}

impl fmt::Display for SpkiSha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for SpkiSha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<SpkiSha256> for HexDigest {
    fn from(spki: SpkiSha256) -> Self {
        Self::from(spki.0)
    }
}

impl TryFrom<HexDigest> for SpkiSha256 {
    type Error = &'static str;

    fn try_from(digest: HexDigest) -> Result<Self, Self::Error> {
        digest
            .as_bytes()
            .try_into()
            .map(Self)
            .map_err(|_| "expected a SHA-256 digest: 64 hexadecimal digits")
    }
}

/// Values to which evidence has to be bound.
#[derive(Debug, Clone, Copy)]
pub struct EvidenceBinding<'a> {
    /// Nonce of the challenge.
    pub nonce: &'a [u8],
    /// Purpose of the evidence.
    pub purpose: &'a str,
    pub pool: &'a str,
    /// Keys that the node may have seen the server use.
    pub server_keys: &'a [SpkiSha256],
}

/// The quote's extraData: SHA-256 over the domain, then nonce, purpose and pool, each with its length before it (32 bits,
/// big-endian), then the server key's SHA-256. Both ends compute it; the TPM signs it.
#[must_use]
pub fn qualifying_data(nonce: &[u8], purpose: &str, pool: &str, server_key: &SpkiSha256) -> [u8; 32] {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let (purpose, pool) = (purpose.as_bytes(), pool.as_bytes());
    sha256(&[
        DOMAIN,
        &length(nonce),
        nonce,
        &length(purpose),
        purpose,
        &length(pool),
        pool,
        &server_key.0,
    ])
}

/// SHA-256 of the concatenation of `parts`.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 32] = [7; 32];
    const KEY: SpkiSha256 = SpkiSha256([9; 32]);

    #[test]
    fn qualifying_data_matches_the_protocol_document() {
        let mut message = b"attestation-gateway/v1/quote\0".to_vec();
        message.extend([0, 0, 0, 32]);
        message.extend(NONCE);
        message.extend([0, 0, 0, 15]);
        message.extend(b"ignition-config");
        message.extend([0, 0, 0, 6]);
        message.extend(b"worker");
        message.extend(KEY.0);
        assert_eq!(qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &KEY), sha256(&[&message]));
    }

    #[test]
    fn qualifying_data_depends_on_each_input() {
        let expected = qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &KEY);
        assert_ne!(expected, qualifying_data(&[8; 32], PURPOSE_CONFIG, "worker", &KEY));
        assert_ne!(expected, qualifying_data(&NONCE, "report", "worker", &KEY));
        assert_ne!(expected, qualifying_data(&NONCE, PURPOSE_CONFIG, "master", &KEY));
        assert_ne!(expected, qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &SpkiSha256([8; 32])));
        assert_ne!(
            qualifying_data(&NONCE, "ab", "c", &KEY),
            qualifying_data(&NONCE, "a", "bc", &KEY),
            "lengths separate the fields"
        );
    }
}
