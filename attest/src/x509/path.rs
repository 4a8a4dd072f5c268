//! From a leaf towards its root: at each step one certificate at most, so that there is only one path to try.

use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

/// A certificate was sent in the place of a CA's, which it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotACa {
    /// Its subject. Not verified.
    pub subject: String,
    /// What it lacks.
    pub lacks: &'static str,
}

/// Those of the certificates `sent` that lead on from `leaf`: each one the issuer of the one before by name and, where both say it, by key
/// identifier (RFC 5280, 4.2.1.1). Ends where `is_anchor` knows the name of the next issuer, or where nothing leads on. Nothing is verified.
/// `None` for several CAs of one name with different keys that no key identifier tells apart: whoever sends those has work to give away.
///
/// # Errors
/// [`NotACa`] for a certificate that a step would need, and that has not the basicConstraints and key usage (keyCertSign) of a CA: RFC 5280,
/// 4.2.1.3 and 4.2.1.9, has both in every CA that conforms.
pub fn lead_on<'s>(
    leaf: &CertificateDer<'_>,
    sent: &[CertificateDer<'s>],
    is_anchor: impl Fn(&[u8]) -> bool,
    now: UnixTime,
) -> Result<Option<Vec<CertificateDer<'s>>>, NotACa> {
    let read = |der: &'_ CertificateDer<'_>| X509Certificate::from_der(der).ok().map(|(_, parsed)| Link::of(&parsed, now));
    let mut chain = Vec::new();
    let mut unused: Vec<(Link, &CertificateDer<'s>)> = sent.iter().filter_map(|der| Some((read(der)?, der))).collect();
    let Some(mut last) = read(leaf) else { return Ok(Some(chain)) };
    while !is_anchor(&last.issuer) {
        let (mut candidates, others): (Vec<_>, Vec<_>) = unused.into_iter().partition(|(link, _)| link.may_have_issued(&last));
        unused = others;
        if let Some((_, first_key)) = candidates.first().map(|(link, der)| (der, link.key.clone()))
            && candidates.iter().any(|(link, _)| link.key != first_key)
        {
            return Ok(None);
        }
        // The same CA, renewed: whichever is valid now.
        candidates.sort_by_key(|(link, _)| !link.is_valid);
        let Some((next, der)) = candidates.into_iter().next() else { break };
        if let Some(lacks) = next.lacks {
            return Err(NotACa {
                subject: next.subject_text,
                lacks,
            });
        }
        chain.push(der.clone());
        last = next;
    }
    Ok(Some(chain))
}

/// What of a certificate decides where it stands in a chain.
struct Link {
    subject: Vec<u8>,
    issuer: Vec<u8>,
    key: Vec<u8>,
    subject_key_id: Option<Vec<u8>>,
    authority_key_id: Option<Vec<u8>>,
    is_valid: bool,
    lacks: Option<&'static str>,
    subject_text: String,
}

impl Link {
    fn of(certificate: &X509Certificate<'_>, now: UnixTime) -> Self {
        let extensions = || certificate.extensions().iter().map(|extension| extension.parsed_extension());
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = certificate.validity();
        let is_ca = certificate
            .basic_constraints()
            .ok()
            .flatten()
            .is_some_and(|constraints| constraints.value.ca);
        let may_sign = certificate
            .key_usage()
            .ok()
            .flatten()
            .is_some_and(|usage| usage.value.key_cert_sign());
        Self {
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            key: certificate.public_key().raw.to_vec(),
            subject_key_id: extensions().find_map(|extension| match extension {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            }),
            authority_key_id: extensions().find_map(|extension| match extension {
                ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
                _ => None,
            }),
            is_valid: (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&seconds),
            lacks: match (is_ca, may_sign) {
                (false, _) => Some("basicConstraints with CA:TRUE"),
                (true, false) => Some("the key usage keyCertSign"),
                (true, true) => None,
            },
            subject_text: certificate.subject().to_string(),
        }
    }

    fn may_have_issued(&self, certificate: &Self) -> bool {
        let ids = self.subject_key_id.as_ref().zip(certificate.authority_key_id.as_ref());
        self.subject == certificate.issuer && ids.is_none_or(|(own, named)| own == named)
    }
}
