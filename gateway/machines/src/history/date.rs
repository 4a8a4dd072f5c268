//! Dates as messages show them.

use attest_system::clock::rfc3339;

/// Formats the day, in UTC.
pub(super) fn date(at: u64) -> String {
    let mut text = rfc3339(at);
    if let Some(end) = text.find('T') {
        text.truncate(end);
    }
    text
}
