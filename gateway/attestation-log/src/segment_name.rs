//! Name of a closed segment: it contains the time of its beginning, and chain and number of its first line.

use std::fmt;
use std::str::FromStr;

use attest_system::clock::rfc3339;
use serde::Deserialize;

use super::chain::link_of;

/// Number of digits of a chain's id in a name.
const CHAIN_CHARACTERS: usize = 8;
/// Digits for a segment whose first line is not in a chain.
const UNCHAINED: &str = "00000000";
/// Characters of a time: `20261122T204412Z`.
const TIME_CHARACTERS: usize = 16;

/// Name of a segment. Names sort like segments follow one another, unless the clock was set back in between.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Time of its first line.
    began: String,
    /// First digits of the id of that line's chain.
    chain: String,
    /// Number of that line in its chain.
    number: u64,
}

#[derive(Deserialize)]
struct SegmentTime {
    at: u64,
}

/// Returns the time at which a line was written, in seconds since 1970.
pub(super) fn written_at(line: &[u8]) -> Option<u64> {
    serde_json::from_slice::<SegmentTime>(line).ok().map(|when| when.at)
}

impl SegmentName {
    /// Parses the part of a file's name after the log's, with or without the ending of compressed files.
    #[must_use]
    pub fn parse(rest: &str) -> Option<Self> {
        let name = rest.strip_prefix('.')?;
        name.strip_suffix(".gz").unwrap_or(name).parse().ok()
    }

    /// Returns the name of a segment with this first line.
    pub(super) fn from_first_line(first: &[u8]) -> Self {
        let at = written_at(first).unwrap_or(0);
        let link = link_of(first).ok().flatten();
        Self {
            began: rfc3339(at).replace(['-', ':'], ""),
            chain: link.as_ref().map_or_else(|| UNCHAINED.to_owned(), |link| digits(&link.id)),
            number: link.map_or(0, |link| link.number),
        }
    }
}

fn digits(chain: &str) -> String {
    chain.chars().take(CHAIN_CHARACTERS).collect()
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { began, chain, number } = self;
        write!(f, "{began}-{chain}-{number:012}")
    }
}

impl FromStr for SegmentName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut part = || parts.next().ok_or(());
        let (began, chain, number) = (part()?, part()?, part()?);
        let is_time = began.len() == TIME_CHARACTERS && began.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'T' | b'Z'));
        let is_chain = chain.len() == CHAIN_CHARACTERS && chain.bytes().all(|byte| byte.is_ascii_hexdigit());
        let name = Self {
            began: began.to_owned(),
            chain: chain.to_owned(),
            number: number.parse().map_err(drop)?,
        };
        // No other text is that name.
        (is_time && is_chain && name.to_string() == text).then_some(name).ok_or(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn segment_name_holds_start_time_and_first_line() {
        let line = format!(
            r#"{{"at":1795380252,"chain":{{"id":"{}","number":7,"previous":"{}"}}}}"#,
            "0a1b2c3d".repeat(4),
            "0".repeat(64)
        );
        let name = SegmentName::from_first_line(line.as_bytes());
        assert_eq!(name.to_string(), "20261122T204412Z-0a1b2c3d-000000000007");
        assert_eq!(name.to_string().parse(), Ok(name.clone()));
        // Of an older release, or nothing that can be read.
        assert_eq!(
            SegmentName::from_first_line(br#"{"at":0}"#).to_string(),
            "19700101T000000Z-00000000-000000000000"
        );
        assert_eq!(
            SegmentName::from_first_line(b"x").to_string(),
            "19700101T000000Z-00000000-000000000000"
        );
    }

    #[test]
    fn segment_names_sort_by_line_number() {
        let name = |number: u64| {
            let (chain, previous) = ("0a".repeat(16), "0".repeat(64));
            let line = format!(r#"{{"at":7,"chain":{{"id":"{chain}","number":{number},"previous":"{previous}"}}}}"#);
            SegmentName::from_first_line(line.as_bytes())
        };
        let numbers = [1, 2, 9, 10, 99, 100, 101, 1_000, 999_999, 1_000_000, 999_999_999_999];
        for (before, after) in numbers.iter().zip(&numbers[1..]) {
            let [before, after] = [before, after].map(|number| name(*number));
            assert!(before < after && before.to_string() < after.to_string(), "{before} {after}");
        }
    }

    #[test]
    fn other_rotation_names_are_not_segment_names() {
        for other in [
            "",
            "1",
            "20261122",
            "2026-11-22",
            "20261122T204412Z-0a1b2c3d",
            "20261122T204412Z-0a1b2c3d-7",
            "20261122T204412Z-0a1b2c3d-+00000000007",
            "20261122T204412Z-0a1b2c3d-000000000007.1",
            "20261122T204412Z-0a1b2c3x-000000000007",
            "20261122T20441Z-0a1b2c3d-000000000007",
        ] {
            assert!(other.parse::<SegmentName>().is_err(), "{other}");
        }
    }
}
