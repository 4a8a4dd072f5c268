//! The Endorsement Key: the identity of a TPM.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ek_key::EkKey;
use super::wire::{Attributes, Curve, KeyParameters, Public, SymmetricCipher, TpmScheme, WireError};
use crate::nonce::sha256;
use crate::values::{HexDigest, is_lower_hex};

/// SHA-256 over the DER SubjectPublicKeyInfo of an EK: the name of a TPM in allowlists, logs and identities.
///
/// The digest is over the key and not over the `TPMT_PUBLIC`. So it can be computed from an EK certificate alone, and one key has one
/// digest regardless of the attributes that a node claims for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "HexDigest", into = "HexDigest")]
pub struct EkDigest([u8; 32]);

/// A text that is no [`EkDigest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the SHA-256 of an EK public key: 64 hexadecimal digits")]
pub struct NotAnEkDigest;

const DIGEST_DIGITS: usize = 64;

/// Returns whether a text is a digest spelled as in identities.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_DIGITS && is_lower_hex(text)
}

impl EkDigest {
    /// The stable identity of a node with this TPM.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("tpm:{self}")
    }

    /// The digest of a key.
    #[must_use]
    pub fn of(key: &EkKey) -> Self {
        Self(sha256(&[&key.spki_der()]))
    }

    /// The digest of the EK in a public area: TPMT_PUBLIC, or TPM2B_PUBLIC as tpm2-tools writes it.
    ///
    /// # Errors
    /// [`EkAreaError`] for bytes that are neither, and for keys that no TCG EK template makes.
    pub fn from_public_area(bytes: &[u8]) -> Result<Self, EkAreaError> {
        let area = Public::parse_sized(bytes)
            .or_else(|_| Public::parse(bytes))
            .map_err(|error| EkAreaError::Wire {
                structure: "the EK's public area",
                error,
            })?;
        EkPublic::check(area).map(|ek| ek.digest)
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for EkDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for EkDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EkDigest {
    type Err = NotAnEkDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        HexDigest::from_hex(text).ok_or(NotAnEkDigest)?.try_into()
    }
}

impl TryFrom<HexDigest> for EkDigest {
    type Error = NotAnEkDigest;

    fn try_from(digest: HexDigest) -> Result<Self, Self::Error> {
        digest.as_bytes().try_into().map(Self).map_err(|_| NotAnEkDigest)
    }
}

impl From<EkDigest> for HexDigest {
    fn from(digest: EkDigest) -> Self {
        Self::from(digest.0)
    }
}

/// Attributes that every EK template sets (TCG EK Credential Profile 2.6, Annex B: templates L-1, L-2 and H-1 to H-7).
const REQUIRED: u32 = Attributes::FIXED_TPM
    | Attributes::FIXED_PARENT
    | Attributes::SENSITIVE_DATA_ORIGIN
    | Attributes::ADMIN_WITH_POLICY
    | Attributes::RESTRICTED
    | Attributes::DECRYPT;
/// Further attributes, set by the templates of the high range and some TPMs.
const OPTIONAL: u32 = Attributes::USER_WITH_AUTH | Attributes::NO_DA;

/// Reason why bytes are not an EK's public area.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EkAreaError {
    /// The bytes cannot be read.
    #[error("{structure} cannot be read: {error}")]
    Wire {
        /// The structure, by its name in TPM 2.0 Part 2 and its role.
        structure: &'static str,
        /// Error of the parser.
        error: WireError,
    },
    /// The area is not of a TCG EK template.
    #[error("the EK's {field} is {found}, the TCG EK template has {required}")]
    Template {
        field: &'static str,
        /// Value in the area.
        found: String,
        /// Value in the template.
        required: &'static str,
    },
}

/// An EK whose public area is of a TCG template: a restricted decryption key that never leaves its TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EkPublic {
    area: Public,
    key: EkKey,
    digest: EkDigest,
}

impl EkPublic {
    /// Reads and checks a TPMT_PUBLIC.
    ///
    /// # Errors
    /// [`EkAreaError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, EkAreaError> {
        Self::check(Public::parse(bytes).map_err(|error| EkAreaError::Wire {
            structure: "the EK's TPMT_PUBLIC",
            error,
        })?)
    }

    fn check(area: Public) -> Result<Self, EkAreaError> {
        let attributes = area.attributes;
        if !attributes.has(REQUIRED) || attributes.0 & !(REQUIRED | OPTIONAL) != 0 {
            return Err(EkAreaError::Template {
                field: "objectAttributes",
                found: format!("{:#010x}", attributes.0),
                required: "fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted and decrypt, optionally also userWithAuth and noDA",
            });
        }
        if area.symmetric == SymmetricCipher::Null {
            return Err(EkAreaError::Template {
                field: "symmetric cipher",
                found: "none".to_owned(),
                required: "AES in CFB mode",
            });
        }
        if area.scheme != TpmScheme::Null {
            return Err(EkAreaError::Template {
                field: "scheme",
                found: format!("{:?}", area.scheme),
                required: "none",
            });
        }
        let key = ek_key(&area.key)?;
        let digest = EkDigest::of(&key);
        Ok(Self { area, key, digest })
    }

    /// The digest that names this EK.
    #[must_use]
    pub const fn digest(&self) -> EkDigest {
        self.digest
    }

    /// The area that was checked.
    #[must_use]
    pub const fn area(&self) -> &Public {
        &self.area
    }

    #[must_use]
    pub const fn key(&self) -> &EkKey {
        &self.key
    }
}

fn ek_key(parameters: &KeyParameters) -> Result<EkKey, EkAreaError> {
    let refused = |field, found, required| Err(EkAreaError::Template { field, found, required });
    match parameters {
        KeyParameters::Rsa {
            key_bits,
            exponent,
            modulus,
        } => {
            if !matches!(key_bits, 2048 | 3072 | 4096) {
                return refused("key size", format!("RSA-{key_bits}"), "RSA-2048, RSA-3072 or RSA-4096");
            }
            if modulus.len() != usize::from(*key_bits / 8) || modulus.first().is_none_or(|byte| byte & 0x80 == 0) {
                return refused(
                    "modulus",
                    format!("{} bytes", modulus.len()),
                    "as long as keyBits says, highest bit set",
                );
            }
            if !matches!(exponent, 0 | 65537) {
                return refused("exponent", exponent.to_string(), "65537");
            }
            Ok(EkKey::Rsa {
                n: modulus.clone(),
                e: vec![1, 0, 1],
            })
        }
        KeyParameters::Ecc { curve, x, y } => match curve {
            Curve::P256 => Ok(EkKey::P256 {
                x: padded(x),
                y: padded(y),
            }),
            Curve::P384 => Ok(EkKey::P384 {
                x: padded(x),
                y: padded(y),
            }),
        },
    }
}

/// A coordinate in its full length. The wire parser has refused longer ones.
fn padded<const N: usize>(coordinate: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().rev().zip(coordinate.iter().rev()).for_each(|(to, from)| *to = *from);
    out
}
