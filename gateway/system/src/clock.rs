//! The only place where the gateway reads the clock. All other code gets the time as an argument.

use std::time::{Duration, SystemTime};

use rustls_pki_types::UnixTime;

/// Source of the current time.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    #[default]
    System,
    /// A fixed time, for tests.
    Fixed(u64),
}

impl Clock {
    #[must_use]
    pub fn now(self) -> UnixTime {
        let since_1970 = match self {
            // Before 1970 nothing is valid, which is what a clock that far off deserves.
            Self::System => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            Self::Fixed(seconds) => Duration::from_secs(seconds),
        };
        UnixTime::since_unix_epoch(since_1970)
    }
}

/// Formats a time by RFC 3339, in UTC, to the second: for logs and lists.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| format!("{seconds} s after 1970"))
}

/// Formats a duration as the command line takes it, in the largest exact unit: `30d`, `36h`, `90s`.
#[must_use]
pub fn lasting(seconds: u64) -> String {
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    match units.iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_a_duration_in_its_largest_unit() {
        for (seconds, said) in [
            (0, "0s"),
            (90, "90s"),
            (120, "2m"),
            (3600, "1h"),
            (86_400, "1d"),
            (129_600, "36h"),
            (2_592_000, "30d"),
        ] {
            assert_eq!(lasting(seconds), said);
        }
    }
}
