//! Failure of an attestation, in the form of the one line on the console.

use std::fmt;

use crate::codes::CODES;

/// Longest text of others repeated on the console, in characters: about two lines.
const QUOTED_LIMIT_CHARS: usize = 400;

/// Longest id of a record in a gateway's attestation log, in characters: a UUID has 36.
const ID_LIMIT_CHARS: usize = 64;

/// A failure, for the person at the console: the fact, a stable code, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable, machine-readable; a gateway's refusal keeps the gateway's code.
    pub code: String,
    /// The fact. Holds no secrets.
    pub reason: String,
    /// Next step for the person at the console.
    pub next_step: String,
    /// Text for the gateway when Ignition asks it for the config. For a gateway that refused: its code, and the id of its decision if it
    /// has given one. For a gateway that has configs and cannot attest: that it could not be reached.
    pub refusal: Option<String>,
}

impl Failure {
    /// A failure with one of [`CODES`].
    pub(crate) fn new(code: &'static str, reason: impl fmt::Display, next_step: impl Into<String>) -> Self {
        debug_assert!(CODES.iter().any(|advice| advice.code == code), "{code}");
        Self {
            code: code.to_owned(),
            reason: reason.to_string(),
            next_step: next_step.into(),
            refusal: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; next: {}", self.reason, self.code, self.next_step.trim_end_matches('.'))
    }
}

/// Text of others, safe for a console: one line, no control characters, not too long.
#[must_use]
pub fn printable(text: &str) -> String {
    let unsafe_on_a_line =
        |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut clean: String = text
        .chars()
        .take(QUOTED_LIMIT_CHARS)
        .map(|letter| if unsafe_on_a_line(letter) { ' ' } else { letter })
        .collect();
    if text.chars().nth(QUOTED_LIMIT_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

/// A gateway's code if it is one.
pub(crate) fn code_of(code: &str) -> String {
    let plain = code
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if plain && (1..=64).contains(&code.len()) {
        code.to_owned()
    } else {
        "refused".to_owned()
    }
}

/// Returns whether a text may be the id of a record: no other text of a gateway's goes into a header.
pub(crate) fn is_id(text: &str) -> bool {
    (1..=ID_LIMIT_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_stripped_of_control_characters() {
        assert_eq!(printable("plain ünïcode"), "plain ünïcode");
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{202e}d\u{7}"), "a [2Jb  c d ");
        assert_eq!(printable(&"x".repeat(QUOTED_LIMIT_CHARS)).chars().count(), QUOTED_LIMIT_CHARS);
        assert_eq!(printable(&"x".repeat(100_000)).chars().count(), QUOTED_LIMIT_CHARS + 1);
    }

    #[test]
    fn malformed_error_codes_become_refused() {
        assert_eq!(code_of("ek-not-endorsed"), "ek-not-endorsed");
        for wrong in ["", "A", "a b", "a\u{1b}", &"a".repeat(65)] {
            assert_eq!(code_of(wrong), "refused");
        }
    }

    #[test]
    fn codes_are_unique() {
        let unique: std::collections::BTreeSet<&str> = CODES.iter().map(|advice| advice.code).collect();
        assert_eq!(unique.len(), CODES.len());
    }
}
