//! SignedData: its form, and its one signature.

use aws_lc_rs::digest::{self, Algorithm};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512};
use cms::cert::x509::attr::Attributes;
use cms::cert::x509::spki::AlgorithmIdentifierOwned;
use cms::content_info::{CmsVersion, ContentInfo};
use cms::signed_data::{EncapsulatedContentInfo, SignerIdentifier, SignerInfo};
use der::asn1::{ObjectIdentifier, OctetStringRef, SetOfVec};
use der::{Any, Decode, Encode, Tag, Tagged};
use rustls_pki_types::CertificateDer;

use super::certificate::{Scheme, Signer};
use super::{CERTIFICATES_LIMIT, Pkcs7Error, SigningCertificate, ber};

/// id-signedData and id-data (RFC 5652, 5.1 and 4).
const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
/// id-contentType and id-messageDigest (RFC 5652, 11.1 and 11.2).
const CONTENT_TYPE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.3");
const MESSAGE_DIGEST: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.4");
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
    scheme: Scheme,
}

static HASHES: [Hash; 3] = [
    Hash {
        name: "SHA-256",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11"),
        algorithm: &digest::SHA256,
        scheme: Scheme::Sha256,
    },
    Hash {
        name: "SHA-384",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12"),
        algorithm: &digest::SHA384,
        scheme: Scheme::Other(&RSA_PKCS1_2048_8192_SHA384),
    },
    Hash {
        name: "SHA-512",
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3"),
        with_rsa: ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13"),
        algorithm: &digest::SHA512,
        scheme: Scheme::Other(&RSA_PKCS1_2048_8192_SHA512),
    },
];

/// Where the signed content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Inside of the message.
    Attached,
    /// Given here; then the message must not have any.
    Detached(&'a [u8]),
}

/// A message that has the form of SignedData with one signer. Nothing in it is verified.
#[derive(Debug)]
pub struct SignedData {
    /// `None` for content that is elsewhere.
    content: Option<Any>,
    certificates: Vec<CertificateDer<'static>>,
    signer: Signer,
    hash: &'static Hash,
    attributes: Option<Attributes>,
    signature: Vec<u8>,
}

/// SignedData (RFC 5652, 5.1). The certificates are left as they are, since one that is not looked at may be of any form, and
/// path validation wants the bytes. Revocation lists have no place.
#[derive(Debug, der::Sequence)]
struct Message {
    version: CmsVersion,
    digest_algorithms: SetOfVec<AlgorithmIdentifierOwned>,
    content: EncapsulatedContentInfo,
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT", optional = "true")]
    certificates: Option<SetOfVec<Any>>,
    signers: SetOfVec<SignerInfo>,
}

impl SignedData {
    /// Reads a message: a ContentInfo with SignedData in BER or DER.
    ///
    /// # Errors
    /// [`Pkcs7Error`]: what is not of the form, or of an algorithm that is not accepted.
    pub fn parse(message: &[u8]) -> Result<Self, Pkcs7Error> {
        let info = ContentInfo::from_der(&ber::to_der(message)?).map_err(structure)?;
        check_type("type of the message", info.content_type, SIGNED_DATA)?;
        let message: Message = info.content.decode_as().map_err(structure)?;
        let [signer] = message.signers.as_slice() else {
            return Err(Pkcs7Error::Signers {
                found: message.signers.len(),
            });
        };
        check_type("type of the signed content", message.content.econtent_type, DATA)?;
        check_versions(message.version, signer)?;
        let hash = hash_of(&signer.digest_alg)?;
        check_signature_algorithm(&signer.signature_algorithm, hash)?;
        if message.digest_algorithms.as_slice() != std::slice::from_ref(&signer.digest_alg) {
            let names: Vec<_> = message
                .digest_algorithms
                .iter()
                .map(|algorithm| algorithm.oid.to_string())
                .collect();
            return Err(Pkcs7Error::DigestAlgorithms {
                found: names.join(", "),
                required: signer.digest_alg.oid.to_string(),
            });
        }
        let bag = message.certificates.as_ref().map_or(&[][..], SetOfVec::as_slice);
        if bag.len() > CERTIFICATES_LIMIT {
            return Err(Pkcs7Error::TooManyCertificates { found: bag.len() });
        }
        let certificates = bag.iter().map(|certificate| certificate.to_der().map(CertificateDer::from));
        let content = message.content.econtent;
        if let Some(content) = content.as_ref().filter(|content| content.tag() != Tag::OctetString) {
            return Err(Pkcs7Error::Structure {
                problem: format!("the content is {}, not OCTET STRING", content.tag()),
            });
        }
        Ok(Self {
            content,
            certificates: certificates.collect::<Result<_, _>>().map_err(structure)?,
            signer: Signer::new(&signer.sid).map_err(structure)?,
            hash,
            attributes: signer.signed_attrs.clone(),
            signature: signer.signature.as_bytes().to_vec(),
        })
    }

    /// Whom the message names as its signer, fit for a log. Not verified.
    #[must_use]
    pub fn signer(&self) -> String {
        self.signer.name()
    }

    /// Whether a certificate is the one that the message names. Not verified.
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
    pub fn verify<'a>(&'a self, certificate: &SigningCertificate, content: Content<'a>) -> Result<&'a [u8], Pkcs7Error> {
        if !self.names(certificate) {
            return Err(Pkcs7Error::OtherSigner {
                signer: self.signer(),
                certificate: certificate.name(),
            });
        }
        let place = |found, expected| Err(Pkcs7Error::ContentPlace { found, expected });
        let content = match (&self.content, content) {
            (Some(attached), Content::Attached) => attached.value(),
            (None, Content::Detached(detached)) => detached,
            (None, Content::Attached) => return place("not in the message", "attached"),
            (Some(_), Content::Detached(_)) => return place("in the message", "detached"),
        };
        let Some(attributes) = &self.attributes else {
            certificate.verify(self.hash.scheme, content, &self.signature)?;
            return Ok(content);
        };
        self.check_attributes(attributes, content)?;
        // As a SET OF in DER, whatever tag and order the message has (RFC 5652, 5.4).
        let signed = attributes.to_der().map_err(structure)?;
        certificate.verify(self.hash.scheme, &signed, &self.signature)?;
        Ok(content)
    }

    fn check_attributes(&self, attributes: &Attributes, content: &[u8]) -> Result<(), Pkcs7Error> {
        let content_type = the_value(attributes, CONTENT_TYPE, "contentType")?;
        let content_type: ObjectIdentifier = content_type.decode_as().map_err(structure)?;
        check_type("signed attribute contentType", content_type, DATA)?;
        let signed = the_value(attributes, MESSAGE_DIGEST, "messageDigest")?;
        let signed: OctetStringRef<'_> = signed.decode_as().map_err(structure)?;
        let computed = digest::digest(self.hash.algorithm, content);
        if computed.as_ref() == signed.as_bytes() {
            return Ok(());
        }
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes.get(..bytes.len().min(64)).unwrap_or_default());
        Err(Pkcs7Error::MessageDigest {
            computed: hex(computed.as_ref()),
            signed: hex(signed.as_bytes()),
        })
    }
}

/// The one value of an attribute.
fn the_value<'a>(attributes: &'a Attributes, oid: ObjectIdentifier, attribute: &'static str) -> Result<&'a Any, Pkcs7Error> {
    let found: Vec<_> = attributes.iter().filter(|attribute| attribute.oid == oid).collect();
    if let [one] = found.as_slice()
        && let [value] = one.values.as_slice()
    {
        return Ok(value);
    }
    Err(Pkcs7Error::Attribute {
        attribute,
        found: found.len(),
        values: found.iter().map(|attribute| attribute.values.len()).sum(),
    })
}

fn check_type(what: &'static str, found: ObjectIdentifier, required: ObjectIdentifier) -> Result<(), Pkcs7Error> {
    if found == required {
        return Ok(());
    }
    Err(Pkcs7Error::ContentType {
        what,
        found: found.to_string(),
        required: required.to_string(),
    })
}

/// The versions say nothing that the rest does not say (RFC 5652, 5.1 and 5.3).
fn check_versions(message: CmsVersion, signer: &SignerInfo) -> Result<(), Pkcs7Error> {
    let (required, number) = match signer.sid {
        SignerIdentifier::IssuerAndSerialNumber(_) => (CmsVersion::V1, 1),
        SignerIdentifier::SubjectKeyIdentifier(_) => (CmsVersion::V3, 3),
    };
    for (structure, version) in [("SignedData", message), ("SignerInfo", signer.version)] {
        if version != required {
            let found = match version {
                CmsVersion::V0 => 0,
                CmsVersion::V1 => 1,
                CmsVersion::V2 => 2,
                CmsVersion::V3 => 3,
                CmsVersion::V4 => 4,
                CmsVersion::V5 => 5,
            };
            return Err(Pkcs7Error::Version {
                structure,
                found,
                required: number,
            });
        }
    }
    Ok(())
}

fn hash_of(algorithm: &AlgorithmIdentifierOwned) -> Result<&'static Hash, Pkcs7Error> {
    check_parameters(algorithm)?;
    // Azure names the signature algorithm where the digest algorithm belongs.
    let names = |hash: &&Hash| [hash.oid, hash.with_rsa].contains(&algorithm.oid);
    HASHES.iter().find(names).ok_or_else(|| Pkcs7Error::Digest {
        found: algorithm.oid.to_string(),
    })
}

fn check_signature_algorithm(algorithm: &AlgorithmIdentifierOwned, hash: &Hash) -> Result<(), Pkcs7Error> {
    if ![RSA_ENCRYPTION, hash.with_rsa].contains(&algorithm.oid) {
        return Err(Pkcs7Error::SignatureAlgorithm {
            found: algorithm.oid.to_string(),
            digest: hash.name,
        });
    }
    check_parameters(algorithm)
}

fn check_parameters(algorithm: &AlgorithmIdentifierOwned) -> Result<(), Pkcs7Error> {
    match &algorithm.parameters {
        None => Ok(()),
        Some(parameters) if parameters.is_null() => Ok(()),
        Some(_) => Err(Pkcs7Error::Parameters {
            algorithm: algorithm.oid.to_string(),
        }),
    }
}

fn structure(error: der::Error) -> Pkcs7Error {
    Pkcs7Error::Structure {
        problem: error.to_string(),
    }
}
