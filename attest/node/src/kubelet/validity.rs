//! Validity of certificates, as the kubelet checks its own.

use std::time::Duration;

use x509_parser::prelude::FromDer as _;

/// Returns whether a certificate (DER) has not expired at `now`, the time since 1970. Like the kubelet, it ignores notBefore.
pub(super) fn is_valid(certificate: &[u8], now: Duration) -> bool {
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return false;
    };
    i64::try_from(now.as_secs()).is_ok_and(|now| now < certificate.validity().not_after.timestamp())
}
