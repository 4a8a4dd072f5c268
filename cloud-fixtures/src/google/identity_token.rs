//! Keys that sign JWTs, in Google's place and in that of others.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256, RsaEncoding, RsaKeyPair};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

/// The id of a key, in the form of Google's.
pub const KID: &str = "0123456789abcdef0123456789abcdef01234567";

/// A key that signs JWTs.
pub struct JwtSigner {
    pair: RsaKeyPair,
    kid: String,
}

impl JwtSigner {
    /// Generates one with the id [`KID`].
    #[must_use]
    pub fn new(size: KeySize) -> Self {
        Self::with_id(size, KID)
    }

    /// Generates one with this id.
    #[must_use]
    pub fn with_id(size: KeySize, kid: &str) -> Self {
        Self {
            pair: RsaKeyPair::generate(size).unwrap(),
            kid: kid.to_owned(),
        }
    }

    /// Returns the id of the key.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Returns the modulus, big-endian.
    #[must_use]
    pub fn modulus(&self) -> Vec<u8> {
        self.pair.public_key().modulus().big_endian_without_leading_zero().to_vec()
    }

    /// Returns the key's SubjectPublicKeyInfo, in DER.
    #[must_use]
    pub fn public_der(&self) -> Vec<u8> {
        AsDer::<PublicKeyX509Der<'_>>::as_der(self.pair.public_key())
            .unwrap()
            .as_ref()
            .to_vec()
    }

    /// Returns the key as a JWK with this id instead of its own.
    #[must_use]
    pub fn jwk(&self, kid: &str) -> Value {
        json!({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": BASE64URL_NOPAD.encode(&self.modulus()), "e": "AQAB"})
    }

    /// Returns a JWK set of this key alone.
    #[must_use]
    pub fn jwks(&self) -> Value {
        json!({"keys": [self.jwk(&self.kid)]})
    }

    /// Returns the signature of a message.
    #[must_use]
    pub fn signature(&self, encoding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    }

    /// Returns a token, signed like Google's.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "RS256", "kid": self.kid, "typ": "JWT"}), claims)
    }

    /// Returns a token with another header.
    #[must_use]
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        self.sign_bytes(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    /// Returns a token of these bytes.
    #[must_use]
    pub fn sign_bytes(&self, header: &[u8], claims: &[u8]) -> String {
        compact(header, claims, |input| self.signature(&RSA_PKCS1_SHA256, input))
    }
}

/// Returns the compact form of a JWT, with any signature.
pub fn compact(header: &[u8], claims: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let input = format!("{}.{}", BASE64URL_NOPAD.encode(header), BASE64URL_NOPAD.encode(claims));
    let signature = sign(input.as_bytes());
    format!("{input}.{}", BASE64URL_NOPAD.encode(&signature))
}
