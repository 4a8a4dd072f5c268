//! CMS SignedData by keys that the test holds, in the forms of AWS and of Azure: so that everything can be wrong in it too.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::as_conversions,
    reason = "a test may panic"
)]

use std::sync::LazyLock;

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RsaEncoding, RsaKeyPair};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    RsaKeySize, SerialNumber, date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::FromDer;

pub const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
pub const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
pub const SHA384: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02];
pub const SHA512: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03];
pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
pub const SHA1_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05];
pub const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
pub const SHA256_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
pub const SHA384_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c];
pub const SHA512_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d];
pub const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
pub const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
pub const CONTENT_TYPE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x03];
pub const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x04];
pub const NULL: &[u8] = &[0x05, 0x00];

pub const OCTETS: u8 = 0x04;
pub const OID: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
pub const CONTEXT_0: u8 = 0xa0;
pub const CONTEXT_1: u8 = 0xa1;

/// An element in DER.
pub fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let header = match content.len() {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [header, content].concat()
}

/// A constructed element with an indefinite length.
pub fn indefinite(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    [&[tag, 0x80], parts.concat().as_slice(), &[0, 0]].concat()
}

pub fn algorithm(oid: &[u8], parameters: &[u8]) -> Vec<u8> {
    der(SEQUENCE, &[&der(OID, &[oid]), parameters])
}

pub fn attribute(oid: &[u8], values: &[&[u8]]) -> Vec<u8> {
    der(SEQUENCE, &[&der(OID, &[oid]), &der(SET, values)])
}

/// A key that signs messages and certificates.
pub struct Key {
    pub pair: KeyPair,
    raw: RsaKeyPair,
}

impl Key {
    pub fn new(size: RsaKeySize) -> Self {
        let pair = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        let raw = RsaKeyPair::from_pkcs8(&pair.serialize_der()).unwrap();
        Self { pair, raw }
    }

    pub fn sign(&self, hash: &[u8], message: &[u8]) -> Vec<u8> {
        let padding: &dyn RsaEncoding = match hash {
            hash if hash == SHA384 => &RSA_PKCS1_SHA384,
            hash if hash == SHA512 => &RSA_PKCS1_SHA512,
            _ => &RSA_PKCS1_SHA256,
        };
        let mut signature = vec![0; self.raw.public_modulus_len()];
        self.raw.sign(padding, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    }
}

/// Some keys: a root's, an intermediate's, a signer's, and somebody else's.
pub static ROOT: LazyLock<Key> = LazyLock::new(|| Key::new(RsaKeySize::_2048));
pub static INTERMEDIATE: LazyLock<Key> = LazyLock::new(|| Key::new(RsaKeySize::_2048));
pub static SIGNER: LazyLock<Key> = LazyLock::new(|| Key::new(RsaKeySize::_2048));
pub static OTHER: LazyLock<Key> = LazyLock::new(|| Key::new(RsaKeySize::_2048));

pub fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Test");
    name.push(DnType::CommonName, common_name);
    name
}

pub fn params(common_name: &str, serial: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    params
}

pub fn ca_params(common_name: &str, serial: u64) -> CertificateParams {
    let mut params = params(common_name, serial);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// As AWS's region certificates are: signed by itself, a CA by its extensions.
pub fn region_certificate(key: &Key, serial: u64) -> CertificateDer<'static> {
    ca_params("Amazon Web Services LLC", serial).self_signed(&key.pair).unwrap().into()
}

/// As the certificates of Azure's metadata services are.
pub fn metadata_params(names: &[&str]) -> CertificateParams {
    let mut params = params("metadata.azure.com", 77);
    params.subject_alt_names = names
        .iter()
        .map(|name| rcgen::SanType::DnsName((*name).try_into().unwrap()))
        .collect();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

/// A certificate for `key`, issued by a CA of that name and key.
pub fn issued(params: &CertificateParams, key: &Key, issuer: &CertificateParams, issuer_key: &Key) -> CertificateDer<'static> {
    params
        .signed_by(&key.pair, &Issuer::from_params(issuer, &issuer_key.pair))
        .unwrap()
        .into()
}

/// issuerAndSerialNumber of a certificate.
pub fn issuer_and_serial(certificate: &[u8]) -> Vec<u8> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).unwrap();
    der(SEQUENCE, &[parsed.issuer().as_raw(), &der(0x02, &[parsed.raw_serial()])])
}

/// Everything of a message that can be different.
#[derive(Clone)]
pub struct Message {
    pub ber: bool,
    pub version: u8,
    pub content_info_type: Vec<u8>,
    /// AlgorithmIdentifiers.
    pub digest_algorithms: Vec<Vec<u8>>,
    pub content_type: Vec<u8>,
    pub content: Vec<u8>,
    /// What is in the message, if that is not `content`.
    pub shown: Option<Vec<u8>>,
    pub detached: bool,
    pub certificates: Vec<Vec<u8>>,
    pub crls: Vec<u8>,
    pub signer_version: u8,
    pub signer: Vec<u8>,
    pub hash: Vec<u8>,
    pub digest_algorithm: Vec<u8>,
    pub signature_algorithm: Vec<u8>,
    /// Attributes in the order of the message; signed as DER wants it.
    pub attributes: Option<Vec<Vec<u8>>>,
    /// Instead of what the attributes are.
    pub signed: Option<Vec<u8>>,
    pub unsigned: Vec<u8>,
    /// How often the SignerInfo is there.
    pub extra_signers: Vec<Vec<u8>>,
}

impl Message {
    /// As AWS makes them.
    pub fn aws(content: &[u8], certificate: &[u8]) -> Self {
        let message = Self {
            ber: true,
            version: 1,
            content_info_type: SIGNED_DATA.to_vec(),
            digest_algorithms: vec![algorithm(SHA256, &[])],
            content_type: DATA.to_vec(),
            content: content.to_vec(),
            shown: None,
            detached: false,
            certificates: vec![],
            crls: vec![],
            signer_version: 1,
            signer: issuer_and_serial(certificate),
            hash: SHA256.to_vec(),
            digest_algorithm: algorithm(SHA256, &[]),
            signature_algorithm: algorithm(SHA256_RSA, NULL),
            attributes: None,
            signed: None,
            unsigned: vec![],
            extra_signers: vec![],
        };
        let attributes = message.usual_attributes();
        Self {
            attributes: Some(attributes),
            ..message
        }
    }

    /// As Azure makes them.
    pub fn azure(content: &[u8], certificate: &[u8]) -> Self {
        Self {
            ber: false,
            digest_algorithms: vec![algorithm(SHA256_RSA, NULL)],
            certificates: vec![certificate.to_vec()],
            digest_algorithm: algorithm(SHA256_RSA, NULL),
            signature_algorithm: algorithm(RSA, NULL),
            attributes: None,
            ..Self::aws(content, certificate)
        }
    }

    pub fn but(mut self, alter: impl FnOnce(&mut Self)) -> Self {
        alter(&mut self);
        self
    }

    /// contentType and messageDigest for the content.
    pub fn usual_attributes(&self) -> Vec<Vec<u8>> {
        vec![
            attribute(CONTENT_TYPE, &[&der(OID, &[&self.content_type])]),
            attribute(MESSAGE_DIGEST, &[&der(OCTETS, &[&self.digest()])]),
        ]
    }

    pub fn digest(&self) -> Vec<u8> {
        let algorithm = match self.hash.as_slice() {
            hash if hash == SHA384 => &digest::SHA384,
            hash if hash == SHA512 => &digest::SHA512,
            _ => &digest::SHA256,
        };
        digest::digest(algorithm, &self.content).as_ref().to_vec()
    }

    /// What the key signs.
    pub fn to_be_signed(&self) -> Vec<u8> {
        if let Some(signed) = &self.signed {
            return signed.clone();
        }
        let Some(attributes) = &self.attributes else {
            return self.content.clone();
        };
        let mut sorted = attributes.clone();
        sorted.sort();
        der(SET, &[&sorted.concat()])
    }

    pub fn signer_info(&self, key: &Key) -> Vec<u8> {
        let attributes = self
            .attributes
            .as_ref()
            .map_or_else(Vec::new, |all| der(CONTEXT_0, &[&all.concat()]));
        let signature = key.sign(&self.hash, &self.to_be_signed());
        let unsigned = if self.unsigned.is_empty() {
            vec![]
        } else {
            der(CONTEXT_1, &[&self.unsigned])
        };
        der(
            SEQUENCE,
            &[
                &der(0x02, &[&[self.signer_version]]),
                &self.signer,
                &self.digest_algorithm,
                &attributes,
                &self.signature_algorithm,
                &der(OCTETS, &[&signature]),
                &unsigned,
            ],
        )
    }

    pub fn sign(&self, key: &Key) -> Vec<u8> {
        let wrap = if self.ber { indefinite } else { der };
        let shown = self.shown.as_ref().unwrap_or(&self.content);
        let octets = if self.ber {
            indefinite(0x24, &[&der(OCTETS, &[shown])])
        } else {
            der(OCTETS, &[shown])
        };
        let content = if self.detached { vec![] } else { wrap(CONTEXT_0, &[&octets]) };
        let certificates = if self.certificates.is_empty() {
            vec![]
        } else {
            der(CONTEXT_0, &[&self.certificates.concat()])
        };
        let signers = [vec![self.signer_info(key)], self.extra_signers.clone()].concat();
        let signed_data = wrap(
            SEQUENCE,
            &[
                &der(0x02, &[&[self.version]]),
                &der(SET, &[&self.digest_algorithms.concat()]),
                &wrap(SEQUENCE, &[&der(OID, &[&self.content_type]), &content]),
                &certificates,
                &self.crls,
                &der(SET, &[&signers.concat()]),
            ],
        );
        wrap(
            SEQUENCE,
            &[&der(OID, &[&self.content_info_type]), &wrap(CONTEXT_0, &[&signed_data])],
        )
    }
}

/// Base64 in lines of 64, as metadata services give it.
pub fn in_lines(message: &[u8]) -> Vec<u8> {
    let text = data_encoding::BASE64.encode(message);
    let lines: Vec<&[u8]> = text.as_bytes().chunks(64).collect();
    lines.join(&b'\n')
}
