//! A certificate for people.

use rustls_pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::failure::printable;

/// Fields of a certificate, for messages. Nothing of it was verified.
#[derive(Default)]
pub(super) struct Described {
    pub(super) subject: String,
    pub(super) issuer: String,
    pub(super) names: String,
    pub(super) not_before: String,
    pub(super) not_after: String,
}

impl Described {
    pub(super) fn new(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return Self::default();
        };
        let moment = |moment: x509_parser::time::ASN1Time| rfc3339(moment.to_datetime());
        let names = certificate
            .subject_alternative_name()
            .ok()
            .flatten()
            .map(|san| san.value.general_names.iter().map(name).collect::<Vec<_>>().join(", "));
        Self {
            subject: printable(&certificate.subject().to_string()),
            issuer: printable(&certificate.issuer().to_string()),
            names: names
                .filter(|names| !names.is_empty())
                .map_or_else(|| "no name".to_owned(), |names| printable(&names)),
            not_before: moment(certificate.validity().not_before),
            not_after: moment(certificate.validity().not_after),
        }
    }
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(|bytes| std::net::IpAddr::from(bytes).to_string())
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(|bytes| std::net::IpAddr::from(bytes).to_string()))
            .unwrap_or_else(|_| "a malformed address".to_owned()),
        other => other.to_string(),
    }
}

/// A moment, in UTC.
pub(super) fn date(time: UnixTime) -> String {
    i64::try_from(time.as_secs())
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .map_or_else(|| "an invalid time".to_owned(), rfc3339)
}

fn rfc3339(moment: OffsetDateTime) -> String {
    moment.format(&Rfc3339).unwrap_or_else(|_| moment.unix_timestamp().to_string())
}
