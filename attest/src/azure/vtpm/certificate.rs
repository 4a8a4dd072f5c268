//! Azure's certificate for the AK of a vTPM.
//!
//! Real ones (2025 and 2026): RSA-2048, signed with SHA-256 or SHA-512, valid nine months to a year; subject
//! `CN=<12 hexadecimal digits>.TrustedVM.Azure.windows.net` or `….ConfidentialVM.…`, no subjectAltName; critical key usage
//! digitalSignature; extended key usage tcg-kp-AIKCertificate (2.23.133.8.3) beside one of Microsoft's own; basicConstraints with CA:FALSE
//! in some. Issued by `CN=Global Virtual TPM CA - 03` without any URL of the issuer, or by `CN=Azure Cloud Virtual TPM CA - NN` below
//! `CN=Azure Cloud Virtual TPM CA 2025` with such URLs; both lead to `CN=Azure Virtual TPM Root Certificate Authority 2023` (RSA-4096, until
//! 2048, SHA-256 E6:C5:96:B1:…:B0:0E:95). The CAs have the extended key usages of EK and AK certificates.

use rustls_pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use webpki::KeyUsage;
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use super::AzureVtpmError;
use crate::tpm::ak::AkPublic;
use crate::tpm::ek_certificate::{self, AK_CERTIFICATE, EkCertificateError, EkKey, EkRoots, EkRootsError};
use crate::values::HexDigest;
use crate::x509::names;

/// Suffix of the names of vTPMs, after the type of machine.
const DOMAIN: &str = ".azure.windows.net";
/// Longest label of a name, in bytes. Azure's have twelve.
const LABEL_LIMIT_BYTES: usize = 63;

/// Azure's CAs for the AKs of vTPMs, chosen by the administrator. If such a CA states what it issues, that must be AK certificates. A CA
/// that a node sends along must state it in any case: no administrator has chosen it for that. Each of Azure's intermediates does so.
#[derive(Debug, Clone, Default)]
pub struct AkRoots(EkRoots);

impl AkRoots {
    /// Takes `roots` as trusted, and `intermediates`, in any order, below them.
    ///
    /// # Errors
    /// [`EkRootsError`] for the first certificate that could not be used.
    pub fn new(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> Result<Self, EkRootsError> {
        ek_certificate::all_of(Self::load(roots, intermediates))
    }

    /// Like [`AkRoots::new`], but leaves out what cannot be used, which is always safe, and says why.
    #[must_use]
    pub fn load(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> (Self, Vec<EkRootsError>) {
        let (roots, refused) = EkRoots::load_for(AK_CERTIFICATE, roots, intermediates);
        (Self(roots), refused)
    }
}

/// An AK that Azure has certified as a vTPM's. Only [`verify_certificate`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AkCertificate {
    /// The twelve hexadecimal digits that identify the vTPM.
    name: String,
    /// Set if the machine is a confidential VM.
    confidential: bool,
    serial: String,
    issuer: String,
    root_subject: String,
    root_sha256: HexDigest,
    #[serde(skip)]
    key: EkKey,
}

impl AkCertificate {
    /// Returns the identifier of the vTPM in the certificate: twelve hexadecimal digits. It is not the vmId, nor part of it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the machine is a confidential VM, by the certificate's name.
    #[must_use]
    pub const fn is_confidential(&self) -> bool {
        self.confidential
    }

    /// SHA-256 over the root that the chain leads to.
    #[must_use]
    pub const fn root_sha256(&self) -> &HexDigest {
        &self.root_sha256
    }

    /// Checks that it is about this AK.
    ///
    /// # Errors
    /// [`AzureVtpmError::OtherKey`].
    pub fn check_key(&self, ak: &AkPublic) -> Result<(), AzureVtpmError> {
        match &self.key {
            EkKey::Rsa { n, e } if ak.is_rsa_key(n, e) => Ok(()),
            _ => Err(AzureVtpmError::OtherKey { ak: ak.name().to_string() }),
        }
    }
}

/// Verifies the certificate of an AK as it was read from the vTPM's NV memory, for use at `now`. `intermediates` may complete a chain, and are
/// never trusted by themselves. That the vTPM has the key is for the quote to say ([`super::verify`]).
///
/// # Errors
/// [`AzureVtpmError::Certificate`], [`AzureVtpmError::Usage`] and [`AzureVtpmError::Name`].
pub fn verify_certificate(
    certificate: &[u8],
    intermediates: &[&[u8]],
    roots: &AkRoots,
    now: UnixTime,
) -> Result<AkCertificate, AzureVtpmError> {
    let der = ek_certificate::without_padding(certificate)?;
    let (_, unverified) = X509Certificate::from_der(der).map_err(malformed)?;
    // What it is for costs nothing to see, and a certificate for something else need not be verified.
    check_usage(&unverified)?;
    let usage = KeyUsage::required(AK_CERTIFICATE.der);
    let path = ek_certificate::verify_path(certificate, intermediates, &roots.0, usage, now).map_err(ak_certificate_error)?;

    // From here on the bytes are what Azure signed.
    let (_, leaf) = X509Certificate::from_der(path.leaf).map_err(malformed)?;
    let (name, confidential) = name_of(&leaf)?;
    Ok(AkCertificate {
        name,
        confidential,
        serial: leaf.raw_serial_as_string(),
        issuer: names::name_text(leaf.issuer()),
        root_subject: path.root_subject.to_owned(),
        root_sha256: path.root_sha256.into(),
        key: ek_certificate::unverified_key(path.leaf)?,
    })
}

fn malformed(problem: impl ToString) -> AzureVtpmError {
    EkCertificateError::Malformed {
        problem: problem.to_string(),
    }
    .into()
}

/// Converts path validation's error about EK certificates to one about an AK's certificate.
fn ak_certificate_error(error: EkCertificateError) -> AzureVtpmError {
    match error {
        EkCertificateError::NoRoots { issuer } => EkCertificateError::UnknownIssuer { issuer }.into(),
        EkCertificateError::ExtendedKeyUsage { .. } => AzureVtpmError::Usage {
            found: "that of a CA above it, which has another extended key usage,".to_owned(),
        },
        other => other.into(),
    }
}

/// The certificate has to be an AK's, and of nothing that could certify others.
fn check_usage(leaf: &X509Certificate<'_>) -> Result<(), AzureVtpmError> {
    let refused = |found: &str| Err(AzureVtpmError::Usage { found: found.to_owned() });
    let is_ca = leaf.basic_constraints().map_err(malformed)?;
    if is_ca.is_some_and(|constraints| constraints.value.ca) {
        return refused("that of a CA");
    }
    let is_ak = |oid: &Oid<'_>| oid.as_bytes() == AK_CERTIFICATE.der;
    let usage = leaf.extended_key_usage().map_err(malformed)?;
    if !usage.is_some_and(|usage| usage.value.other.iter().any(is_ak)) {
        return refused("one without the extended key usage of AKs");
    }
    match leaf.key_usage().map_err(malformed)? {
        Some(usage) if usage.value.digital_signature() => Ok(()),
        _ => refused("one without the key usage digitalSignature"),
    }
}

/// The vTPM's name, and whether it is that of a confidential VM.
fn name_of(leaf: &X509Certificate<'_>) -> Result<(String, bool), AzureVtpmError> {
    let subject = leaf.subject();
    let refused = || AzureVtpmError::Name {
        found: names::name_text(subject),
    };
    let common_name = only_common_name(subject).ok_or_else(refused)?.to_ascii_lowercase();
    let (label, kind) = common_name
        .strip_suffix(DOMAIN)
        .and_then(|machine| machine.split_once('.'))
        .ok_or_else(refused)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if label.is_empty() || label.len() > LABEL_LIMIT_BYTES || !label.bytes().all(plain) {
        return Err(refused());
    }
    match kind {
        "trustedvm" => Ok((label.to_owned(), false)),
        "confidentialvm" => Ok((label.to_owned(), true)),
        _ => Err(refused()),
    }
}

fn only_common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    let mut names = subject.iter_common_name();
    let only = names.next()?.as_str().ok()?;
    names.next().is_none().then_some(only)
}
