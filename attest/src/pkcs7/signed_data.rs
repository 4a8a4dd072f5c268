//! SignedData: its form, and its one signature.

use aws_lc_rs::digest::{self, Algorithm};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512};
use der::asn1::ObjectIdentifier;
use der::{Tag, Tagged};
use rustls_pki_types::CertificateDer;

use super::certificate::{RsaScheme, SignerId};
use super::message::{AlgorithmIdentifier, DATA, Message, SignedAttributes, SignerInfo, check_type, content_info, names_of, structure};
use super::{CERTIFICATES_LIMIT, Pkcs7Error, SigningCertificate, ber};

/// id-signedData (RFC 5652, 5.1).
const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
/// rsaEncryption: RSASSA-PKCS1-v1_5 with whatever the digest algorithm is (RFC 3370, 3.2).
const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// A digest algorithm that is accepted, with its signature algorithm.
#[derive(Debug)]
struct Hash {
    name: &'static str,
    oid: ObjectIdentifier,
    /// With RSA encryption (RFC 8017, A.2.4).
    with_rsa: ObjectIdentifier,
    algorithm: &'static Algorithm,
    scheme: RsaScheme,
}

static HASHES: [Hash; 3] = [
    Hash {
        name: "SHA-256",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11"),
        algorithm: &digest::SHA256,
        scheme: RsaScheme::Sha256,
    },
    Hash {
        name: "SHA-384",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12"),
        algorithm: &digest::SHA384,
        scheme: RsaScheme::Other(&RSA_PKCS1_2048_8192_SHA384),
    },
    Hash {
        name: "SHA-512",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13"),
        algorithm: &digest::SHA512,
        scheme: RsaScheme::Other(&RSA_PKCS1_2048_8192_SHA512),
    },
];

/// Location of the signed content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedContent<'a> {
    /// Inside of the message.
    Attached,
    /// Given here; then the message must not have any.
    Detached(&'a [u8]),
}

/// A message that has the form of SignedData with one signer. Nothing in it is verified.
#[derive(Debug)]
pub struct SignedData {
    /// `None` for content that is elsewhere.
    content: Option<Vec<u8>>,
    certificates: Vec<CertificateDer<'static>>,
    signer: SignerId,
    hash: &'static Hash,
    attributes: Option<SignedAttributes>,
    signature: Vec<u8>,
}

impl SignedData {
    /// Reads a message: a ContentInfo with SignedData in BER or DER.
    ///
    /// # Errors
    /// [`Pkcs7Error`]: what is not of the form, or of an algorithm that is not accepted.
    pub fn parse(message: &[u8]) -> Result<Self, Pkcs7Error> {
        let der = ber::to_der(message)?;
        let (content_type, content) = content_info(&der).map_err(structure)?;
        check_type("type of the message", content_type, SIGNED_DATA)?;
        let message = Message::read(content).map_err(structure)?;
        let [signer] = message.signers.as_slice() else {
            return Err(Pkcs7Error::Signers {
                found: message.signers.len(),
            });
        };
        let signer = SignerInfo::read(signer).map_err(structure)?;
        check_type("type of the signed content", message.content_type, DATA)?;
        check_versions(message.version, &signer)?;
        let digest_algorithm = AlgorithmIdentifier::read(signer.digest_algorithm).map_err(structure)?;
        let hash = hash_of(&digest_algorithm)?;
        check_signature_algorithm(&signer.signature_algorithm, hash)?;
        if message.digest_algorithms != signer.digest_algorithm {
            return Err(Pkcs7Error::DigestAlgorithms {
                found: names_of(message.digest_algorithms).map_err(structure)?,
                required: digest_algorithm.oid.to_string(),
            });
        }
        if message.certificates.len() > CERTIFICATES_LIMIT {
            return Err(Pkcs7Error::TooManyCertificates {
                found: message.certificates.len(),
            });
        }
        if let Some(content) = message.content.filter(|content| content.tag() != Tag::OctetString) {
            return Err(Pkcs7Error::Structure {
                problem: format!("the content is {}, not OCTET STRING", content.tag()),
            });
        }
        let certificates = message.certificates.iter();
        Ok(Self {
            content: message.content.map(|content| content.value().to_vec()),
            certificates: certificates.map(|certificate| certificate.to_vec().into()).collect(),
            signer: signer.signer,
            hash,
            attributes: signer.attributes.map(SignedAttributes::read).transpose()?,
            signature: signer.signature.to_vec(),
        })
    }

    /// Returns the signer that the message names, fit for a log. Not verified.
    #[must_use]
    pub fn signer(&self) -> String {
        self.signer.name()
    }

    /// Returns whether a certificate is the one that the message names. Not verified.
    #[must_use]
    pub fn names(&self, certificate: &SigningCertificate) -> bool {
        certificate.is_of(&self.signer)
    }

    /// The certificate in the message that the message names as its signer's: the only one of them that may be looked at. It is
    /// trusted for nothing yet.
    ///
    /// # Errors
    /// [`Pkcs7Error::SignerCertificate`] unless there is exactly one; what else [`SigningCertificate::parse`] gives.
    pub fn signer_certificate(&self) -> Result<SigningCertificate, Pkcs7Error> {
        let mut found = Vec::new();
        let mut unreadable = None;
        for certificate in &self.certificates {
            match SigningCertificate::parse(certificate) {
                Ok(certificate) if self.names(&certificate) => found.push(certificate),
                Ok(_) => {}
                Err(error) => unreadable = Some(error),
            }
        }
        match (found.len(), found.pop(), unreadable) {
            (1, Some(certificate), _) => Ok(certificate),
            // It may have been the signer's.
            (0, _, Some(error)) => Err(error),
            (count, ..) => Err(Pkcs7Error::SignerCertificate {
                found: count,
                all: self.certificates.len(),
                signer: self.signer(),
            }),
        }
    }

    /// Verifies that the key of `certificate` has signed the content, and returns the content: the very bytes that were signed.
    ///
    /// # Errors
    /// [`Pkcs7Error`].
    pub fn verify<'a>(&'a self, certificate: &SigningCertificate, content: SignedContent<'a>) -> Result<&'a [u8], Pkcs7Error> {
        if !self.names(certificate) {
            return Err(Pkcs7Error::OtherSigner {
                signer: self.signer(),
                certificate: certificate.name(),
            });
        }
        let place = |found, expected| Err(Pkcs7Error::ContentPlace { found, expected });
        let content = match (&self.content, content) {
            (Some(attached), SignedContent::Attached) => attached.as_slice(),
            (None, SignedContent::Detached(detached)) => detached,
            (None, SignedContent::Attached) => return place("not in the message", "attached"),
            (Some(_), SignedContent::Detached(_)) => return place("in the message", "detached"),
        };
        let Some(attributes) = &self.attributes else {
            certificate.verify(self.hash.scheme, content, &self.signature)?;
            return Ok(content);
        };
        let computed = digest::digest(self.hash.algorithm, content);
        if computed.as_ref() != attributes.message_digest {
            let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes.get(..bytes.len().min(64)).unwrap_or_default());
            return Err(Pkcs7Error::MessageDigest {
                computed: hex(computed.as_ref()),
                signed: hex(&attributes.message_digest),
            });
        }
        certificate.verify(self.hash.scheme, &attributes.der, &self.signature)?;
        Ok(content)
    }
}

/// The versions say nothing that the rest does not say (RFC 5652, 5.1 and 5.3).
fn check_versions(message: u8, signer: &SignerInfo<'_>) -> Result<(), Pkcs7Error> {
    let required = match signer.signer {
        SignerId::IssuerAndSerial { .. } => 1,
        SignerId::KeyIdentifier(_) => 3,
    };
    for (structure, found) in [("SignedData", message), ("SignerInfo", signer.version)] {
        if found != required {
            return Err(Pkcs7Error::Version {
                structure,
                found,
                required,
            });
        }
    }
    Ok(())
}

fn hash_of(algorithm: &AlgorithmIdentifier<'_>) -> Result<&'static Hash, Pkcs7Error> {
    check_parameters(algorithm)?;
    // Azure names the signature algorithm where the digest algorithm belongs.
    let names = |hash: &&Hash| [hash.oid, hash.with_rsa].contains(&algorithm.oid);
    HASHES.iter().find(names).ok_or_else(|| Pkcs7Error::Digest {
        found: algorithm.oid.to_string(),
    })
}

fn check_signature_algorithm(algorithm: &AlgorithmIdentifier<'_>, hash: &Hash) -> Result<(), Pkcs7Error> {
    if ![RSA_ENCRYPTION, hash.with_rsa].contains(&algorithm.oid) {
        return Err(Pkcs7Error::SignatureAlgorithm {
            found: algorithm.oid.to_string(),
            digest: hash.name,
        });
    }
    check_parameters(algorithm)
}

fn check_parameters(algorithm: &AlgorithmIdentifier<'_>) -> Result<(), Pkcs7Error> {
    match &algorithm.parameters {
        None => Ok(()),
        Some(parameters) if parameters.is_null() => Ok(()),
        Some(_) => Err(Pkcs7Error::Parameters {
            algorithm: algorithm.oid.to_string(),
        }),
    }
}
