//! Clients that refuse the MCS certificate: how old pointers are found after a CA was replaced, as nothing else is known of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use rustls::AlertDescription;

use crate::clock::rfc3339;

/// How long nothing more is said of a peer, in seconds: Ignition tries again every few seconds, for ever.
const QUIET_SECONDS: u64 = 60;
/// Most peers that are remembered. Of more at once nothing is said, only counted: anybody can send alerts.
const PEER_LIMIT: usize = 1024;

/// The alert by which a client refused the certificate, if that is what went wrong. Go, and so Ignition, sends `bad_certificate` whatever
/// the reason is.
pub(super) fn alert(error: &std::io::Error) -> Option<AlertDescription> {
    use AlertDescription::{BadCertificate, CertificateExpired, CertificateUnknown, UnknownCA, UnsupportedCertificate};
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(
            alert @ (BadCertificate | CertificateExpired | CertificateUnknown | UnknownCA | UnsupportedCertificate),
        ) => Some(*alert),
        _ => None,
    }
}

/// What a client that sent this alert may have against a certificate that is valid between these times, and what helps.
pub(super) fn hint(alert: AlertDescription, (from, until): (u64, u64)) -> String {
    let dates = format!("{} to {}", rfc3339(from), rfc3339(until));
    match alert {
        // What attest-node sends, for a certificate that is not valid yet too.
        AlertDescription::CertificateExpired => {
            format!("by its clock it is not valid now: set that machine's clock, the certificate is valid from {dates}")
        }
        _ => format!(
            "its pointer lacks the CA that signed it, or names the gateway otherwise than the certificate does: give it a new pointer (`attest-gateway pointer`, `ca status`); or its clock is not within {dates}"
        ),
    }
}

/// Of whom something was said lately.
#[derive(Debug, Default)]
pub(super) struct Refused {
    said: Mutex<HashMap<IpAddr, u64>>,
}

impl Refused {
    /// Whether nothing was said of this peer in the minute before `now` (seconds since 1970).
    pub(super) fn is_worth_saying(&self, peer: IpAddr, now: u64) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = |when: &u64| now.abs_diff(*when) < QUIET_SECONDS;
        if said.get(&peer).is_some_and(lately) {
            return false;
        }
        if said.len() >= PEER_LIMIT {
            said.retain(|_, when| lately(when));
        }
        if said.len() >= PEER_LIMIT {
            return false;
        }
        said.insert(peer, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_peer_is_named_once_a_minute_and_not_too_many() {
        let refused = Refused::default();
        let peer = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        assert!(refused.is_worth_saying(peer(1), 1000));
        assert!(!refused.is_worth_saying(peer(1), 1059));
        assert!(refused.is_worth_saying(peer(2), 1059));
        assert!(refused.is_worth_saying(peer(1), 1060));
        // A clock that was set back keeps nobody quiet for long.
        assert!(refused.is_worth_saying(peer(1), 10));
        for number in 0..5000 {
            refused.is_worth_saying(peer(number), 2000);
        }
        assert!(refused.said.lock().unwrap().len() <= PEER_LIMIT);
        assert!(!refused.is_worth_saying(peer(9999), 2000));
        assert!(refused.is_worth_saying(peer(9999), 2060));
    }

    #[test]
    fn a_clock_that_is_wrong_is_no_missing_ca() {
        let hint = |alert| hint(alert, (86_400, 2 * 86_400));
        let clock = hint(AlertDescription::CertificateExpired);
        assert!(
            clock.contains("clock") && clock.contains("1970-01-02") && clock.contains("1970-01-03"),
            "{clock}"
        );
        assert!(!clock.contains("pointer") && !clock.contains("CA"), "{clock}");
        // Ignition does not say which it is.
        let any = hint(AlertDescription::BadCertificate);
        assert!(
            any.contains("clock") && any.contains("pointer") && any.contains("1970-01-03"),
            "{any}"
        );
    }

    #[test]
    fn an_alert_of_a_client_is_told_from_other_failures() {
        let check = |error: io::Error, expected: Option<AlertDescription>| assert_eq!(alert(&error), expected);
        let received = |alert| io::Error::new(io::ErrorKind::InvalidData, rustls::Error::AlertReceived(alert));
        check(received(AlertDescription::BadCertificate), Some(AlertDescription::BadCertificate));
        check(received(AlertDescription::UnknownCA), Some(AlertDescription::UnknownCA));
        check(received(AlertDescription::HandshakeFailure), None);
        check(io::Error::from(io::ErrorKind::UnexpectedEof), None);
        check(io::Error::other(rustls::Error::DecryptError), None);
    }
}
