//! Google's stand-in, with this verifier's audience and keys.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::LazyLock;
use std::time::Duration;

use attest::gcp::{Audience, GoogleKeys};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use aws_lc_rs::rsa::KeySize;
pub use cloud_fixtures::der::{der, flag as der_flag, number as der_number, text as der_text};
use cloud_fixtures::google::GoogleInstance;
pub use cloud_fixtures::google::identity_token::{JwtSigner, KID, compact};
pub use cloud_fixtures::google::instance::{INSTANCE_ID, INSTANCE_NAME, PROJECT_ID, PROJECT_NUMBER, ZONE};
use cloud_fixtures::google::vtpm;
pub use cloud_fixtures::google::vtpm::{VtpmCa, ca_params, extension, instance_extension};
use rcgen::CertificateParams;
use serde_json::{Value, json};

/// Time of verification: 2027-01-15, 08:00 UTC.
pub const NOW: u64 = 1_800_000_000;
pub const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
pub const NONCE: [u8; 32] = [0x11; 32];
pub const GATEWAY: &str = "gateway.example.com";

pub static GOOGLE: LazyLock<JwtSigner> = LazyLock::new(|| JwtSigner::new(KeySize::Rsa2048));
/// A service account whose key its owner holds.
pub static ACCOUNT: LazyLock<JwtSigner> = LazyLock::new(|| JwtSigner::new(KeySize::Rsa2048));

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub fn audience() -> Audience {
    Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &NONCE, &SERVER_KEY)
}

pub fn keys(jwks: &[Value]) -> Result<GoogleKeys, attest::gcp::KeysError> {
    GoogleKeys::from_jwks(json!({ "keys": jwks }).to_string().as_bytes())
}

/// A set with this key as Google's.
pub fn keys_of(signer: &JwtSigner) -> GoogleKeys {
    GoogleKeys::from_jwks(signer.jwks().to_string().as_bytes()).unwrap()
}

fn instance() -> GoogleInstance {
    GoogleInstance::example(NOW - 600)
}

/// Returns the metadata server's answer for `format=full&licenses=TRUE`.
pub fn claims() -> Value {
    instance().claims(audience().as_str(), NOW - 5)
}

pub fn extension_fields() -> Vec<Vec<u8>> {
    vtpm::extension_fields(&instance())
}

pub fn ek_params() -> CertificateParams {
    vtpm::ek_params(&instance())
}
