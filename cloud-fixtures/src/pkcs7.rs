//! CMS SignedData with keys that the test holds, in the forms of AWS and of Azure. Every part of it can be made wrong.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RsaEncoding, RsaKeyPair};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, RsaKeySize, SerialNumber, date_time_ymd};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::FromDer;

use crate::der::{CONTEXT_0, CONTEXT_1, OCTETS, OID, SEQUENCE, SET, der, indefinite};
use crate::named;

/// Encoded OID of `id-sha1`.
pub const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
/// Encoded OID of `id-sha256`.
pub const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
/// Encoded OID of `id-sha384`.
pub const SHA384: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02];
/// Encoded OID of `id-sha512`.
pub const SHA512: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03];
/// Encoded OID of `rsaEncryption`.
pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// Encoded OID of `sha1WithRSAEncryption`.
pub const SHA1_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05];
/// Encoded OID of `id-RSASSA-PSS`.
pub const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
/// Encoded OID of `sha256WithRSAEncryption`.
pub const SHA256_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
/// Encoded OID of `sha384WithRSAEncryption`.
pub const SHA384_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c];
/// Encoded OID of `sha512WithRSAEncryption`.
pub const SHA512_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d];
/// Encoded OID of `id-data`.
pub const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
/// Encoded OID of `id-signedData`.
pub const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
/// Encoded OID of `id-contentType`.
pub const CONTENT_TYPE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x03];
/// Encoded OID of `id-messageDigest`.
pub const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x04];
/// Encoded element of type NULL.
pub const NULL: &[u8] = &[0x05, 0x00];

/// Returns an AlgorithmIdentifier; `parameters` is a whole element, or empty.
#[must_use]
pub fn algorithm(oid: &[u8], parameters: &[u8]) -> Vec<u8> {
    der(SEQUENCE, &[&der(OID, &[oid]), parameters])
}

#[must_use]
pub fn attribute(oid: &[u8], values: &[&[u8]]) -> Vec<u8> {
    der(SEQUENCE, &[&der(OID, &[oid]), &der(SET, values)])
}

/// A key that signs messages and certificates.
pub struct Pkcs7Key {
    /// Key pair for signing certificates.
    pub pair: KeyPair,
    raw: RsaKeyPair,
}

impl Pkcs7Key {
    /// Generates a key of this size.
    #[must_use]
    pub fn new(size: RsaKeySize) -> Self {
        let pair = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        let raw = RsaKeyPair::from_pkcs8(&pair.serialize_der()).unwrap();
        Self { pair, raw }
    }

    /// Returns its modulus, big-endian.
    #[must_use]
    pub fn modulus(&self) -> Vec<u8> {
        self.raw.public_key().modulus().big_endian_without_leading_zero().to_vec()
    }

    /// Returns a signature, RSASSA-PKCS1-v1_5, with the hash of this OID; SHA-256 for hashes that are not used for signatures.
    #[must_use]
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

pub static ROOT: LazyLock<Pkcs7Key> = LazyLock::new(|| Pkcs7Key::new(RsaKeySize::_2048));
pub static INTERMEDIATE: LazyLock<Pkcs7Key> = LazyLock::new(|| Pkcs7Key::new(RsaKeySize::_2048));
pub static SIGNER: LazyLock<Pkcs7Key> = LazyLock::new(|| Pkcs7Key::new(RsaKeySize::_2048));
/// A key of another signer.
pub static OTHER: LazyLock<Pkcs7Key> = LazyLock::new(|| Pkcs7Key::new(RsaKeySize::_2048));

/// Returns parameters of a certificate, valid 2024 to 2040, that is not a CA's.
#[must_use]
pub fn params(common_name: &str, serial: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    params
}

/// Returns parameters of a CA, valid 2024 to 2040.
#[must_use]
pub fn ca_params(common_name: &str, serial: u64) -> CertificateParams {
    let mut params = params(common_name, serial);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Returns a certificate for `key`, issued by a CA of that name and key.
#[must_use]
pub fn issued(params: &CertificateParams, key: &Pkcs7Key, issuer: &CertificateParams, issuer_key: &Pkcs7Key) -> CertificateDer<'static> {
    params
        .signed_by(&key.pair, &Issuer::from_params(issuer, &issuer_key.pair))
        .unwrap()
        .into()
}

/// Returns the `issuerAndSerialNumber` of a certificate.
#[must_use]
pub fn issuer_and_serial(certificate: &[u8]) -> Vec<u8> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).unwrap();
    der(SEQUENCE, &[parsed.issuer().as_raw(), &der(0x02, &[parsed.raw_serial()])])
}

/// A message in which every part can be changed.
#[derive(Clone)]
pub struct TestMessage {
    /// Set for indefinite lengths and segments, like AWS's.
    pub ber: bool,
    /// Version of the SignedData.
    pub version: u8,
    /// OID of the ContentInfo.
    pub content_info_type: Vec<u8>,
    /// AlgorithmIdentifiers of the digests.
    pub digest_algorithms: Vec<Vec<u8>>,
    /// OID of the content.
    pub content_type: Vec<u8>,
    /// Content that is signed.
    pub content: Vec<u8>,
    /// Content in the message, if that is not `content`.
    pub shown: Option<Vec<u8>>,
    /// Set if the content is left out of the message.
    pub detached: bool,
    /// Certificates in the message.
    pub certificates: Vec<Vec<u8>>,
    /// Revocation lists, as a whole element, or empty.
    pub crls: Vec<u8>,
    /// Version of the SignerInfo.
    pub signer_version: u8,
    /// The signer's `issuerAndSerialNumber`, or a replacement.
    pub signer: Vec<u8>,
    /// OID of the hash in the signature.
    pub hash: Vec<u8>,
    /// The SignerInfo's AlgorithmIdentifier of the digest.
    pub digest_algorithm: Vec<u8>,
    /// The SignerInfo's AlgorithmIdentifier of the signature.
    pub signature_algorithm: Vec<u8>,
    /// Attributes in the order of the message; signed as DER wants it.
    pub attributes: Option<Vec<Vec<u8>>>,
    /// Content to sign instead of the attributes.
    pub signed: Option<Vec<u8>>,
    /// Unsigned attributes of the SignerInfo.
    pub unsigned: Vec<u8>,
    /// Further SignerInfos in the message.
    pub extra_signers: Vec<Vec<u8>>,
}

impl TestMessage {
    /// Creates a message like AWS's.
    #[must_use]
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

    /// Creates a message like Azure's.
    #[must_use]
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

    /// Returns the message with a change.
    #[must_use]
    pub fn but(mut self, alter: impl FnOnce(&mut Self)) -> Self {
        alter(&mut self);
        self
    }

    /// Returns the attributes `contentType` and `messageDigest` for the content.
    #[must_use]
    pub fn usual_attributes(&self) -> Vec<Vec<u8>> {
        vec![
            attribute(CONTENT_TYPE, &[&der(OID, &[&self.content_type])]),
            attribute(MESSAGE_DIGEST, &[&der(OCTETS, &[&self.digest()])]),
        ]
    }

    /// Returns the hash of the content.
    #[must_use]
    pub fn digest(&self) -> Vec<u8> {
        let algorithm = match self.hash.as_slice() {
            hash if hash == SHA384 => &digest::SHA384,
            hash if hash == SHA512 => &digest::SHA512,
            _ => &digest::SHA256,
        };
        digest::digest(algorithm, &self.content).as_ref().to_vec()
    }

    /// Returns the bytes that the key signs.
    #[must_use]
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

    /// Returns the SignerInfo, signed by this key.
    #[must_use]
    pub fn signer_info(&self, key: &Pkcs7Key) -> Vec<u8> {
        self.signer_info_with(&key.sign(&self.hash, &self.to_be_signed()))
    }

    fn signer_info_with(&self, signature: &[u8]) -> Vec<u8> {
        let attributes = self
            .attributes
            .as_ref()
            .map_or_else(Vec::new, |all| der(CONTEXT_0, &[&all.concat()]));
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
                &der(OCTETS, &[signature]),
                &unsigned,
            ],
        )
    }

    /// Returns the message, signed by this key.
    #[must_use]
    pub fn sign(&self, key: &Pkcs7Key) -> Vec<u8> {
        self.sign_with(&key.sign(&self.hash, &self.to_be_signed()))
    }

    /// Returns the message with this signature, right or wrong.
    #[must_use]
    pub fn sign_with(&self, signature: &[u8]) -> Vec<u8> {
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
        let signers = [vec![self.signer_info_with(signature)], self.extra_signers.clone()].concat();
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

/// Returns Base64 in lines of 64, like metadata services.
#[must_use]
pub fn in_lines(message: &[u8]) -> Vec<u8> {
    let text = data_encoding::BASE64.encode(message);
    let lines: Vec<&[u8]> = text.as_bytes().chunks(64).collect();
    lines.join(&b'\n')
}
