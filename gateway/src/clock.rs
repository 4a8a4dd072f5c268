//! The one place where the gateway reads the time. Everything else is told.

use std::time::{Duration, SystemTime};

use attest::UnixTime;

/// Where the time comes from.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// The system's clock.
    #[default]
    System,
    /// A time that stands still, for tests.
    Fixed(u64),
}

impl Clock {
    /// Now.
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

/// RFC 3339, in UTC, to the second: for logs and lists.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| format!("{seconds} s after 1970"))
}
