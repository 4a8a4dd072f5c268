use std::fmt;

use serde::{Deserialize, Serialize};

use crate::nonce::sha256;

/// Separates this use of SHA-256 from every other.
const DOMAIN: &[u8] = b"attestation-gateway/v2/azure-nonce\0";

/// Characters of a nonce.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Longest nonce that IMDS accepts, in characters, and the length of those in requests: letters and digits only.
///
/// Microsoft's description of the interface says "up to 32 random alphanumeric characters"
/// (Azure/azure-rest-api-specs, `specification/imds/data-plane/InstanceMetadataService/stable/2021-01-01/imds.json`, `Attested_GetDocument`).
/// In production, SPIRE asks with 32 letters and digits (spiffe/spire, `pkg/server/plugin/nodeattestor/azureimds/imds.go`), and Teleport with
/// 32 characters of base64url (gravitational/teleport, `lib/auth/join_azure.go`). "Ten digits" is only in the prose of one page.
pub const IMDS_NONCE_LIMIT_CHARACTERS: usize = 32;

/// Nonce for a request to IMDS: 32 letters and digits, which are 190 bits. An attacker who collects documents while he has access to the
/// machine's IMDS gets none for a later challenge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ImdsNonce(String);

/// The form of the nonce that follows from a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NonceForm {
    /// 32 letters and digits.
    #[serde(rename = "alphanumeric-32")]
    Alphanumeric32,
}

/// Error for a text that is not a nonce of IMDS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a nonce of IMDS has 1 to {IMDS_NONCE_LIMIT_CHARACTERS} printable ASCII characters")]
pub struct MalformedNonce;

impl ImdsNonce {
    /// Derives a nonce from 32 bytes that are bound to a challenge: its nonce, or better its qualifying data
    /// ([`crate::nonce::qualifying_data`]), which includes purpose, pool and server.
    ///
    /// It is SHA-256 over a domain and the 32 bytes, as a big-endian number, modulo 62³², with base 62: 32 digits of `0-9A-Za-z`, the least
    /// significant first.
    #[must_use]
    pub fn derive(binding: &[u8; 32]) -> Self {
        let mut number = sha256(&[DOMAIN, binding]);
        Self((0..IMDS_NONCE_LIMIT_CHARACTERS).map(|_| digit(&mut number)).collect())
    }

    /// Parses a recorded nonce: for documents that are verified again. The value that IMDS writes for a request without a nonce is valid,
    /// too: it contains a hyphen.
    ///
    /// # Errors
    /// [`MalformedNonce`].
    pub fn recorded(text: &str) -> Result<Self, MalformedNonce> {
        if (1..=IMDS_NONCE_LIMIT_CHARACTERS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(MalformedNonce)
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Divides a big-endian number by 62; gives the digit that remains.
fn digit(number: &mut [u8; 32]) -> char {
    const BASE: u16 = 62;
    let mut remainder = 0;
    for byte in number {
        let value = remainder << 8 | u16::from(*byte);
        // A remainder is below the base, so what is divided is below 62 · 256, and the quotient is a byte.
        *byte = u8::try_from(value / BASE).unwrap_or(u8::MAX);
        remainder = value % BASE;
    }
    ALPHABET.get(usize::from(remainder)).copied().map_or('0', char::from)
}

impl fmt::Display for ImdsNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn attack_26_imds_nonce_uses_the_whole_alphanumeric_alphabet() {
        let nonces: BTreeSet<_> = (0..=255).map(|byte| ImdsNonce::derive(&[byte; 32]).0).collect();
        assert_eq!(nonces.len(), 256);
        for nonce in &nonces {
            assert!(
                nonce.len() == 32 && nonce.bytes().all(|byte| byte.is_ascii_alphanumeric()),
                "{nonce}"
            );
        }
        // Every character of the alphabet, in every place: none is there for show.
        for place in 0..32 {
            let found: BTreeSet<_> = (0..=u16::MAX)
                .step_by(32)
                .map(|number| {
                    let mut binding = [0; 32];
                    binding[..2].copy_from_slice(&number.to_be_bytes());
                    ImdsNonce::derive(&binding).0.as_bytes()[place]
                })
                .collect();
            assert_eq!(found.len(), 62, "{place}");
        }
    }

    /// Made by a program of another language from the description.
    #[test]
    fn matches_a_nonce_derived_by_another_implementation() {
        assert_eq!(ImdsNonce::derive(&[7; 32]).as_str(), "jIL5PhUKl8BWTsiuBRGPGCfsMlvxS53F");
    }

    #[test]
    fn recorded_nonce_is_limited_to_32_alphanumerics() {
        assert!(ImdsNonce::recorded("20260728-192400").is_ok());
        for text in ["", "12 34", "1\n", "ä", &"1".repeat(33)] {
            assert_eq!(ImdsNonce::recorded(text), Err(MalformedNonce), "{text}");
        }
    }
}
