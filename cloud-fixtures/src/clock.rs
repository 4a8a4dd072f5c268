//! The only place that reads the clock; tests set it.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::macros::format_description;

/// Clock of a simulated service.
#[derive(Debug, Default)]
pub struct StandInClock(Mutex<Option<u64>>);

impl StandInClock {
    /// Returns the clock of the machine.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Stands still, at this time (seconds since 1970).
    #[must_use]
    pub fn fixed(seconds: u64) -> Self {
        Self(Mutex::new(Some(seconds)))
    }

    /// Stops it at this time (seconds since 1970).
    pub fn set(&self, seconds: u64) {
        *self.0.lock().unwrap() = Some(seconds);
    }

    /// Returns the time, in seconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.lock().unwrap().unwrap_or_else(now)
    }
}

/// Returns the machine's time, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Converts a time in seconds since 1970 to the form for certificates.
#[must_use]
pub fn date(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds.try_into().unwrap()).unwrap()
}

/// Formats a time such as `2027-01-15T08:00:00Z`.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    date(seconds).format(format).unwrap()
}

/// Formats a time like AWS, such as `20270115T080000Z`.
#[must_use]
pub fn compact(seconds: u64) -> String {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    date(seconds).format(format).unwrap()
}

/// Formats a time like Azure, such as `01/15/27 08:00:00 -0000`.
#[must_use]
pub fn american(seconds: u64) -> String {
    let format = format_description!("[month]/[day]/[year repr:last_two] [hour]:[minute]:[second] -0000");
    date(seconds).format(format).unwrap()
}

/// Formats a time such as `20270115-080000`, which Azure uses for a missing nonce.
#[must_use]
pub fn with_hyphen(seconds: u64) -> String {
    compact(seconds).replace('T', "-").trim_end_matches('Z').to_owned()
}
