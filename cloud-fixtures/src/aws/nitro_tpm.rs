//! NitroTPM attestation documents, and the authority that signs them.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair};
use ciborium::Value;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;

use crate::clock::date;
use crate::named;

/// The protected header `{1: -35}`.
pub const ES384: &[u8] = &[0xa1, 0x01, 0x38, 0x22];

const HOUR_SECONDS: u64 = 3600;

/// Generates a key as AWS's are.
#[must_use]
pub fn p384() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap()
}

/// Generates a key on a curve that AWS does not use here.
#[must_use]
pub fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

/// A certificate to be issued, and the key that it is about.
#[derive(Clone)]
pub struct ChainLevel {
    /// Everything but the key.
    pub params: CertificateParams,
    pub key: Arc<KeyPair>,
}

impl ChainLevel {
    fn root(key: &Arc<KeyPair>) -> Self {
        let mut root = Self::ca("aws.nitro-enclaves", None, key, 64 * HOUR_SECONDS);
        root.params.not_before = date_time_ymd(2019, 10, 28);
        root.params.not_after = date_time_ymd(2049, 10, 28);
        root
    }

    /// Returns a CA that is valid from 32 hours before `now` to sixteen hours after it.
    fn ca(common_name: &str, path_length: Option<u8>, key: &Arc<KeyPair>, now: u64) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::Ca(path_length.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = date(now - 32 * HOUR_SECONDS);
        params.not_after = date(now + 16 * HOUR_SECONDS);
        Self { params, key: key.clone() }
    }
}

/// AWS's CAs for documents: a root, a region's, a zone's, an instance's, and the key that signs the documents.
pub struct NitroAuthority {
    keys: [Arc<KeyPair>; 5],
    root: CertificateDer<'static>,
}

impl Default for NitroAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl NitroAuthority {
    /// Creates an authority with new keys.
    #[must_use]
    pub fn new() -> Self {
        let keys: [Arc<KeyPair>; 5] = std::array::from_fn(|_| Arc::new(p384()));
        let root = ChainLevel::root(&keys[0]);
        Self {
            root: root.params.self_signed(&*root.key).unwrap().into(),
            keys,
        }
    }

    /// Returns the root's certificate, valid from 2019 to 2049. Documents contain the same root with another signature of its own.
    #[must_use]
    pub fn root(&self) -> CertificateDer<'static> {
        self.root.clone()
    }

    /// Returns the root's certificate, for a gateway's directory of roots.
    #[must_use]
    pub fn root_pem(&self) -> String {
        crate::pem(&self.root)
    }

    /// Returns a signer's certificate like AWS's: three hours, no `subjectAltName`, no extended key usage. `now` is in seconds since 1970.
    #[must_use]
    pub fn leaf(&self, common_name: &str, now: u64) -> ChainLevel {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::ContentCommitment];
        params.not_before = date(now - HOUR_SECONDS);
        params.not_after = date(now + 2 * HOUR_SECONDS);
        ChainLevel {
            params,
            key: self.keys[4].clone(),
        }
    }

    /// Returns a document with the chain of a real one and 24 PCRs, each filled with its number; made 2.5 s before `now` (seconds since
    /// 1970).
    #[must_use]
    pub fn document(&self, instance: &str, region: &str, nonce: &[u8], user_data: &[u8], now: u64) -> NitroDocument {
        let module = format!("{instance}-tpm0000000000000000");
        let pcrs = (0..24_u8).map(|pcr| (pcr.into(), Value::Bytes(vec![pcr; 48]))).collect();
        let domain = format!("{region}.aws.nitro-enclaves");
        NitroDocument {
            levels: vec![
                ChainLevel::root(&self.keys[0]),
                ChainLevel::ca(&format!("0123.{domain}"), Some(2), &self.keys[1], now),
                ChainLevel::ca(&format!("4567.zonal.{domain}"), Some(1), &self.keys[2], now),
                ChainLevel::ca(&format!("{instance}.{domain}"), Some(0), &self.keys[3], now),
                self.leaf(&format!("{module}.{region}.aws"), now),
            ],
            certificate: None,
            cabundle: None,
            fields: vec![
                ("module_id".into(), module.into()),
                ("digest".into(), "SHA384".into()),
                ("timestamp".into(), (now * 1000 - 2500).into()),
                ("nitrotpm_pcrs".into(), Value::Map(pcrs)),
                ("public_key".into(), Value::Null),
                ("user_data".into(), Value::Bytes(user_data.to_vec())),
                ("nonce".into(), Value::Bytes(nonce.to_vec())),
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
        }
    }
}

/// A document to be signed. Everything in it can be changed before that.
pub struct NitroDocument {
    /// Certificates from the root to the leaf. Each is issued by the one before, the root by itself.
    pub levels: Vec<ChainLevel>,
    /// Value of the field `certificate`, if it is not the last level.
    pub certificate: Option<Vec<u8>>,
    /// Value of the field `cabundle`, if it is not the other levels.
    pub cabundle: Option<Vec<Vec<u8>>>,
    /// Fields before `certificate` and `cabundle`.
    pub fields: Vec<(Value, Value)>,
    /// Fields after `certificate` and `cabundle`.
    pub more_fields: Vec<(Value, Value)>,
    /// Set if the payload is a map of indefinite length, like AWS's.
    pub indefinite: bool,
    /// CBOR tag of the `COSE_Sign1`.
    pub tag: Option<u64>,
    pub protected: Vec<u8>,
    pub unprotected: Value,
    /// Payload that replaces the signed one.
    pub swapped_payload: Option<Vec<u8>>,
    /// Signed bytes after the payload.
    pub appended_to_payload: Vec<u8>,
    /// The signature, if it is not the right one.
    pub signature: Option<Vec<u8>>,
    /// A wrong signature, instead of the right one.
    pub signing_key: Option<KeyPair>,
    /// Bytes after the document.
    pub appended: Vec<u8>,
}

impl NitroDocument {
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

    /// Returns the chain, from the root to the leaf.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let mut issued = vec![self.levels[0].params.self_signed(&*self.levels[0].key).unwrap().into()];
        for pair in self.levels.windows(2) {
            let issuer = Issuer::from_params(&pair[0].params, &*pair[0].key);
            issued.push(pair[1].params.signed_by(&*pair[1].key, &issuer).unwrap().into());
        }
        issued
    }

    #[must_use]
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

    /// Returns the signed document, in CBOR.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        let payload = self.payload();
        let key = self.signing_key.as_ref().unwrap_or(&self.levels.last().unwrap().key);
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
}

#[must_use]
pub fn cbor(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    bytes
}

/// Returns an ES384 signature over the `Sig_structure` of a `COSE_Sign1`.
#[must_use]
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
