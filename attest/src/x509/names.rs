//! Names in certificates, for messages.

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

/// Longest text that is taken over from a certificate, in characters.
const TEXT_LIMIT_CHARS: usize = 256;

/// A text from a certificate, fit for a log: bounded, without control characters.
pub(crate) fn printable(text: &str) -> String {
    crate::values::printable(text, TEXT_LIMIT_CHARS)
}

pub(crate) fn name_text(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}

/// The issuer that a certificate names, for messages about certificates that were not verified.
pub(crate) fn issuer_of(certificate: &[u8]) -> String {
    X509Certificate::from_der(certificate).map_or_else(|_| "(unreadable)".to_owned(), |(_, certificate)| name_text(certificate.issuer()))
}

/// The organisation that a name says first.
pub(crate) fn organisation(name: &X509Name<'_>) -> Option<String> {
    name.iter_organization().next()?.as_str().ok().map(printable)
}
