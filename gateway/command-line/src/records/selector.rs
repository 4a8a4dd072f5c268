//! Selector for a single record of the log, from the command line.

use super::RecordFields;
use crate::recorded::ID_LEAST;

/// A record, by id or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordSelector {
    Id(String),
    Number(u64),
}

/// Parses the selector of a record.
///
/// # Errors
/// A description of the expected forms.
pub fn record(text: &str) -> Result<RecordSelector, String> {
    if text.len() < ID_LEAST
        && let Ok(number) = text.parse()
    {
        return Ok(RecordSelector::Number(number));
    }
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() >= ID_LEAST && text.bytes().all(hex) {
        return Ok(RecordSelector::Id(text.to_owned()));
    }
    Err("expected at least the first 8 of an id's 32 hexadecimal digits, or a number in a chain of at most 7 digits".to_owned())
}

impl RecordSelector {
    /// Returns whether a record is this one.
    #[must_use]
    pub fn is(&self, fields: &RecordFields) -> bool {
        match self {
            Self::Id(begin) => fields.id.starts_with(begin.as_str()),
            Self::Number(number) => fields.chain.as_ref().is_some_and(|place| place.number == *number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_selected_by_id_or_number() {
        assert_eq!(record("5021"), Ok(RecordSelector::Number(5021)));
        assert_eq!(record("12345678"), Ok(RecordSelector::Id("12345678".to_owned())));
        let id = "127e54f3ecdd6c496ca8b038a5da45d6";
        assert_eq!(record(id), Ok(RecordSelector::Id(id.to_owned())));
        for wrong in ["", "127e54", "127E54F3", "-1", "127e54f3 ", "worker-7"] {
            assert!(record(wrong).is_err(), "{wrong:?}");
        }
    }
}
