use std::collections::BTreeSet;
use std::sync::Arc;

use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use data_encoding::BASE64URL_NOPAD;
use openidconnect::core::{CoreJsonWebKeyType, CoreJsonWebKeyUse, CoreJwsSigningAlgorithm};
use openidconnect::{IssuerUrl, JsonWebKey, JsonWebKeyAlgorithm, JsonWebKeyId, SignatureVerificationError};
use serde::{Deserialize, Serialize};

use crate::gcp::ISSUER;
use crate::gcp::error::printable;
use crate::nonce::sha256;

/// Where Google publishes the keys that it signs identity tokens with (`jwks_uri` of `https://accounts.google.com`'s discovery
/// document). Keys from anywhere else, such as those of a single service account, must not be given to [`GoogleKeys`].
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

/// Why a JWK set cannot be used: the one in use before should be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Too many bytes.
    #[error("the JWK set has {bytes} bytes, at most {JWKS_LIMIT_BYTES} are read")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It is no JWK set.
    #[error("the JWK set cannot be read: {problem}")]
    Malformed {
        /// What the parser says.
        problem: String,
    },
    /// Too many keys.
    #[error("the JWK set has {found} keys, at most {KEYS_LIMIT} are read")]
    TooMany {
        /// How many.
        found: usize,
    },
    /// A key cannot be used.
    #[error("key {kid:?} of the JWK set: {problem}")]
    Key {
        /// Its id, if it has one.
        kid: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No key for RS256 is among them.
    #[error("none of the JWK set's {found} keys is an RSA key for RS256 signatures")]
    NoneUsable {
        /// How many there are.
        found: usize,
    },
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

/// A key of Google's as openidconnect takes it. Its signatures are verified by aws-lc-rs, as all others are: openidconnect's own key
/// type would do it with other libraries, and would verify other algorithms than RS256 too.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct RsaKey {
    kid: JsonWebKeyId,
    /// A key without it verifies nothing: openidconnect's traits demand that such ones can be made. Each verifier of openidconnect's
    /// wants a key of its own.
    #[serde(skip)]
    public: Option<Arc<PublicKey>>,
    /// The one signature that this key has verified: then it is good for nothing else.
    #[serde(skip)]
    verified: Option<Arc<Verified>>,
}

struct Verified {
    message: Vec<u8>,
    signature: Vec<u8>,
}

struct PublicKey {
    n: Vec<u8>,
    /// Made once, since that costs a good part of a verification.
    parsed: ParsedPublicKey,
    /// Whose key it is, as openidconnect takes it: parsed once, likewise.
    issuer: IssuerUrl,
}

impl PartialEq for RsaKey {
    fn eq(&self, other: &Self) -> bool {
        // The exponent is the same for all.
        (&self.kid, self.n()) == (&other.kid, other.n())
    }
}

impl Eq for RsaKey {}

impl std::fmt::Debug for RsaKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sha256 = data_encoding::HEXLOWER.encode(&sha256(&[self.n()]));
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
            bytes.ok_or_else(|| KeysError::key(&kid, &format!("{name} is no base64url number")))
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
        let parsed = parsed.map_err(|_| KeysError::key(&kid, "it is no RSA key"))?;
        let issuer = IssuerUrl::new(ISSUER.to_owned()).map_err(|error| KeysError::key(&kid, &error.to_string()))?;
        Ok(Self {
            kid: JsonWebKeyId::new(kid),
            public: Some(Arc::new(PublicKey { n, parsed, issuer })),
            verified: None,
        })
    }

    /// The same key, if this is its signature (RS256); for openidconnect, which then has not to verify it once more, and can verify no other.
    pub(super) fn having_verified(&self, message: &[u8], signature: Vec<u8>) -> Option<Self> {
        self.public.as_deref()?.parsed.verify_sig(message, &signature).ok()?;
        Some(Self {
            verified: Some(Arc::new(Verified {
                message: message.to_vec(),
                signature,
            })),
            ..self.clone()
        })
    }

    /// Whose key it is: [`ISSUER`].
    pub(super) fn issuer(&self) -> Option<&IssuerUrl> {
        self.public.as_deref().map(|public| &public.issuer)
    }

    fn n(&self) -> &[u8] {
        self.public.as_deref().map_or(&[], |public| &public.n)
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

impl JsonWebKey for RsaKey {
    type KeyUse = CoreJsonWebKeyUse;
    type SigningAlgorithm = CoreJwsSigningAlgorithm;

    fn key_id(&self) -> Option<&JsonWebKeyId> {
        Some(&self.kid)
    }

    fn key_type(&self) -> &CoreJsonWebKeyType {
        &CoreJsonWebKeyType::RSA
    }

    fn key_use(&self) -> Option<&CoreJsonWebKeyUse> {
        Some(&CoreJsonWebKeyUse::Signature)
    }

    fn signing_alg(&self) -> JsonWebKeyAlgorithm<&CoreJwsSigningAlgorithm> {
        JsonWebKeyAlgorithm::Algorithm(&CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256)
    }

    /// For HMAC by a client secret, which no verifier here has. What it makes is a key that no signature verifies under.
    fn new_symmetric(_secret: Vec<u8>) -> Self {
        Self {
            kid: JsonWebKeyId::new(String::new()),
            public: None,
            verified: None,
        }
    }

    fn verify_signature(
        &self,
        algorithm: &CoreJwsSigningAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureVerificationError> {
        if *algorithm != CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256 {
            return Err(SignatureVerificationError::DisallowedAlg("only RS256".to_owned()));
        }
        let verified = self.verified.as_deref().ok_or(SignatureVerificationError::NoMatchingKey)?;
        if verified.message == message && verified.signature == signature {
            return Ok(());
        }
        Err(SignatureVerificationError::CryptoError(
            "another signature than was verified".to_owned(),
        ))
    }

    fn hash_bytes(&self, bytes: &[u8], _algorithm: &CoreJwsSigningAlgorithm) -> Result<Vec<u8>, String> {
        Ok(sha256(&[bytes]).to_vec())
    }
}
