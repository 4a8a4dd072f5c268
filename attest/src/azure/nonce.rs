use std::fmt;

use serde::Serialize;

use crate::nonce::sha256;

/// Separates this use of SHA-256 from every other.
const DOMAIN: &[u8] = b"attestation-gateway/v1/azure-nonce\0";

/// The least number of ten digits. No leading zeros, so that nothing on the way that takes it for a number can lose any.
const LEAST: u128 = 1_000_000_000;
/// How many numbers have ten digits.
const NUMBERS: u128 = 9_000_000_000;

/// Longest nonce that is compared: what IMDS writes for a request without one has 15 characters.
const TEXT_LIMIT_BYTES: usize = 32;

/// The nonce that IMDS is asked with: ten decimal digits, which is all that it takes.
///
/// That is 33 bits. They do not stop an adversary who may ask the machine's IMDS at will: such a one needs no replay. Against
/// one who could ask before and cannot any more they leave a chance: whoever has collected *n* documents of the last six
/// hours has one for a given challenge with a probability of *n* in 9·10⁹. IMDS answers five requests a second, so *n* is about
/// 10⁵, and the chance one in 80,000 for each challenge. [`super::AttestedDocumentRules::max_age_seconds`] lowers *n*.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ImdsNonce(String);

/// A text that is no nonce of IMDS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a nonce of IMDS has 1 to {TEXT_LIMIT_BYTES} printable ASCII characters")]
pub struct MalformedNonce;

impl ImdsNonce {
    /// Of 32 bytes that are bound to a challenge: its nonce, or better its qualifying data
    /// ([`crate::nonce::qualifying_data`]), in which purpose, pool and server are, too.
    ///
    /// It is 10⁹ plus the remainder, divided by 9·10⁹, of the first 16 bytes (big-endian) of SHA-256 over a domain and the 32 bytes.
    #[must_use]
    pub fn derive(binding: &[u8; 32]) -> Self {
        let hash = sha256(&[DOMAIN, binding]);
        let number = hash.iter().take(16).fold(0_u128, |number, &byte| number << 8 | u128::from(byte));
        Self((LEAST + number % NUMBERS).to_string())
    }

    /// One that was used before: for records that are verified again.
    ///
    /// # Errors
    /// [`MalformedNonce`].
    pub fn recorded(text: &str) -> Result<Self, MalformedNonce> {
        if (1..=TEXT_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(MalformedNonce)
        }
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImdsNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_ten_digits_that_depend_on_the_challenge() {
        let nonces: std::collections::BTreeSet<_> = (0..=255).map(|byte| ImdsNonce::derive(&[byte; 32]).0).collect();
        assert_eq!(nonces.len(), 256);
        for nonce in nonces {
            assert!(nonce.len() == 10 && nonce.parse::<u64>().unwrap() >= 1_000_000_000, "{nonce}");
        }
    }

    #[test]
    fn is_what_its_description_says() {
        let mut message = b"attestation-gateway/v1/azure-nonce\0".to_vec();
        message.extend([7; 32]);
        let hash = sha256(&[&message]);
        let number = u128::from_be_bytes(hash[..16].try_into().unwrap());
        assert_eq!(
            ImdsNonce::derive(&[7; 32]).as_str(),
            (1_000_000_000 + number % 9_000_000_000).to_string()
        );
    }

    #[test]
    fn recorded_ones_are_bounded() {
        assert!(ImdsNonce::recorded("20260728-192400").is_ok());
        for text in ["", "12 34", "1\n", "ä", &"1".repeat(33)] {
            assert_eq!(ImdsNonce::recorded(text), Err(MalformedNonce), "{text}");
        }
    }
}
