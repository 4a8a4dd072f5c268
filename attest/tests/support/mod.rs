//! A TPM's evidence made in software, by keys whose private halves the test holds: so that everything can be signed wrongly too.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

pub mod activation;
pub mod maker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attest::challenge::Drawn;
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Attester, Blob, Evidence, HexDigest, TpmAttester, TpmEvidence};
use attest::tpm::ak::{AkPublic, Hierarchy};
use attest::tpm::reference_values::AcceptedValues;
use attest::tpm::wire::{
    Attributes, ClockInfo, Curve, KeyParameters, Public, QuoteAttest, SelectedBank, SymmetricCipher, TpmScheme, TpmSignature,
};
use attest::{
    AppraisalPolicy, Challenge, Claims, EkDigest, EkRoots, Endorsements, HashAlg, PcrSelection, ReferenceValues, Reject, SpkiSha256,
    Subject, Submission, UnixTime,
};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair};

pub const NOW: u64 = 1_800_000_000;
pub const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
pub const NONCE: [u8; 32] = [0x11; 32];
pub const SECRET_SHA256: [u8; 32] = [0x77; 32];

pub const EK_ATTRIBUTES: u32 = 0x0003_00b2;
pub const AK_ATTRIBUTES: u32 = 0x0005_0072;

/// A signing key outside any TPM.
pub enum SoftKey {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Rsa(RsaKeyPair, TpmScheme),
}

impl SoftKey {
    pub fn p256() -> Self {
        Self::P256(EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub fn p384() -> Self {
        Self::P384(EcdsaKeyPair::generate(&signature::ECDSA_P384_SHA384_FIXED_SIGNING).unwrap())
    }

    pub fn rsa(scheme: TpmScheme) -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap(), scheme)
    }

    pub fn scheme(&self) -> TpmScheme {
        match self {
            Self::P256(_) => TpmScheme::Ecdsa(HashAlg::Sha256),
            Self::P384(_) => TpmScheme::Ecdsa(HashAlg::Sha384),
            Self::Rsa(_, scheme) => *scheme,
        }
    }

    pub fn parameters(&self) -> KeyParameters {
        match self {
            Self::P256(pair) => point(Curve::P256, pair.public_key().as_ref()),
            Self::P384(pair) => point(Curve::P384, pair.public_key().as_ref()),
            Self::Rsa(pair, _) => {
                let modulus = pair.public_key().modulus().big_endian_without_leading_zero().to_vec();
                KeyParameters::Rsa {
                    key_bits: 2048,
                    exponent: 0,
                    modulus,
                }
            }
        }
    }

    /// The public area of an AK with this key.
    pub fn ak_area(&self) -> Public {
        Public {
            name_alg: HashAlg::Sha256,
            attributes: Attributes(AK_ATTRIBUTES),
            auth_policy: Vec::new(),
            symmetric: SymmetricCipher::Null,
            scheme: self.scheme(),
            key: self.parameters(),
        }
    }

    /// Signs `message`; returns a `TPMT_SIGNATURE`.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let rng = SystemRandom::new();
        match self {
            Self::P256(pair) | Self::P384(pair) => {
                let signature = pair.sign(&rng, message).unwrap();
                let (r, s) = signature.as_ref().split_at(signature.as_ref().len() / 2);
                TpmSignature::Ecdsa {
                    scheme: self.scheme(),
                    r,
                    s,
                }
                .to_bytes()
            }
            Self::Rsa(pair, scheme) => {
                let padding: &dyn signature::RsaEncoding = match scheme {
                    TpmScheme::RsaSsa(HashAlg::Sha256) => &signature::RSA_PKCS1_SHA256,
                    TpmScheme::RsaSsa(HashAlg::Sha384) => &signature::RSA_PKCS1_SHA384,
                    TpmScheme::RsaSsa(HashAlg::Sha512) => &signature::RSA_PKCS1_SHA512,
                    TpmScheme::RsaPss(HashAlg::Sha256) => &signature::RSA_PSS_SHA256,
                    TpmScheme::RsaPss(HashAlg::Sha384) => &signature::RSA_PSS_SHA384,
                    TpmScheme::RsaPss(HashAlg::Sha512) => &signature::RSA_PSS_SHA512,
                    other => panic!("{other:?} is no RSA scheme"),
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &rng, message, &mut signature).unwrap();
                TpmSignature::Rsa {
                    scheme: *scheme,
                    signature: &signature,
                }
                .to_bytes()
            }
        }
    }
}

fn point(curve: Curve, uncompressed: &[u8]) -> KeyParameters {
    let (x, y) = uncompressed[1..].split_at(curve.coordinate_bytes());
    KeyParameters::Ecc {
        curve,
        x: x.to_vec(),
        y: y.to_vec(),
    }
}

/// The public area of an EK of the TCG's low-range templates.
pub fn ek_area(key: &SoftKey) -> Public {
    Public {
        name_alg: HashAlg::Sha256,
        attributes: Attributes(EK_ATTRIBUTES),
        // PolicySecret(TPM_RH_ENDORSEMENT).
        auth_policy: data_encoding::HEXLOWER
            .decode(b"837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
            .unwrap(),
        symmetric: SymmetricCipher::Aes128Cfb,
        scheme: TpmScheme::Null,
        key: key.parameters(),
    }
}

/// Input of a verification; each part can be changed before [`Case::verify`].
pub struct Case {
    pub ak: SoftKey,
    pub ak_area: Public,
    pub ek_area: Public,
    pub ek_certificate: Option<Vec<u8>>,
    pub ek_certificate_unread: bool,
    pub quoted: QuoteAttest,
    pub signature: Option<Vec<u8>>,
    pub raw_quoted: Option<Vec<u8>>,
    pub secret_sha256: [u8; 32],
    pub pcrs: BTreeMap<u8, HexDigest>,
    pub event_log: Option<Vec<u8>>,
    pub selection: PcrSelection,
    pub pool: String,
    pub purpose: String,
    pub nonce: Vec<u8>,
    pub server_keys: Vec<SpkiSha256>,
    /// Kubelet's key in the request for a challenge.
    pub kubelet_key: Option<HexDigest>,
    pub endorse: bool,
    pub now: u64,
}

impl Case {
    /// Evidence that is accepted: PCRs 0 to 7 of the sha256 bank.
    pub fn new(ak: SoftKey) -> Self {
        Self::with_pcrs(ak, HashAlg::Sha256, (0..8).map(|pcr| (pcr, vec![pcr; 32])).collect())
    }

    pub fn with_pcrs(ak: SoftKey, bank: HashAlg, values: BTreeMap<u8, Vec<u8>>) -> Self {
        let selection = PcrSelection::new(bank, values.keys().copied()).unwrap();
        let pcrs: BTreeMap<u8, HexDigest> = values.iter().map(|(pcr, value)| (*pcr, HexDigest::new(value).unwrap())).collect();
        let quoted = QuoteAttest {
            // Put in when it is signed: what a TPM says of a primary object of the endorsement hierarchy.
            qualified_signer: Vec::new(),
            extra_data: qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY).to_vec(),
            clock: ClockInfo {
                clock_ms: 123_456,
                reset_count: 7,
                restart_count: 1,
                safe: true,
            },
            firmware_version: 0x2019_1023_0016_3636,
            selection: vec![SelectedBank::new(bank, values.keys().copied())],
            pcr_digest: pcr_digest(&ak, &values),
        };
        Self {
            ak_area: ak.ak_area(),
            ek_area: ek_area(&SoftKey::p256()),
            ek_certificate: None,
            ek_certificate_unread: false,
            quoted,
            ak,
            signature: None,
            raw_quoted: None,
            secret_sha256: SECRET_SHA256,
            pcrs,
            event_log: None,
            selection,
            pool: "worker".to_owned(),
            purpose: PURPOSE_CONFIG.to_owned(),
            nonce: NONCE.to_vec(),
            server_keys: vec![SERVER_KEY],
            kubelet_key: None,
            endorse: true,
            now: NOW + 5,
        }
    }

    /// Returns the case with one change.
    pub fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn attester(&self) -> TpmAttester {
        TpmAttester {
            ek_public: Blob(self.ek_area.to_bytes()),
            ek_certificate: self.ek_certificate.clone().map(Blob),
            ek_certificate_unread: self.ek_certificate_unread,
            ek_intermediates: Vec::new(),
            ak_public: Blob(self.ak_area.to_bytes()),
        }
    }

    pub fn endorsements(&self) -> Endorsements {
        let endorsements = Endorsements::new(Arc::new(no_roots()));
        match EkDigest::from_public_area(&self.ek_area.to_bytes()) {
            Ok(digest) if self.endorse => endorsements.allow(digest),
            _ => endorsements,
        }
    }

    pub fn challenge(&self) -> Challenge {
        Challenge {
            id: HexDigest::from([3; 32]),
            issued: NOW,
            expires: NOW + 120,
            purpose: self.purpose.clone(),
            pool: self.pool.clone(),
            name: Some("worker-0".to_owned()),
            nonce: Blob(self.nonce.clone()),
            subject: Subject::from(attest::tpm::TpmSubject {
                attester: self.attester(),
                secret_sha256: HexDigest::from(SECRET_SHA256),
                selection: self.selection.clone(),
                unendorsed: false,
            }),
        }
    }

    /// Returns the structure that the TPM signs.
    pub fn quoted(&self) -> QuoteAttest {
        let mut quoted = self.quoted.clone();
        if let (true, Ok(ak)) = (quoted.qualified_signer.is_empty(), AkPublic::parse(&self.ak_area.to_bytes())) {
            quoted.qualified_signer = ak.qualified_name(Hierarchy::Endorsement).as_bytes().to_vec();
        }
        quoted
    }

    pub fn evidence(&self) -> Evidence {
        let quoted = self.raw_quoted.clone().unwrap_or_else(|| self.quoted().to_bytes());
        let signature = self.signature.clone().unwrap_or_else(|| self.ak.sign(&quoted));
        Evidence::from(TpmEvidence {
            secret_sha256: HexDigest::from(self.secret_sha256),
            quoted: Blob(quoted),
            signature: Blob(signature),
            pcrs: self.pcrs.clone(),
            event_log: self.event_log.clone().map(Blob),
        })
    }

    pub fn verify(&self) -> Result<Claims, Reject> {
        let (challenge, evidence) = (self.challenge(), self.evidence());
        let submission = Submission::new(&challenge, &evidence, &self.server_keys);
        attest::verify(&submission, &self.endorsements(), at(self.now))
    }

    /// Verifies and expects a refusal with this code.
    #[track_caller]
    pub fn refused(&self, code: &str) {
        match self.verify() {
            Ok(_) => panic!("accepted, expected {code}"),
            Err(reject) => assert_eq!(reject.code(), code, "{reject}"),
        }
    }

    pub fn issue(&self) -> Result<attest::NewChallenge, Reject> {
        let request = attest::protocol::ChallengeRequest {
            kubelet_key_sha256: self.kubelet_key.clone(),
            rehearsal: false,
            pool: self.pool.clone(),
            name: None,
            attester: Attester::from(self.attester()),
        };
        Challenge::issue(
            &request,
            &self.endorsements(),
            &accepting(&self.selection),
            "gateway.test",
            &Drawn::draw().unwrap(),
            at(self.now),
            Duration::from_secs(120),
        )
    }
}

/// A policy that has these PCRs quoted, and accepts whatever they hold.
pub fn accepting(selection: &PcrSelection) -> AppraisalPolicy {
    let pcrs = selection.pcrs().iter().map(|index| (*index, AcceptedValues::NotChecked)).collect();
    AppraisalPolicy::for_tpm(ReferenceValues::new(selection.bank(), pcrs).unwrap())
}

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub fn no_roots() -> EkRoots {
    EkRoots::new(Vec::new(), Vec::new()).unwrap()
}

pub fn pcr_digest(ak: &SoftKey, values: &BTreeMap<u8, Vec<u8>>) -> Vec<u8> {
    let hash = match ak.scheme() {
        TpmScheme::RsaSsa(hash) | TpmScheme::RsaPss(hash) | TpmScheme::Ecdsa(hash) => hash,
        TpmScheme::Null => panic!("an AK has a scheme"),
    };
    let parts: Vec<&[u8]> = values.values().map(Vec::as_slice).collect();
    hash.digest(&parts).as_ref().to_vec()
}
