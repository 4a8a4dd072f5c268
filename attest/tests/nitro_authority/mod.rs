//! Stand-in for AWS, with the values that this verifier expects in its documents.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::Duration;

use attest::aws::nitro_tpm::{self, AuthenticDocument, Expected, NitroRoots, NitroTpmError, VerifiedNitroTpm, expected_user_data};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use ciborium::Value;
use cloud_fixtures::aws::nitro_tpm::{ChainLevel, NitroAuthority, NitroDocument};
pub use cloud_fixtures::aws::nitro_tpm::{ES384, cbor, p256, p384, sign};
pub use cloud_fixtures::named;
use rustls_pki_types::CertificateDer;

/// Time of verification: 2027-01-15, 08:00 UTC.
pub const NOW: u64 = 1_800_000_000;
pub const NONCE: [u8; 32] = [0x11; 32];
pub const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const MODULE: &str = "i-0123456789abcdef0-tpm0000000000000000";
pub const REGION: &str = "eu-central-1";

static AUTHORITY: LazyLock<NitroAuthority> = LazyLock::new(NitroAuthority::new);

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// The signer's certificate, of this name.
pub fn leaf(common_name: &str) -> ChainLevel {
    AUTHORITY.leaf(common_name, NOW)
}

/// A document to be signed, and the values expected in it.
pub struct Case {
    pub document: NitroDocument,
    /// Roots that are configured, if not the first level.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    pub nonce: Vec<u8>,
    pub pool: String,
    pub purpose: String,
    pub server_keys: Vec<SpkiSha256>,
    pub now: u64,
}

impl Deref for Case {
    type Target = NitroDocument;

    fn deref(&self) -> &NitroDocument {
        &self.document
    }
}

impl DerefMut for Case {
    fn deref_mut(&mut self) -> &mut NitroDocument {
        &mut self.document
    }
}

impl Case {
    /// A document that is accepted, with the chain of a real one and its 24 PCRs.
    pub fn new() -> Self {
        let user_data = expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY);
        Self {
            document: AUTHORITY.document(INSTANCE, REGION, &NONCE, &user_data, NOW),
            roots: None,
            nonce: NONCE.to_vec(),
            pool: "worker".to_owned(),
            purpose: PURPOSE_CONFIG.to_owned(),
            server_keys: vec![SERVER_KEY],
            now: NOW,
        }
    }

    /// The smallest document that is accepted: the root has issued the leaf.
    pub fn small() -> Self {
        let pcrs = (0..8_u8).map(|pcr| (pcr.into(), Value::Bytes(vec![pcr; 48]))).collect();
        Self::new().but(|case| {
            case.levels.drain(1..4);
            case.cabundle = Some(Vec::new());
            case.set("nitrotpm_pcrs", Value::Map(pcrs));
        })
    }

    pub fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn nitro_roots(&self) -> NitroRoots {
        let roots = self.roots.clone().unwrap_or_else(|| vec![self.certificates().remove(0)]);
        NitroRoots::new(&roots).unwrap()
    }

    pub fn expected(&self) -> Expected<'_> {
        Expected {
            nonce: &self.nonce,
            purpose: &self.purpose,
            pool: &self.pool,
            server_keys: &self.server_keys,
        }
    }

    pub fn verify(&self) -> Result<VerifiedNitroTpm, NitroTpmError> {
        nitro_tpm::verify(&self.document(), &self.nitro_roots(), &self.expected(), at(self.now))
    }

    pub fn authenticate(&self) -> Result<AuthenticDocument, NitroTpmError> {
        nitro_tpm::authenticate(&self.document(), &self.nitro_roots(), at(self.now))
    }
}
