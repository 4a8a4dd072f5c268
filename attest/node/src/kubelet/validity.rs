//! Validity of certificates, as the kubelet sees it.

use std::time::Duration;

use x509_parser::prelude::FromDer as _;

/// Whether a certificate (DER) is good at a time since 1970, as the kubelet looks at its own: it is not over.
pub(super) fn is_valid(certificate: &[u8], now: Duration) -> bool {
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return false;
    };
    i64::try_from(now.as_secs()).is_ok_and(|now| now < certificate.validity().not_after.timestamp())
}
