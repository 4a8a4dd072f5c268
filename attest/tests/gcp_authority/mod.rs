//! A signing authority in Google's place, whose private keys the test holds: so that everything can be signed wrongly too.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

use std::sync::LazyLock;
use std::time::Duration;

use attest::gcp::{Audience, GoogleKeys};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256, RsaEncoding, RsaKeyPair};
use data_encoding::BASE64URL_NOPAD;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer, KeyUsagePurpose, date_time_ymd,
};
use serde_json::{Value, json};

/// 2027-01-15.
pub const NOW: u64 = 1_800_000_000;
pub const KID: &str = "0123456789abcdef0123456789abcdef01234567";
pub const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
pub const NONCE: [u8; 32] = [0x11; 32];
pub const GATEWAY: &str = "gateway.example.com";

pub const PROJECT_ID: &str = "example-project";
pub const PROJECT_NUMBER: u64 = 739_419_398_126;
pub const ZONE: &str = "europe-west3-a";
pub const INSTANCE_ID: u64 = 152_986_662_232_938_449;
pub const INSTANCE_NAME: &str = "worker-7";

pub static GOOGLE: LazyLock<Signer> = LazyLock::new(|| Signer::new(KeySize::Rsa2048));
/// A service account whose key its owner holds.
pub static ACCOUNT: LazyLock<Signer> = LazyLock::new(|| Signer::new(KeySize::Rsa2048));

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub fn audience() -> Audience {
    Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &NONCE, &SERVER_KEY)
}

/// Keys that sign JWTs.
pub struct Signer(RsaKeyPair);

impl Signer {
    pub fn new(size: KeySize) -> Self {
        Self(RsaKeyPair::generate(size).unwrap())
    }

    pub fn modulus(&self) -> Vec<u8> {
        self.0.public_key().modulus().big_endian_without_leading_zero().to_vec()
    }

    pub fn public_der(&self) -> Vec<u8> {
        AsDer::<PublicKeyX509Der<'_>>::as_der(self.0.public_key())
            .unwrap()
            .as_ref()
            .to_vec()
    }

    pub fn jwk(&self, kid: &str) -> Value {
        json!({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": BASE64URL_NOPAD.encode(&self.modulus()), "e": "AQAB"})
    }

    /// A set with this key as Google's.
    pub fn keys(&self) -> GoogleKeys {
        keys(&[self.jwk(KID)]).unwrap()
    }

    pub fn signature(&self, encoding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.0.public_modulus_len()];
        self.0.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "RS256", "kid": KID, "typ": "JWT"}), claims)
    }

    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        self.sign_bytes(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    pub fn sign_bytes(&self, header: &[u8], claims: &[u8]) -> String {
        compact(header, claims, |input| self.signature(&RSA_PKCS1_SHA256, input))
    }
}

pub fn compact(header: &[u8], claims: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let input = format!("{}.{}", BASE64URL_NOPAD.encode(header), BASE64URL_NOPAD.encode(claims));
    let signature = sign(input.as_bytes());
    format!("{input}.{}", BASE64URL_NOPAD.encode(&signature))
}

pub fn keys(jwks: &[Value]) -> Result<GoogleKeys, attest::gcp::KeysError> {
    GoogleKeys::from_jwks(json!({ "keys": jwks }).to_string().as_bytes())
}

/// What the metadata server gives for `format=full&licenses=TRUE`.
pub fn claims() -> Value {
    json!({
        "aud": audience().as_str(),
        "azp": "104029292853099978293",
        "email": "739419398126-compute@developer.gserviceaccount.com",
        "email_verified": true,
        "exp": NOW + 3595,
        "google": {"compute_engine": {
            "instance_confidentiality": 1,
            "instance_creation_timestamp": NOW - 600,
            "instance_id": INSTANCE_ID.to_string(),
            "instance_name": INSTANCE_NAME,
            "license_id": ["1000204", "5926592092274602096"],
            "project_id": PROJECT_ID,
            "project_number": PROJECT_NUMBER,
            "zone": ZONE,
        }},
        "iat": NOW - 5,
        "iss": "https://accounts.google.com",
        "sub": "104029292853099978293",
    })
}

/// A DER element.
pub fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u8::try_from(content.len()).unwrap();
    let header = if length < 0x80 {
        vec![tag, length]
    } else {
        vec![tag, 0x81, length]
    };
    [header, content].concat()
}

pub fn der_text(text: &str) -> Vec<u8> {
    der(0x0c, &[text.as_bytes()])
}

pub fn der_number(number: u64) -> Vec<u8> {
    let bytes = [&[0], number.to_be_bytes().as_slice()].concat();
    let zeros = bytes.windows(2).take_while(|pair| pair[0] == 0 && pair[1] < 0x80).count();
    der(0x02, &[&bytes[zeros..]])
}

pub fn der_flag(flag: bool) -> Vec<u8> {
    der(0x01, &[&[if flag { 0xff } else { 0 }]])
}

/// The fields of Google's extension, each as it is encoded.
pub fn extension_fields() -> Vec<Vec<u8>> {
    let production = der(0x30, &[&der(0xa0, &[&der_number(0)]), &der(0xa1, &[&der_flag(true)])]);
    vec![
        der_text(ZONE),
        der_number(PROJECT_NUMBER),
        der_text(PROJECT_ID),
        der_number(INSTANCE_ID),
        der_text(INSTANCE_NAME),
        der(0xa0, &[&production]),
    ]
}

pub fn extension(fields: &[Vec<u8>]) -> Vec<u8> {
    der(0x30, &fields.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

pub fn instance_extension(content: Vec<u8>) -> CustomExtension {
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 11129, 2, 1, 21], content)
}

pub fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2060, 1, 1);
    params
}

/// As Google's younger CA makes them: no extended key usage.
pub fn ek_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, INSTANCE_ID.to_string());
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.custom_extensions = vec![instance_extension(extension(&extension_fields()))];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2054, 1, 1);
    params
}

/// A CA and its name.
pub struct Ca(pub rcgen::KeyPair, pub CertificateParams);

impl Ca {
    pub fn new(key: rcgen::KeyPair) -> Self {
        Self(key, ca_params("Test EK/AK CA Root"))
    }

    pub fn certificate(&self) -> rustls_pki_types::CertificateDer<'static> {
        self.1.self_signed(&self.0).unwrap().into()
    }

    pub fn issue(&self, params: &CertificateParams, key: &rcgen::KeyPair) -> Vec<u8> {
        let issuer = Issuer::from_params(&self.1, &self.0);
        params.signed_by(key, &issuer).unwrap().der().to_vec()
    }
}
