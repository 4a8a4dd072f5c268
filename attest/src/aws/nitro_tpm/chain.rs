//! The certificates of a document: from its leaf to a configured root, by webpki (RFC 5280), with what AWS's own have besides:
//! P-384 and nothing else, no extended key usage, no subjectAltName, a common name that says which instance and which region.

use std::cell::RefCell;
use std::collections::BTreeSet;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, aws_lc_rs as algorithms};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Name;

use super::cose::{LeafKey, Unverified};
use super::error::NitroTpmError;
use crate::aws::names::printable;
use crate::nonce::sha256;
use crate::values::HexDigest;

/// What AWS's chains are signed with. As the issuer's key is P-384, too, no other curve gets into a path.
static SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = &[algorithms::ECDSA_P384_SHA384];

/// anyExtendedKeyUsage. No certificate of AWS's has an extended key usage; one that has any other is for something else.
const ANY_USAGE_OID_DER: &[u8] = &[0x55, 0x1d, 0x25, 0x00];

/// A P-384 point, uncompressed.
const POINT_BYTES: usize = 97;

/// The roots of AWS's attestation certificates: the administrator's choice, one for each partition.
#[derive(Debug, Clone, Default)]
pub struct NitroRoots {
    anchors: Vec<TrustAnchor<'static>>,
    /// As many as anchors.
    facts: Vec<Facts>,
}

#[derive(Debug, Clone)]
struct Facts {
    subject: String,
    sha256: [u8; 32],
    not_before: u64,
    not_after: u64,
    path_length: Option<u32>,
}

/// A certificate that cannot be a root of attestation documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("root certificate {subject:?} (SHA-256 {sha256}): {problem}")]
pub struct NitroRootsError {
    /// Its subject, if it could be read.
    pub subject: String,
    /// SHA-256 of it, hexadecimal.
    pub sha256: String,
    /// What is wrong.
    pub problem: RootProblem,
}

/// What is wrong with a root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootProblem {
    /// It is no certificate.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// It is not a CA's.
    #[error("it is not the certificate of a CA (basicConstraints, keyUsage)")]
    NotCa,
    /// Its key is not P-384.
    #[error("its key is not P-384, as AWS's are")]
    Key,
}

/// What the leaf says, once its path is validated.
pub(super) struct Leaf {
    pub(super) key: LeafKey,
    pub(super) common_name: String,
    pub(super) root_sha256: HexDigest,
}

impl NitroRoots {
    /// Trusts `roots`.
    ///
    /// # Errors
    /// [`NitroRootsError`] for the first that cannot be used.
    pub fn new(roots: &[CertificateDer<'_>]) -> Result<Self, NitroRootsError> {
        let mut all = Self::default();
        for root in roots {
            all.add(root).map_err(|problem| NitroRootsError {
                subject: X509Certificate::from_der(root).map_or_else(|_| String::new(), |(_, parsed)| name_text(parsed.subject())),
                sha256: data_encoding::HEXLOWER.encode(&sha256(&[root])),
                problem,
            })?;
        }
        Ok(all)
    }

    /// Whether there is no root: no document is accepted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    fn add(&mut self, root: &CertificateDer<'_>) -> Result<(), RootProblem> {
        let (rest, parsed) = X509Certificate::from_der(root).map_err(|error| RootProblem::Malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(RootProblem::Malformed(format!("{} bytes follow it", rest.len())));
        }
        let constraints = parsed
            .basic_constraints()
            .map_err(|error| RootProblem::Malformed(error.to_string()))?;
        let constraints = constraints.filter(|constraints| constraints.value.ca).ok_or(RootProblem::NotCa)?;
        if !may_sign_certificates(&parsed) {
            return Err(RootProblem::NotCa);
        }
        if !is_p384(&parsed) {
            return Err(RootProblem::Key);
        }
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let facts = Facts {
            subject: name_text(parsed.subject()),
            sha256: sha256(&[root]),
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
            path_length: constraints.value.path_len_constraint,
        };
        if self.facts.iter().any(|known| known.sha256 == facts.sha256) {
            return Ok(());
        }
        let anchor = webpki::anchor_from_trusted_cert(root).map_err(|error| RootProblem::Malformed(error.to_string()))?;
        self.anchors.push(anchor.to_owned());
        self.facts.push(facts);
        Ok(())
    }

    /// Validates the path from a document's leaf to a root, at `now`.
    pub(super) fn validate(&self, certificates: &Unverified<'_>, now: UnixTime) -> Result<Leaf, NitroTpmError> {
        let leaf = CertificateDer::from(certificates.certificate);
        let bundle: Vec<CertificateDer<'_>> = certificates.cabundle.iter().map(|der| CertificateDer::from(*der)).collect();
        // Subjects differ in real chains. As long as they do there is only one path to try, so that a bundle of lookalikes costs
        // no more signatures than a real one.
        let mut subjects = BTreeSet::new();
        for certificate in &bundle {
            let subject = read(certificate)?.subject().as_raw().to_vec();
            if !subjects.insert(subject) {
                return Err(NitroTpmError::CertificateRepeated {
                    subject: name_text(read(certificate)?.subject()),
                });
            }
        }
        let parsed = read(&leaf)?;
        let end_entity = EndEntityCert::try_from(&leaf).map_err(|error| NitroTpmError::of_path(&error, &parsed))?;
        // webpki takes any error of this closure for one of its own; the real one goes around it.
        let refused = RefCell::new(None);
        let path = end_entity.verify_for_usage(
            SIGNATURES,
            &self.anchors,
            &bundle,
            now,
            KeyUsage::required_if_present(ANY_USAGE_OID_DER),
            None,
            Some(&|path| {
                self.check(path, now).map_err(|error| {
                    *refused.borrow_mut() = Some(error);
                    webpki::Error::CertDistrusted
                })
            }),
        );
        let path = path.map_err(|error| match (error, refused.take()) {
            (webpki::Error::CertDistrusted, Some(refused)) => refused,
            (error, _) => NitroTpmError::of_path(&error, &parsed),
        })?;

        // From here on the leaf is what a trusted CA signed.
        if parsed
            .key_usage()
            .ok()
            .flatten()
            .is_none_or(|usage| !usage.value.digital_signature())
        {
            return Err(NitroTpmError::CertificateUsage {
                certificate: name_text(parsed.subject()),
                needed: "digitalSignature",
            });
        }
        let point = parsed.public_key().subject_public_key.data.as_ref();
        let key = LeafKey::new(point).filter(|_| is_p384(&parsed)).ok_or(NitroTpmError::LeafKey)?;
        let mut names = parsed.subject().iter_common_name();
        let common_name = match (names.next().map(x509_parser::x509::AttributeTypeAndValue::as_str), names.next()) {
            (Some(Ok(name)), None) => name.to_owned(),
            _ => String::new(),
        };
        let root_sha256 = self.anchor_of(&path).map(|root| root.sha256.into()).ok_or(NitroTpmError::LeafKey)?;
        Ok(Leaf {
            key,
            common_name,
            root_sha256,
        })
    }

    /// What webpki does not look at: the root's validity and path length, and the key usage of the CAs below it.
    fn check(&self, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), NitroTpmError> {
        for intermediate in path.intermediate_certificates() {
            let der = intermediate.der();
            let parsed = read(&der)?;
            if !may_sign_certificates(&parsed) {
                return Err(NitroTpmError::CertificateUsage {
                    certificate: name_text(parsed.subject()),
                    needed: "keyCertSign",
                });
            }
        }
        let (Some(root), now) = (self.anchor_of(path), now.as_secs()) else {
            return Ok(());
        };
        if now < root.not_before {
            return Err(NitroTpmError::NotYetValid {
                certificate: root.subject.clone(),
                not_before: root.not_before,
                now,
            });
        }
        if now > root.not_after {
            return Err(NitroTpmError::Expired {
                certificate: root.subject.clone(),
                not_after: root.not_after,
                now,
            });
        }
        let limit = root.path_length.and_then(|limit| usize::try_from(limit).ok());
        let found = path.intermediate_certificates().count();
        match limit {
            Some(limit) if found > limit => Err(NitroTpmError::Path {
                problem: format!("{found} CAs are below {}, which allows {limit}", root.subject),
            }),
            _ => Ok(()),
        }
    }

    fn anchor_of(&self, path: &VerifiedPath<'_>) -> Option<&Facts> {
        let position = self.anchors.iter().position(|anchor| std::ptr::eq(anchor, path.anchor()))?;
        self.facts.get(position)
    }
}

/// Reads a certificate, and nothing behind it.
fn read<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, NitroTpmError> {
    match X509Certificate::from_der(der) {
        Ok(([], parsed)) => Ok(parsed),
        Ok((rest, _)) => Err(NitroTpmError::CertificateUnreadable {
            problem: format!("{} bytes follow it", rest.len()),
        }),
        Err(error) => Err(NitroTpmError::CertificateUnreadable {
            problem: error.to_string(),
        }),
    }
}

fn may_sign_certificates(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.key_usage().ok().flatten();
    usage.is_some_and(|usage| usage.value.key_cert_sign())
}

fn is_p384(certificate: &X509Certificate<'_>) -> bool {
    let key = certificate.public_key();
    let uncompressed = key.subject_public_key.data.len() == POINT_BYTES && key.subject_public_key.data.first() == Some(&4);
    uncompressed && matches!(key.parsed(), Ok(PublicKey::EC(point)) if point.key_size() == 384)
}

pub(super) fn name_text(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}
