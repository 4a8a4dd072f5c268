//! The certificate whose key is to verify a signature: chosen by the caller.

use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaParameters, UnparsedPublicKey};
use der::asn1::AnyRef;
use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{KeyUsage, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Name;

use super::{CERTIFICATE_LIMIT_BYTES, Pkcs7Error};
use crate::nonce::sha256;

/// Longest text that is taken over from a certificate, in characters.
const TEXT_LIMIT_CHARS: usize = 256;

/// Bits of an RSA key that is accepted.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A certificate, read, with an RSA key of an accepted size. Says nothing about who issued it or whether it is valid.
#[derive(Debug, Clone)]
pub struct SigningCertificate {
    der: CertificateDer<'static>,
    sha256: [u8; 32],
    /// RSAPublicKey (RFC 8017, A.1.1).
    key: Vec<u8>,
    /// The same key, prepared for SHA-256, which both clouds use: for a certificate that verifies many messages.
    key_for_sha256: ParsedPublicKey,
    /// Issuer, serial number and subject key identifier as they are in the certificate.
    issuer: Vec<u8>,
    serial: Vec<u8>,
    key_identifier: Option<Vec<u8>>,
    key_usage: Option<KeyUsage>,
    server_auth: bool,
    not_before: u64,
    not_after: u64,
}

impl PartialEq for SigningCertificate {
    /// Everything else is read from the bytes.
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for SigningCertificate {}

impl SigningCertificate {
    /// Parses a certificate in DER.
    ///
    /// # Errors
    /// [`Pkcs7Error::CertificateTooLarge`], [`Pkcs7Error::Certificate`], [`Pkcs7Error::Key`].
    pub fn parse(der: &[u8]) -> Result<Self, Pkcs7Error> {
        let malformed = |problem: String| Pkcs7Error::Certificate { problem };
        if der.len() > CERTIFICATE_LIMIT_BYTES {
            return Err(Pkcs7Error::CertificateTooLarge { bytes: der.len() });
        }
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes follow it", rest.len())));
        }
        let key = |found: String| Err(Pkcs7Error::Key { found });
        match parsed.public_key().parsed() {
            Ok(PublicKey::RSA(rsa)) if RSA_BITS.contains(&rsa.key_size()) => {}
            Ok(PublicKey::RSA(rsa)) => return key(format!("RSA-{}", rsa.key_size())),
            _ => return key(format!("of algorithm {}", parsed.public_key().algorithm.algorithm)),
        }
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let (mut key_identifier, mut key_usage, mut server_auth) = (None, None, false);
        for extension in parsed.iter_extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(identifier) => key_identifier = Some(identifier.0.to_vec()),
                ParsedExtension::KeyUsage(usage) => key_usage = Some(*usage),
                ParsedExtension::ExtendedKeyUsage(usage) => server_auth = usage.server_auth,
                _ => {}
            }
        }
        let public_key = parsed.public_key().subject_public_key.data.to_vec();
        let key_for_sha256 =
            ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &public_key).map_err(|error| malformed(error.to_string()))?;
        Ok(Self {
            der: CertificateDer::from(der.to_vec()),
            sha256: sha256(&[der]),
            key: public_key,
            key_for_sha256,
            issuer: parsed.issuer().as_raw().to_vec(),
            serial: parsed.raw_serial().to_vec(),
            key_identifier,
            key_usage,
            server_auth,
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
        })
    }

    #[must_use]
    pub const fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Returns the SHA-256 of the certificate.
    #[must_use]
    pub const fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// Issuer and serial number, fit for a log.
    #[must_use]
    pub fn name(&self) -> String {
        issuer_and_serial(&self.issuer, &self.serial)
    }

    /// The key usage, if it states one.
    pub(crate) const fn key_usage(&self) -> Option<KeyUsage> {
        self.key_usage
    }

    /// Returns whether the extended key usage includes TLS servers.
    pub(crate) const fn is_for_servers(&self) -> bool {
        self.server_auth
    }

    /// Its first second, since 1970.
    #[must_use]
    pub const fn not_before(&self) -> u64 {
        self.not_before
    }

    /// Its last second, since 1970.
    #[must_use]
    pub const fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Returns whether this is the certificate that a signer names.
    pub(super) fn is_of(&self, signer: &SignerId) -> bool {
        match signer {
            SignerId::IssuerAndSerial { issuer, serial } => *serial == self.serial && *issuer == self.issuer,
            SignerId::KeyIdentifier(identifier) => self.key_identifier.as_ref() == Some(identifier),
        }
    }

    /// Verifies that `signature` over `signed` was made with the certificate's key.
    pub(super) fn verify(&self, scheme: RsaScheme, signed: &[u8], signature: &[u8]) -> Result<(), Pkcs7Error> {
        let verified = match scheme {
            RsaScheme::Sha256 => self.key_for_sha256.verify_sig(signed, signature),
            RsaScheme::Other(parameters) => UnparsedPublicKey::new(parameters, &self.key).verify(signed, signature),
        };
        verified.map_err(|_unspecified| Pkcs7Error::Signature { certificate: self.name() })
    }
}

/// RSASSA-PKCS1-v1_5 with a digest algorithm.
#[derive(Debug, Clone, Copy)]
pub(super) enum RsaScheme {
    /// RSASSA-PKCS1-v1_5 with SHA-256, for [`SigningCertificate::key_for_sha256`].
    Sha256,
    Other(&'static RsaParameters),
}

/// Signer that a message names, by bytes that certificates have too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SignerId {
    /// Name in DER, and the content of an INTEGER.
    IssuerAndSerial { issuer: Vec<u8>, serial: Vec<u8> },
    /// Content of the certificate's extension.
    KeyIdentifier(Vec<u8>),
}

impl SignerId {
    /// Reads a SignerIdentifier (RFC 5652, 5.3).
    pub(super) fn read(identifier: &[u8]) -> der::Result<Self> {
        let identifier = AnyRef::from_der(identifier)?;
        let (constructed, number) = (false, TagNumber::N0);
        if identifier.tag() == (Tag::ContextSpecific { constructed, number }) {
            return Ok(Self::KeyIdentifier(identifier.value().to_vec()));
        }
        identifier.tag().assert_eq(Tag::Sequence)?;
        let mut fields = SliceReader::new(identifier.value())?;
        let issuer = fields.tlv_bytes()?.to_vec();
        let serial = AnyRef::decode(&mut fields)?;
        serial.tag().assert_eq(Tag::Integer)?;
        let serial = serial.value().to_vec();
        fields.finish(Self::IssuerAndSerial { issuer, serial })
    }

    /// Fit for a log.
    pub(super) fn name(&self) -> String {
        match self {
            Self::IssuerAndSerial { issuer, serial } => issuer_and_serial(issuer, serial),
            Self::KeyIdentifier(identifier) => format!("subject key identifier {}", hex(identifier)),
        }
    }
}

/// Formats a signer for messages, from a name in DER.
fn issuer_and_serial(issuer: &[u8], serial: &[u8]) -> String {
    let issuer = X509Name::from_der(issuer).map_or_else(|_| "(unreadable)".to_owned(), |(_, issuer)| issuer.to_string());
    let issuer: String = issuer.chars().take(TEXT_LIMIT_CHARS).map(printable).collect();
    format!("issuer {issuer:?}, serial number {}", hex(serial))
}

/// The beginning of `bytes`, for messages.
fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes.get(..bytes.len().min(TEXT_LIMIT_CHARS)).unwrap_or_default())
}

fn printable(char: char) -> char {
    if char.is_control() { '\u{fffd}' } else { char }
}
