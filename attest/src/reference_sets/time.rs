use std::fmt;

use chrono::{DateTime, Datelike, Timelike, Utc};
use serde::{Deserialize, Serialize};

/// A time, RFC 3339 in UTC, as files have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time {
    /// Time in seconds since 1970.
    pub at: u64,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.at).ok();
        let Some(time) = seconds.and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0)) else {
            return write!(f, "{} s", self.at);
        };
        let (year, month, day) = (time.year(), time.month(), time.day());
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            time.hour(),
            time.minute(),
            time.second()
        )
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        time.to_string()
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = DateTime::parse_from_rfc3339(&text)
            .ok()
            .and_then(|time| u64::try_from(time.timestamp()).ok());
        let time = read.map(|at| Self { at });
        // What could not be written again could not be compared by people either.
        time.ok_or_else(|| format!("{text:?} is not a time such as 2026-05-03T10:00:00Z"))
    }
}
