//! EK certificates: a manufacturer certifies that a key is the Endorsement Key of one of its TPMs.
//!
//! Profile: TCG EK Credential Profile for TPM Family 2.0, version 2.6. The path is validated by webpki (RFC 5280), with what the
//! profile adds:
//! - the extended key usage tcg-kp-EKCertificate (2.23.133.8.1) on the leaf; CAs may have none, or have to include it;
//! - a key usage, if stated, that lets others encrypt to the key: some CAs certify AKs under the very same extended key usage;
//! - a critical subjectAltName with nothing but a directoryName, an empty subject, and `99991231235959Z` for "never expires":
//!   webpki takes all three as they are.
//!
//! Some deviations are tolerated on purpose. Padding by 0xff or by 0x00 may follow the certificate, as in NV indices of a fixed size. Names
//! may have SETs that are not in DER's order (Nuvoton), since names are compared as bytes. *Configured* CAs may have critical
//! certificatePolicies (STMicroelectronics, Intel, Infineon), see [`EkRoots`].
//!
//! Not done here: revocation (nothing here does I/O; see `docs/explanation/evidence.md`), and fetching issuers by URL, which would let a
//! node choose what the gateway connects to.

mod error;
mod roots;
#[cfg(test)]
mod tests;
mod validated_chains;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{EndEntityCert, KeyUsage, aws_lc_rs as algorithms};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer;

use crate::tpm::ek::EkDigest;
use crate::x509::names::{issuer_of, name_text, printable};
use crate::x509::{self, PathEnd, SignatureBudget, Terms};

pub use attest_wire::tpm::{EkKey, INTERMEDIATES_LIMIT};
pub use error::EkCertificateError;
pub(crate) use roots::all_of;
pub use roots::{EkRootProblem, EkRoots, EkRootsError};
pub(crate) use validated_chains::verify_unless_cached;
pub use validated_chains::{KnownChain, KnownChains};

/// Largest certificate that is read, padding included. NV indices of TPMs hold 2048 bytes at most; the longest certificate seen
/// in one is under 1700 bytes.
pub const CERTIFICATE_LIMIT_BYTES: usize = 8 * 1024;

/// Most signatures that are verified for one EK certificate: its own and those of six CAs, which is as deep as webpki goes, and one of a root
/// that was renewed under its name with another key.
const SIGNATURES_LIMIT: usize = 8;

/// Purpose of a certificate: an extended key usage of the TCG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcgUsage {
    /// The object identifier in dotted form, for people.
    pub(crate) oid: &'static str,
    /// The object identifier as the content of its DER encoding.
    pub(crate) der: &'static [u8],
}

/// Usage of EK certificates, `tcg-kp-EKCertificate`.
const EK_CERTIFICATE: TcgUsage = TcgUsage {
    oid: "2.23.133.8.1",
    der: &[0x67, 0x81, 0x05, 0x08, 0x01],
};
/// Usage of AK certificates, `tcg-kp-AIKCertificate`.
pub(crate) const AK_CERTIFICATE: TcgUsage = TcgUsage {
    oid: "2.23.133.8.3",
    der: &[0x67, 0x81, 0x05, 0x08, 0x03],
};
/// Extended key usage for EKs: required of the certificate, or of a CA's, if it states one.
pub(crate) const USAGE: KeyUsage = KeyUsage::required_if_present(EK_CERTIFICATE.der);
/// tcg-at-tpmManufacturer, tcg-at-tpmModel, tcg-at-tpmVersion (EK Credential Profile, 3.1.2).
const TPM_MANUFACTURER_OID: &str = "2.23.133.2.1";
const TPM_MODEL_OID: &str = "2.23.133.2.2";
const TPM_VERSION_OID: &str = "2.23.133.2.3";

/// Signatures that are accepted in a chain. SHA-1 and RSA under 2048 bits are not among them.
static SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = &[
    algorithms::RSA_PKCS1_2048_8192_SHA256,
    algorithms::RSA_PKCS1_2048_8192_SHA384,
    algorithms::RSA_PKCS1_2048_8192_SHA512,
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P256_SHA384,
    algorithms::ECDSA_P256_SHA512,
    algorithms::ECDSA_P384_SHA256,
    algorithms::ECDSA_P384_SHA384,
    algorithms::ECDSA_P384_SHA512,
    // Nuvoton's roots of 2023 and later, Infineon's "OPTIGA(TM) ECC Root CA 2", NSING's, STSAFE's.
    algorithms::ECDSA_P521_SHA256,
    algorithms::ECDSA_P521_SHA384,
    algorithms::ECDSA_P521_SHA512,
];

/// Content of an EK certificate that a manufacturer's CA has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedEkCertificate {
    key: EkKey,
    tpm: TpmModel,
    subject: String,
    issuer: String,
    serial: String,
    root_subject: String,
    root_sha256: [u8; 32],
}

/// Manufacturer's description of the TPM in the certificate's subjectAltName.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TpmModel {
    /// tpmManufacturer: `id:` and the vendor ID in hexadecimal, such as `id:53544D20`.
    pub manufacturer: Option<String>,
    /// Attribute `tpmModel`, as free text.
    pub model: Option<String>,
    /// tpmVersion: `id:` and the firmware version in hexadecimal.
    pub version: Option<String>,
}

impl VerifiedEkCertificate {
    #[must_use]
    pub const fn key(&self) -> &EkKey {
        &self.key
    }

    /// Returns the manufacturer's description of the TPM.
    #[must_use]
    pub const fn tpm(&self) -> &TpmModel {
        &self.tpm
    }

    /// The certificate's subject; most have an empty one.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The CA that issued the certificate.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The certificate's serial number: bytes in hexadecimal, separated by colons.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Subject of the configured root that the chain leads to.
    #[must_use]
    pub fn root_subject(&self) -> &str {
        &self.root_subject
    }

    /// SHA-256 over that root's certificate.
    #[must_use]
    pub const fn root_sha256(&self) -> [u8; 32] {
        self.root_sha256
    }
}

/// Verifies an EK certificate as it was read from the TPM's NV memory, for use at `now`.
///
/// `intermediates` are certificates that the TPM sent along; they may complete a chain and are never trusted by themselves.
///
/// # Errors
/// [`EkCertificateError`]: [`EkCertificateError::is_unknown_issuer`] if no configured CA has issued it, else the problem with it.
pub fn verify(
    certificate: &[u8],
    intermediates: &[&[u8]],
    roots: &EkRoots,
    now: UnixTime,
) -> Result<VerifiedEkCertificate, EkCertificateError> {
    let path = verify_path(certificate, intermediates, roots, USAGE, now)?;
    // From here on the bytes are what a trusted CA signed.
    let malformed = |problem: String| EkCertificateError::Malformed { problem };
    let (_, parsed) = X509Certificate::from_der(path.leaf).map_err(|error| malformed(error.to_string()))?;
    check_usage(&parsed)?;
    let key = EkKey::from_spki(parsed.public_key()).map_err(|found| EkCertificateError::Key { found })?;
    Ok(VerifiedEkCertificate {
        key,
        tpm: tpm_model(&parsed),
        subject: name_text(parsed.subject()),
        issuer: name_text(parsed.issuer()),
        serial: parsed.raw_serial_as_string(),
        root_subject: path.root_subject.to_owned(),
        root_sha256: path.root_sha256,
    })
}

/// A certificate that a configured root leads to. Nothing is known yet of what it is for: it may have no extended key usage.
pub(crate) struct TrustedEkPath<'a> {
    /// The certificate, without padding.
    pub(crate) leaf: &'a [u8],
    pub(crate) root_subject: &'a str,
    /// SHA-256 over the root's certificate.
    pub(crate) root_sha256: [u8; 32],
}

/// Validates the path to a certificate that is for `usage`, and what is the same for all certificates that a TPM keeps.
pub(crate) fn verify_path<'a>(
    certificate: &'a [u8],
    intermediates: &[&[u8]],
    roots: &'a EkRoots,
    usage: KeyUsage,
    now: UnixTime,
) -> Result<TrustedEkPath<'a>, EkCertificateError> {
    verify_path_within(
        &SignatureBudget::new(SIGNATURES_LIMIT),
        certificate,
        intermediates,
        roots,
        usage,
        now,
    )
}

fn verify_path_within<'a>(
    budget: &SignatureBudget,
    certificate: &'a [u8],
    intermediates: &[&[u8]],
    roots: &'a EkRoots,
    usage: KeyUsage,
    now: UnixTime,
) -> Result<TrustedEkPath<'a>, EkCertificateError> {
    if intermediates.len() > INTERMEDIATES_LIMIT {
        return Err(EkCertificateError::TooManyIntermediates {
            found: intermediates.len(),
        });
    }
    let certificate = without_padding(certificate)?;
    let leaf = CertificateDer::from(certificate);
    // What is not of a maker that is configured is nobody's, whatever else may be wrong with it.
    if roots.is_empty() {
        return Err(EkCertificateError::NoRoots { issuer: issuer_of(&leaf) });
    }
    let mut sent = Vec::with_capacity(intermediates.len());
    for intermediate in intermediates {
        sent.push(CertificateDer::from(without_padding(intermediate)?));
    }
    let end_entity = match EndEntityCert::try_from(&leaf) {
        Err(error) if error != webpki::Error::UnsupportedCriticalExtension => {
            return Err(EkCertificateError::Malformed {
                problem: error.to_string(),
            });
        }
        end_entity => end_entity,
    };
    let chain = select_path(&leaf, &sent, roots, now)?;
    let end_entity = end_entity.map_err(|_| EkCertificateError::CriticalExtension)?;
    let terms = Terms {
        signatures: SIGNATURES,
        usage,
        budget,
        now,
    };
    let path = roots.anchors().validate(&end_entity, &chain, terms, x509::no_more);
    let path = path.map_err(|problem| EkCertificateError::from_path_problem(problem, &leaf, now))?;
    Ok(TrustedEkPath {
        leaf: certificate,
        root_subject: path.root.subject(),
        root_sha256: path.root.sha256(),
    })
}

/// Selects those of the certificates that a TPM sent that lead towards a root.
fn select_path<'s>(
    leaf: &CertificateDer<'_>,
    sent: &[CertificateDer<'s>],
    roots: &EkRoots,
    now: UnixTime,
) -> Result<Vec<CertificateDer<'s>>, EkCertificateError> {
    match roots.anchors().extend_path(leaf, sent, now) {
        PathEnd::ToAnAnchor(chain) => Ok(chain),
        PathEnd::Nowhere => Err(EkCertificateError::UnknownIssuer { issuer: issuer_of(leaf) }),
        PathEnd::Anywhere => Err(EkCertificateError::ChainTooLong),
        PathEnd::OverNoCa { subject, lacks } => Err(EkCertificateError::SentIssuerNotCa {
            subject: printable(&subject),
            lacks,
        }),
    }
}

/// The key that a certificate is about. Verifies nothing: for an administrator who names an EK by the certificate at hand.
///
/// # Errors
/// [`EkCertificateError`] for bytes that are no certificate, or one of a key that no EK has.
pub fn unverified_key(certificate: &[u8]) -> Result<EkKey, EkCertificateError> {
    let certificate = without_padding(certificate)?;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| EkCertificateError::Malformed {
        problem: error.to_string(),
    })?;
    EkKey::from_spki(parsed.public_key()).map_err(|found| EkCertificateError::Key { found })
}

/// Returns the digest of the key that an EK certificate is about, for an administrator who names an EK by the certificate at hand. Requires
/// the purpose that [`verify`] requires, but verifies no signature.
///
/// # Errors
/// As [`unverified_key`], and [`EkCertificateError::ExtendedKeyUsage`], [`EkCertificateError::KeyUsage`] or [`EkCertificateError::IsCa`] for a
/// certificate of another purpose.
pub fn unverified_digest(certificate: &[u8]) -> Result<EkDigest, EkCertificateError> {
    let key = unverified_key(certificate)?;
    let malformed = |problem: String| EkCertificateError::Malformed { problem };
    let (_, parsed) = X509Certificate::from_der(without_padding(certificate)?).map_err(|error| malformed(error.to_string()))?;
    let constraints = parsed.basic_constraints().map_err(|error| malformed(error.to_string()))?;
    if constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err(EkCertificateError::IsCa);
    }
    check_usage(&parsed)?;
    Ok(EkDigest::of(&key))
}

/// The certificate without the padding of its NV index: the DER element, and nothing but one byte repeated behind it.
pub(crate) fn without_padding(bytes: &[u8]) -> Result<&[u8], EkCertificateError> {
    if bytes.len() > CERTIFICATE_LIMIT_BYTES {
        return Err(EkCertificateError::TooLarge { bytes: bytes.len() });
    }
    let needed = x509::der::lengths(bytes).map_or(0, |(header, content)| header + content);
    let truncated = || EkCertificateError::Truncated {
        needed,
        found: bytes.len(),
    };
    let (certificate, padding) = bytes.split_at_checked(needed).filter(|_| needed > 0).ok_or_else(truncated)?;
    let fill = padding.first().copied().filter(|first| *first == 0).unwrap_or(0xff);
    match padding.iter().position(|&byte| byte != fill) {
        None => Ok(certificate),
        Some(position) => Err(EkCertificateError::TrailingByte {
            offset: needed + position,
            byte: padding.get(position).copied().unwrap_or_default(),
        }),
    }
}

/// The leaf has to be an EK's: webpki has only checked an extended key usage that is there.
fn check_usage(leaf: &X509Certificate<'_>) -> Result<(), EkCertificateError> {
    let malformed = |error: x509_parser::error::X509Error| EkCertificateError::Malformed {
        problem: error.to_string(),
    };
    let usage = leaf.extended_key_usage().map_err(malformed)?;
    if !usage.is_some_and(|usage| usage.value.other.iter().any(is_ek_usage)) {
        return Err(EkCertificateError::ExtendedKeyUsage {
            found: extended_key_usage_of(leaf.as_raw()),
        });
    }
    match leaf.key_usage().map_err(malformed)? {
        Some(usage) if !usage.value.key_encipherment() && !usage.value.key_agreement() => Err(EkCertificateError::KeyUsage {
            found: usage.value.to_string(),
        }),
        _ => Ok(()),
    }
}

fn is_ek_usage(oid: &Oid<'_>) -> bool {
    oid.as_bytes() == EK_CERTIFICATE.der
}

fn tpm_model(leaf: &X509Certificate<'_>) -> TpmModel {
    let mut tpm = TpmModel::default();
    let Ok(Some(names)) = leaf.subject_alternative_name() else {
        return tpm;
    };
    for name in &names.value.general_names {
        let GeneralName::DirectoryName(name) = name else { continue };
        for attribute in name.iter_attributes() {
            let field = match attribute.attr_type().to_id_string().as_str() {
                TPM_MANUFACTURER_OID => &mut tpm.manufacturer,
                TPM_MODEL_OID => &mut tpm.model,
                TPM_VERSION_OID => &mut tpm.version,
                _ => continue,
            };
            *field = attribute.as_str().ok().map(printable);
        }
    }
    tpm
}

/// The extended key usage of a certificate, for messages; it may not have been verified.
fn extended_key_usage_of(certificate: &[u8]) -> String {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return "unreadable".to_owned();
    };
    match parsed.extended_key_usage() {
        Ok(Some(usage)) if usage.value.other.iter().any(is_ek_usage) => "right, but that of a CA above it is another".to_owned(),
        Ok(Some(usage)) if usage.value.other.is_empty() => "that of another purpose".to_owned(),
        Ok(Some(usage)) => printable(&usage.value.other.iter().map(Oid::to_id_string).collect::<Vec<_>>().join(", ")),
        Ok(None) => "absent".to_owned(),
        Err(_) => "unreadable".to_owned(),
    }
}

/// The object identifier of an AlgorithmIdentifier's content.
fn algorithm_name(content: &[u8]) -> String {
    Oid::from_der(content).map_or_else(|_| data_encoding::HEXLOWER.encode(content), |(_, oid)| oid.to_string())
}
