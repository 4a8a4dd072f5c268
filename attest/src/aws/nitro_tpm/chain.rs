//! The certificates of a document: from its leaf to a configured root, by webpki (RFC 5280), with what AWS's own have besides:
//! P-384 and nothing else, no extended key usage, no subjectAltName, a common name that says which instance and which region.

use std::collections::BTreeSet;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, aws_lc_rs as algorithms};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::cose::{LeafKey, Unverified};
use super::error::NitroTpmError;
use crate::aws::names::name_text;
use crate::values::HexDigest;
use crate::x509::canonical::CanonicalName;
use crate::x509::{Ca, NoCa, SignatureBudget, Terms, TrustAnchors, Unusable};

/// Signature algorithm of AWS's chains. The issuer's key is P-384, too, so no other curve gets into a path.
static SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = &[algorithms::ECDSA_P384_SHA384];

/// anyExtendedKeyUsage. No certificate of AWS's has an extended key usage; one that has any other is for something else.
const ANY_USAGE_OID_DER: &[u8] = &[0x55, 0x1d, 0x25, 0x00];

/// A P-384 point, uncompressed.
const POINT_BYTES: usize = 97;

/// The roots of AWS's attestation certificates: the administrator's choice, one for each partition.
#[derive(Debug, Clone, Default)]
pub struct NitroRoots(TrustAnchors);

/// A certificate that cannot be a root of attestation documents.
pub type NitroRootsError = Unusable<RootProblem>;

/// Reason why a root cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootProblem {
    /// The root is not a certificate.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// The certificate is not that of a CA.
    #[error("it is not the certificate of a CA (basicConstraints, keyUsage)")]
    NotCa,
    /// Its key is not P-384.
    #[error("its key is not P-384, as AWS's are")]
    Key,
}

/// Content of the leaf certificate, once its path is validated.
pub(super) struct LeafCertificate {
    pub(super) key: LeafKey,
    pub(super) common_name: String,
    pub(super) root_sha256: HexDigest,
}

impl NitroRoots {
    /// Creates a set that trusts `roots`.
    ///
    /// # Errors
    /// [`NitroRootsError`] for the first that cannot be used.
    pub fn new(roots: &[CertificateDer<'_>]) -> Result<Self, NitroRootsError> {
        let mut all = TrustAnchors::default();
        for root in roots {
            add(&mut all, root).map_err(|problem| NitroRootsError::new("root", root, problem))?;
        }
        Ok(Self(all))
    }

    /// Returns whether the set has no root: then no document is accepted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Validates the path from a document's leaf to a root, at `now`.
    pub(super) fn validate(&self, certificates: &Unverified<'_>, now: UnixTime) -> Result<LeafCertificate, NitroTpmError> {
        let leaf = CertificateDer::from(certificates.certificate);
        let bundle: Vec<CertificateDer<'_>> = certificates.cabundle.iter().map(|der| CertificateDer::from(*der)).collect();
        // Subjects differ in real chains. As long as they do there is only one path to try, so that a bundle of lookalikes costs
        // no more signatures than a real one.
        let mut subjects = BTreeSet::new();
        for certificate in &bundle {
            let subject = CanonicalName::from_der(read(certificate)?.subject().as_raw());
            if !subjects.insert(subject) {
                return Err(NitroTpmError::CertificateRepeated {
                    subject: name_text(read(certificate)?.subject()),
                });
            }
        }
        let parsed = read(&leaf)?;
        let end_entity = EndEntityCert::try_from(&leaf).map_err(|error| NitroTpmError::from_webpki(&error, &parsed))?;
        let terms = Terms {
            signatures: SIGNATURES,
            usage: KeyUsage::required_if_present(ANY_USAGE_OID_DER),
            // Of one path.
            budget: &SignatureBudget::webpki_default(),
            now,
        };
        let path = self.0.validate(&end_entity, &bundle, terms, check_usages);
        let path = path.map_err(|problem| NitroTpmError::from_problem(problem, &parsed, now))?;

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
        Ok(LeafCertificate {
            key,
            common_name,
            root_sha256: path.root.sha256().into(),
        })
    }
}

fn add(all: &mut TrustAnchors, root: &[u8]) -> Result<(), RootProblem> {
    let ca = Ca::read(root)?;
    if !may_sign_certificates(ca.parsed()) {
        return Err(RootProblem::NotCa);
    }
    if !is_p384(ca.parsed()) {
        return Err(RootProblem::Key);
    }
    all.add_root(&ca)?;
    Ok(())
}

impl From<NoCa> for RootProblem {
    fn from(problem: NoCa) -> Self {
        match problem {
            NoCa::Malformed(problem) => Self::Malformed(problem),
            NoCa::NotCa => Self::NotCa,
        }
    }
}

/// Checks the key usage of the CAs of a path, which webpki does not check.
fn check_usages(path: &VerifiedPath<'_>) -> Result<(), NitroTpmError> {
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
    Ok(())
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
