//! Clients that refuse the MCS certificate: the only way to find old pointers after a CA was replaced.

use attest_system::clock::rfc3339;
use rustls::AlertDescription;

/// Returns the alert by which a client refused the certificate, if that is the error. Go, and so Ignition, sends `bad_certificate` for any
/// reason.
pub(super) fn alert(error: &std::io::Error) -> Option<AlertDescription> {
    use AlertDescription::{BadCertificate, CertificateExpired, CertificateUnknown, UnknownCA, UnsupportedCertificate};
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(
            alert @ (BadCertificate | CertificateExpired | CertificateUnknown | UnknownCA | UnsupportedCertificate),
        ) => Some(*alert),
        _ => None,
    }
}

/// Returns probable causes of this alert for a certificate that is valid between these times, and remedies. `now` is the gateway's time.
pub(super) fn hint(alert: AlertDescription, (from, until): (u64, u64), now: u64) -> String {
    let dates = format!("{} to {}", rfc3339(from), rfc3339(until));
    if now > until {
        return format!("the certificate has expired, it was valid from {dates}; renew it: `attest-gateway certificate renew`");
    }
    if now < from {
        return format!(
            "the certificate is valid only from {dates}, and this gateway's clock says {}: set the gateway's clock",
            rfc3339(now)
        );
    }
    match alert {
        // What attest-node sends, for a certificate that is not valid yet too.
        AlertDescription::CertificateExpired => {
            format!("that machine's clock is wrong: set it; the certificate is valid from {dates}")
        }
        _ => format!(
            "that machine's pointer lacks the CA that signed the certificate, or names another host: write a new pointer (`attest-gateway pointer create`; for the CAs in use: `attest-gateway ca status`); or that machine's clock is outside {dates}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn explains_an_expired_alert_as_a_clock_problem() {
        let dates = (86_400, 2 * 86_400);
        let at = |now| super::hint(AlertDescription::CertificateExpired, dates, now);
        let hint = |alert| hint(alert, dates, 86_401);
        let clock = hint(AlertDescription::CertificateExpired);
        assert!(
            clock.contains("clock") && clock.contains("1970-01-02") && clock.contains("1970-01-03"),
            "{clock}"
        );
        assert!(!clock.contains("pointer") && !clock.contains("CA"), "{clock}");
        // The gateway's own certificate or clock is wrong, not the machine's.
        assert!(at(2 * 86_400 + 1).contains("`attest-gateway certificate renew`"));
        assert!(at(1).contains("set the gateway's clock"));
        // Ignition does not say which it is.
        let any = hint(AlertDescription::BadCertificate);
        assert!(
            any.contains("clock") && any.contains("pointer") && any.contains("1970-01-03"),
            "{any}"
        );
    }

    #[test]
    fn distinguishes_client_certificate_alerts_from_other_failures() {
        let check = |error: io::Error, expected: Option<AlertDescription>| assert_eq!(alert(&error), expected);
        let received = |alert| io::Error::new(io::ErrorKind::InvalidData, rustls::Error::AlertReceived(alert));
        check(received(AlertDescription::BadCertificate), Some(AlertDescription::BadCertificate));
        check(received(AlertDescription::UnknownCA), Some(AlertDescription::UnknownCA));
        check(received(AlertDescription::HandshakeFailure), None);
        check(io::Error::from(io::ErrorKind::UnexpectedEof), None);
        check(io::Error::other(rustls::Error::DecryptError), None);
    }
}
