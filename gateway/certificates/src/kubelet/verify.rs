use super::subject::{name_text, node_name};
use attest::UnixTime;
use attest::x509::{self, SignatureBudget, Terms};
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::CertificateDer;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Authorities, CERTIFICATE_LIMIT_BYTES, CHAIN_LIMIT_CERTIFICATES, KubeletError, PresentedCertificate};

/// Maximum number of signatures verified for one client. Otherwise three CAs with one name, each of which could have issued every other,
/// would have a path tried for each order. A kubelet's chain has two or three signatures. A CA that was renewed under its name with another
/// key costs one more.
const SIGNATURES_LIMIT: usize = 8;

/// A certificate that the cluster has signed for the kubelet of one node. Only [`verify`] makes one.
#[derive(Debug, Clone)]
pub struct VerifiedKubelet {
    name: String,
    subject: String,
    issuer: String,
    serial: String,
    not_after: u64,
    path: Vec<CertificateDer<'static>>,
}

impl VerifiedKubelet {
    /// Returns the node's name, without its prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the node's identity, as in records.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("kubelet:{}", self.name)
    }

    /// Returns the certificate's subject, as text.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the certificate's issuer, as text.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the certificate's serial number, hexadecimal with colons.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns the last second at which the certificate is valid, since 1970.
    #[must_use]
    pub const fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Returns the verified chain, leaf first, without the CA at its end and without unneeded certificates.
    #[must_use]
    pub fn path(&self) -> &[CertificateDer<'static>] {
        &self.path
    }
}

/// Verifies that a client has presented the certificate of a node's kubelet, by these CAs, at that time.
///
/// # Errors
/// [`KubeletError`], one for each fact.
pub fn verify(presented: &PresentedCertificate, authorities: &Authorities, now: UnixTime) -> Result<VerifiedKubelet, KubeletError> {
    if presented.found > CHAIN_LIMIT_CERTIFICATES {
        return Err(KubeletError::TooMany { found: presented.found });
    }
    if presented.largest_bytes > CERTIFICATE_LIMIT_BYTES {
        return Err(KubeletError::TooLarge {
            found: presented.largest_bytes,
        });
    }
    let (leaf, intermediates) = presented.chain.split_first().ok_or(KubeletError::Empty)?;
    let malformed = |problem: String| KubeletError::Malformed { problem };
    let end_entity = EndEntityCert::try_from(leaf).map_err(|error| malformed(error.to_string()))?;
    let anchors = authorities.anchors(now);
    let terms = Terms {
        signatures: aws_lc_rs::default_provider().signature_verification_algorithms.all,
        usage: KeyUsage::client_auth(),
        budget: &SignatureBudget::new(SIGNATURES_LIMIT),
        now,
    };
    let path = anchors.validate(&end_entity, intermediates, terms, x509::no_more);
    let between = path
        .map_err(|problem| KubeletError::from_path_problem(problem, leaf, now))?
        .intermediates;
    let path = std::iter::once(leaf.clone()).chain(between).collect();

    // From here on the bytes are what a CA of the cluster has signed.
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| malformed(error.to_string()))?;
    check_usage(&parsed)?;
    let subject = name_text(parsed.subject());
    let name = match node_name(parsed.subject()) {
        Ok(name) => name,
        Err(problem) => return Err(KubeletError::NotANode { subject, problem, path }),
    };
    Ok(VerifiedKubelet {
        name,
        subject,
        issuer: name_text(parsed.issuer()),
        serial: parsed.raw_serial_as_string(),
        not_after: u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
        path,
    })
}

/// Checks that the leaf has the extended key usage of clients: webpki accepts a leaf without any.
fn check_usage(leaf: &X509Certificate<'_>) -> Result<(), KubeletError> {
    let usage = leaf.extended_key_usage().map_err(|error| KubeletError::Malformed {
        problem: error.to_string(),
    })?;
    if usage.is_some_and(|usage| usage.value.client_auth) {
        return Ok(());
    }
    Err(KubeletError::Usage { found: "none".to_owned() })
}
