use std::collections::BTreeSet;

use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;

use crate::gcp::error::printable;
use crate::gcp::openid::{Issuer, SignedToken};
use crate::nonce::sha256;

/// URL of the keys that Google signs identity tokens with (`jwks_uri` of the discovery document of `https://accounts.google.com`). Keys
/// from anywhere else, such as those of a single service account, must not be given to [`GoogleKeys`].
pub const JWKS_URL: &str = "https://www.googleapis.com/oauth2/v3/certs";

/// Largest JWK set that is read, in bytes. Google's has about 1 KiB.
pub const JWKS_LIMIT_BYTES: usize = 64 * 1024;

/// Most keys that a set may have. Google's has two, three while they change.
pub const KEYS_LIMIT: usize = 16;

/// Longest key id, in characters. Google's have 40.
const KEY_ID_LIMIT_CHARS: usize = 128;

/// RSA moduli that are accepted, in bits.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

/// The RSA public exponent that is accepted, big-endian: 65537, everybody's.
const EXPONENT: [u8; 3] = [1, 0, 1];

/// Reason why a JWK set cannot be used: the caller should keep the previous one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    #[error("the JWK set has {bytes} bytes, at most {JWKS_LIMIT_BYTES} are read")]
    TooLarge { bytes: usize },
    /// The bytes are not a JWK set.
    #[error("the JWK set cannot be read: {problem}")]
    Malformed { problem: String },
    #[error("the JWK set has {found} keys, at most {KEYS_LIMIT} are read")]
    TooMany { found: usize },
    /// A key cannot be used.
    #[error("key {kid:?} of the JWK set: {problem}")]
    Key {
        /// Its id, if it has one.
        kid: String,
        /// The problem with the key, in words.
        problem: String,
    },
    /// No key for RS256 is among them.
    #[error("none of the JWK set's {found} keys is an RSA key for RS256 signatures")]
    NoneUsable { found: usize },
}

/// The keys that Google signs identity tokens with: bounded in number, each RSA of at least 2048 bits, each with its own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoogleKeys {
    keys: Vec<RsaKey>,
}

impl GoogleKeys {
    /// Reads a JWK set (RFC 7517). Keys of other kinds and for other uses are left out; one that is meant for RS256 and is weak,
    /// broken, without an id or there twice is a reason to refuse all.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn from_jwks(jwks: &[u8]) -> Result<Self, KeysError> {
        if jwks.len() > JWKS_LIMIT_BYTES {
            return Err(KeysError::TooLarge { bytes: jwks.len() });
        }
        let set: RawSet = serde_json::from_slice(jwks).map_err(|error| KeysError::Malformed {
            problem: printable(&error.to_string()),
        })?;
        let found = set.keys.len();
        if found > KEYS_LIMIT {
            return Err(KeysError::TooMany { found });
        }
        let keys: Vec<RsaKey> = set
            .keys
            .into_iter()
            .filter(RawKey::is_for_rs256)
            .map(RsaKey::new)
            .collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(KeysError::NoneUsable { found });
        }
        let mut ids = BTreeSet::new();
        if let Some(twice) = keys.iter().find(|key| !ids.insert(key.kid.as_str())) {
            return Err(KeysError::key(&twice.kid, "another key has the same id"));
        }
        Ok(Self { keys })
    }

    /// The ids of the keys.
    pub fn key_ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.kid.as_str())
    }

    pub(super) fn get(&self, kid: &str) -> Option<&RsaKey> {
        self.keys.iter().find(|key| key.kid.as_str() == kid)
    }
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<RawKey>,
}

/// A JWK's fields that matter for RSA. Others, such as certificates, are not looked at.
#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    key_use: Option<String>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
}

impl RawKey {
    fn is_for_rs256(&self) -> bool {
        let is = |field: &Option<String>, value: &str| field.as_deref().is_none_or(|found| found == value);
        self.kty == "RSA" && is(&self.key_use, "sig") && is(&self.alg, "RS256")
    }
}

/// A key of Google's. Its signatures are verified by aws-lc-rs, as all others are.
#[derive(Clone)]
pub(super) struct RsaKey {
    kid: String,
    n: Vec<u8>,
    /// Made once, since that costs a good part of a verification.
    parsed: ParsedPublicKey,
    issuer: Issuer,
}

impl PartialEq for RsaKey {
    fn eq(&self, other: &Self) -> bool {
        // The exponent is the same for all.
        (&self.kid, &self.n) == (&other.kid, &other.n)
    }
}

impl Eq for RsaKey {}

impl std::fmt::Debug for RsaKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sha256 = data_encoding::HEXLOWER.encode(&sha256(&[&self.n]));
        f.debug_struct("RsaKey")
            .field("kid", &self.kid)
            .field("n_sha256", &sha256)
            .finish_non_exhaustive()
    }
}

impl RsaKey {
    fn new(raw: RawKey) -> Result<Self, KeysError> {
        let Some(kid) = raw.kid.filter(|kid| (1..=KEY_ID_LIMIT_CHARS).contains(&kid.chars().count())) else {
            return Err(KeysError::key("", "its id is missing, empty or too long"));
        };
        let number = |field: Option<String>, name: &str| {
            let bytes = field.and_then(|text| BASE64URL_NOPAD.decode(text.as_bytes()).ok());
            let bytes = bytes.filter(|bytes| bytes.first().is_some_and(|first| *first != 0));
            bytes.ok_or_else(|| KeysError::key(&kid, &format!("{name} is not a base64url number")))
        };
        let (n, e) = (number(raw.n, "n")?, number(raw.e, "e")?);
        let unused = n.first().map_or(0, |first| usize::try_from(first.leading_zeros()).unwrap_or(0));
        let bits = n.len() * 8 - unused;
        if !MODULUS_BITS.contains(&bits) || n.last().is_some_and(|last| last % 2 == 0) {
            return Err(KeysError::key(
                &kid,
                &format!(
                    "it is RSA-{bits}; accepted are odd moduli of {} to {} bits",
                    MODULUS_BITS.start(),
                    MODULUS_BITS.end()
                ),
            ));
        }
        if e != EXPONENT {
            return Err(KeysError::key(&kid, "its public exponent is not 65537"));
        }
        let components = RsaPublicKeyComponents { n: &n, e: &e };
        let parsed = components.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256);
        let parsed = parsed.map_err(|_| KeysError::key(&kid, "it is not an RSA key"))?;
        let issuer = Issuer::google().map_err(|problem| KeysError::key(&kid, &problem))?;
        Ok(Self { kid, n, parsed, issuer })
    }

    /// A token in JWS Compact Serialization, if this is its signature (RS256) by this key.
    pub(super) fn verify<'t>(&'t self, text: &'t str, signature: Vec<u8>) -> Option<SignedToken<'t>> {
        let (signed, _) = text.rsplit_once('.')?;
        self.parsed.verify_sig(signed.as_bytes(), &signature).ok()?;
        Some(SignedToken {
            text,
            kid: &self.kid,
            issuer: &self.issuer,
            signature,
        })
    }
}

impl KeysError {
    fn key(kid: &str, problem: &str) -> Self {
        Self::Key {
            kid: printable(kid),
            problem: problem.to_owned(),
        }
    }
}
