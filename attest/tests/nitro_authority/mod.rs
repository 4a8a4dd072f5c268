//! A signing authority like AWS's, with keys that the test holds, and documents of it: so that everything can be signed wrongly too.

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

use attest::aws::nitro_tpm::{self, AuthenticDocument, Expected, NitroRoots, NitroTpmError, Shape, VerifiedNitroTpm, expected_user_data};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair};
use ciborium::Value;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;

/// 2027-01-15, 08:00.
pub const NOW: u64 = 1_800_000_000;
pub const NONCE: [u8; 32] = [0x11; 32];
pub const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const MODULE: &str = "i-0123456789abcdef0-tpm0000000000000000";
pub const REGION: &str = "eu-central-1";
/// The protected header `{1: -35}`.
pub const ES384: &[u8] = &[0xa1, 0x01, 0x38, 0x22];

static KEYS: LazyLock<[KeyPair; 6]> = LazyLock::new(|| std::array::from_fn(|_| p384()));

pub fn p384() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap()
}

pub fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Test");
    name.push(DnType::CommonName, common_name);
    name
}

/// A certificate to be issued, and the key that it is about.
pub struct Level {
    pub params: CertificateParams,
    pub key: &'static KeyPair,
}

impl Level {
    fn ca(common_name: &str, path_length: Option<u8>, key: usize) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::Ca(path_length.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = date_time_ymd(2027, 1, 14);
        params.not_after = date_time_ymd(2027, 1, 16);
        Self { params, key: &KEYS[key] }
    }

    /// As AWS's: three hours, no subjectAltName, no extended key usage.
    pub fn leaf(common_name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::ContentCommitment];
        params.not_before = date_time_ymd(2027, 1, 15) + Duration::from_secs(7 * 3600);
        params.not_after = date_time_ymd(2027, 1, 15) + Duration::from_secs(10 * 3600);
        Self { params, key: &KEYS[4] }
    }
}

/// A document to be signed. Everything in it can be changed before.
pub struct Case {
    /// From the root to the leaf. Each is issued by the one before, the root by itself.
    pub levels: Vec<Level>,
    /// Roots that are configured, if not the first level.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    pub certificate: Option<Vec<u8>>,
    pub cabundle: Option<Vec<Vec<u8>>>,
    /// Fields beside certificate and cabundle.
    pub fields: Vec<(Value, Value)>,
    /// Fields after certificate and cabundle.
    pub more_fields: Vec<(Value, Value)>,
    pub indefinite: bool,
    pub tag: Option<u64>,
    pub protected: Vec<u8>,
    pub unprotected: Value,
    /// What the payload becomes after it was signed.
    pub swapped_payload: Option<Vec<u8>>,
    pub appended_to_payload: Vec<u8>,
    pub signature: Option<Vec<u8>>,
    pub signing_key: Option<KeyPair>,
    pub appended: Vec<u8>,
    pub shape: Shape,
    pub nonce: Vec<u8>,
    pub pool: String,
    pub purpose: String,
    pub server_keys: Vec<SpkiSha256>,
    pub now: u64,
}

impl Case {
    /// A document that is accepted, with the chain of a real one and its 24 PCRs.
    pub fn new() -> Self {
        let user_data = expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY);
        let pcrs = (0..24_u8).map(|pcr| (pcr.into(), Value::Bytes(vec![pcr; 48]))).collect();
        let mut levels = vec![
            Level::ca("aws.nitro-enclaves", None, 0),
            Level::ca("0123.eu-central-1.aws.nitro-enclaves", Some(2), 1),
            Level::ca("4567.zonal.eu-central-1.aws.nitro-enclaves", Some(1), 2),
            Level::ca("i-0123456789abcdef0.eu-central-1.aws.nitro-enclaves", Some(0), 3),
            Level::leaf(&format!("{MODULE}.{REGION}.aws")),
        ];
        levels[0].params.not_before = date_time_ymd(2019, 10, 28);
        levels[0].params.not_after = date_time_ymd(2049, 10, 28);
        Self {
            levels,
            roots: None,
            certificate: None,
            cabundle: None,
            fields: vec![
                ("module_id".into(), MODULE.into()),
                ("digest".into(), "SHA384".into()),
                ("timestamp".into(), (NOW * 1000 - 2500).into()),
                ("nitrotpm_pcrs".into(), Value::Map(pcrs)),
                ("public_key".into(), Value::Null),
                ("user_data".into(), Value::Bytes(user_data.to_vec())),
                ("nonce".into(), Value::Bytes(NONCE.to_vec())),
            ],
            more_fields: Vec::new(),
            indefinite: true,
            tag: None,
            protected: ES384.to_vec(),
            unprotected: Value::Map(Vec::new()),
            swapped_payload: None,
            appended_to_payload: Vec::new(),
            signature: None,
            signing_key: None,
            appended: Vec::new(),
            shape: Shape::NitroTpm,
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

    /// Gives a field another value, or removes it.
    pub fn set(&mut self, field: &str, value: impl Into<Option<Value>>) {
        let position = self.fields.iter().position(|(name, _)| name.as_text() == Some(field)).unwrap();
        match value.into() {
            Some(value) => self.fields[position].1 = value,
            None => drop(self.fields.remove(position)),
        }
    }

    /// Changes one PCR, or removes it.
    pub fn set_pcr(&mut self, pcr: u8, value: Option<Vec<u8>>) {
        let (_, pcrs) = self
            .fields
            .iter_mut()
            .find(|(name, _)| name.as_text() == Some("nitrotpm_pcrs"))
            .unwrap();
        let pcrs = pcrs.as_map_mut().unwrap();
        pcrs.retain(|(index, _)| *index != Value::from(pcr));
        pcrs.extend(value.map(|value| (pcr.into(), Value::Bytes(value))));
    }

    /// The chain, from the root to the leaf.
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let mut issued = vec![self.levels[0].params.self_signed(self.levels[0].key).unwrap().into()];
        for pair in self.levels.windows(2) {
            let issuer = Issuer::from_params(&pair[0].params, pair[0].key);
            issued.push(pair[1].params.signed_by(pair[1].key, &issuer).unwrap().into());
        }
        issued
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut chain: Vec<Vec<u8>> = self.certificates().iter().map(|certificate| certificate.to_vec()).collect();
        let leaf = chain.pop().unwrap();
        let certificate = self.certificate.clone().unwrap_or(leaf);
        let cabundle = self.cabundle.clone().unwrap_or(chain);
        let mut fields = self.fields.clone();
        fields.push(("certificate".into(), Value::Bytes(certificate)));
        fields.push(("cabundle".into(), Value::Array(cabundle.into_iter().map(Value::Bytes).collect())));
        fields.extend(self.more_fields.clone());
        let mut payload = if self.indefinite {
            let mut payload = vec![0xbf];
            for (name, value) in fields {
                payload.extend(cbor(&name));
                payload.extend(cbor(&value));
            }
            payload.push(0xff);
            payload
        } else {
            cbor(&Value::Map(fields))
        };
        payload.extend(&self.appended_to_payload);
        payload
    }

    pub fn document(&self) -> Vec<u8> {
        let payload = self.payload();
        let key = self.signing_key.as_ref().unwrap_or(self.levels.last().unwrap().key);
        let signature = self.signature.clone().unwrap_or_else(|| sign(key, &self.protected, &payload));
        let sign1 = Value::Array(vec![
            Value::Bytes(self.protected.clone()),
            self.unprotected.clone(),
            Value::Bytes(self.swapped_payload.clone().unwrap_or(payload)),
            Value::Bytes(signature),
        ]);
        let sign1 = match self.tag {
            None => sign1,
            Some(tag) => Value::Tag(tag, Box::new(sign1)),
        };
        [cbor(&sign1), self.appended.clone()].concat()
    }

    pub fn nitro_roots(&self) -> NitroRoots {
        let roots = self.roots.clone().unwrap_or_else(|| vec![self.certificates().remove(0)]);
        NitroRoots::new(&roots).unwrap()
    }

    pub fn expected(&self) -> Expected<'_> {
        Expected {
            shape: self.shape,
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
        nitro_tpm::authenticate(&self.document(), &self.nitro_roots(), self.shape, at(self.now))
    }
}

pub fn cbor(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    bytes
}

/// An ES384 signature over the Sig_structure of a COSE_Sign1.
pub fn sign(key: &KeyPair, protected: &[u8], payload: &[u8]) -> Vec<u8> {
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
    let signed = cbor(&Value::Array(vec![
        "Signature1".into(),
        bytes(protected),
        bytes(&[]),
        bytes(payload),
    ]));
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &key.serialize_der()).unwrap();
    pair.sign(&SystemRandom::new(), &signed).unwrap().as_ref().to_vec()
}
