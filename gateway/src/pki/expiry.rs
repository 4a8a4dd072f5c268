//! Warnings before certificates expire.

use std::collections::BTreeSet;

use attest_certificates::{Certificate, Fingerprint};
use attest_system::clock::rfc3339;

/// Time before its expiry at which warnings about a certificate begin, in seconds: two months.
pub const EXPIRY_WARNING_SECONDS: u64 = 60 * 24 * 3600;
/// Interval of these warnings, in seconds: once a day.
const WARN_EVERY_SECONDS: u64 = 24 * 3600;
/// Longest pause between checks, in seconds: the clock may be set.
const LOOK_EVERY_SECONDS: u64 = 3600;

/// Something to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    /// The certificate expires before long.
    Soon(String),
    /// The certificate has expired.
    Over(String),
}

/// Notices that have been given already.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    warned: Option<u64>,
    over: BTreeSet<Fingerprint>,
}

impl Expiry {
    /// Returns the notices that are due at `now` for certificates, each with its role. Expired ones get one notice, those that expire soon
    /// one a day.
    pub(super) fn notices(&mut self, certificates: &[(&str, &Certificate)], now: u64) -> Vec<Notice> {
        let due = self.warned.is_none_or(|warned| now >= warned.saturating_add(WARN_EVERY_SECONDS));
        let mut notices = Vec::new();
        let mut soon = false;
        for (role, certificate) in certificates {
            let text = format!("the {role} {} ({})", certificate.subject, certificate.fingerprint.short());
            let until = rfc3339(certificate.not_after);
            if now > certificate.not_after {
                if self.over.insert(certificate.fingerprint) {
                    notices.push(Notice::Over(format!(
                        "{text} expired at {until}: nodes refuse it; for the steps: `attest-gateway certificate list`"
                    )));
                }
            } else if now.saturating_add(EXPIRY_WARNING_SECONDS) > certificate.not_after {
                soon = true;
                if due {
                    notices.push(Notice::Soon(format!(
                        "{text} expires at {until}; for the steps: `attest-gateway certificate list`"
                    )));
                }
            }
        }
        if soon && due {
            self.warned = Some(now);
        }
        // What is not in use any longer need not be remembered.
        self.over
            .retain(|known| certificates.iter().any(|(_, certificate)| certificate.fingerprint == *known));
        notices
    }
}

/// Returns the seconds from `now` to the next check: until the next of these expires, but at most an hour.
pub(super) fn seconds_to_next_check(certificates: &[(&str, &Certificate)], now: u64) -> u64 {
    certificates
        .iter()
        .map(|(_, certificate)| certificate.not_after.saturating_add(1))
        .filter(|end| *end > now)
        .map(|end| end - now)
        .chain([LOOK_EVERY_SECONDS])
        .min()
        .unwrap_or(LOOK_EVERY_SECONDS)
        .min(LOOK_EVERY_SECONDS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest::UnixTime;

    use super::super::issue::{self, Algorithm, SigningKey};
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 86_400;

    fn ca(name: &str, days: u32) -> Certificate {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW));
        let key = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
        issue::authority(name, key, days, now).unwrap().certificate
    }

    #[test]
    fn warns_daily_before_expiry_and_once_after() {
        let (short, long) = (ca("short", 70), ca("long", 1000));
        let all = [("MCS certificate", &short), ("MCS CA", &long)];
        let mut expiry = Expiry::default();
        let mut check = |after: u64, soon: usize, over: usize| {
            let notices = expiry.notices(&all, NOW + after);
            let found = notices.iter().filter(|notice| matches!(notice, Notice::Soon(_))).count();
            assert_eq!((found, notices.len() - found), (soon, over), "after {after} s: {notices:?}");
        };
        check(0, 0, 0);
        check(10 * DAY, 0, 0);
        check(10 * DAY + 1, 1, 0);
        check(10 * DAY + 2, 0, 0);
        check(11 * DAY, 0, 0);
        check(11 * DAY + 1, 1, 0);
        check(70 * DAY, 1, 0);
        check(70 * DAY + 1, 0, 1);
        check(70 * DAY + 2, 0, 0);
        check(90 * DAY, 0, 0);
        check(1000 * DAY + 1, 0, 1);
    }

    #[test]
    fn checks_again_at_expiry_or_within_an_hour() {
        let ca = ca("short", 1);
        let check = |after: u64, expected: u64| assert_eq!(seconds_to_next_check(&[("MCS CA", &ca)], NOW + after), expected);
        check(0, 3600);
        check(DAY - 10, 11);
        check(DAY, 1);
        check(DAY + 1, 3600);
        assert_eq!(seconds_to_next_check(&[], NOW), 3600);
    }
}
