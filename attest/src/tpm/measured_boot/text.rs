//! Texts that a log has, bounded.

use std::fmt;

use serde::Serialize;

use crate::values::as_printable;

/// Maximum length of a text that is stored of one event, in bytes: Linux's limit for its command line on x86 (COMMAND_LINE_SIZE). GRUB
/// measures longer menu entries; their beginning and their digest are stored.
pub const TEXT_LIMIT_BYTES: usize = 2048;

/// A text of a log. If the text is too long, or not Unicode, only the beginning is stored. In JSON that is not a string, so comparisons of
/// strings cannot mistake it for the whole.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LogText {
    /// The complete text of the event.
    Whole(String),
    /// The beginning of the text; for people only.
    Beginning {
        begins: String,
        /// Length of the whole text, in bytes.
        bytes: usize,
    },
}

impl LogText {
    /// A text in UTF-8.
    #[must_use]
    pub fn utf8(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.len() <= TEXT_LIMIT_BYTES => Self::Whole(text.to_owned()),
            _ => {
                let begins = bytes.get(..TEXT_LIMIT_BYTES).unwrap_or(bytes);
                Self::Beginning {
                    begins: bounded(String::from_utf8_lossy(begins).into_owned()),
                    bytes: bytes.len(),
                }
            }
        }
    }

    /// A text in UTF-16, little-endian, as UEFI has it.
    #[must_use]
    pub fn utf16(bytes: &[u8]) -> Self {
        let (units, odd) = bytes.as_chunks::<2>();
        let units = || units.iter().map(|unit| u16::from_le_bytes(*unit));
        let whole = || char::decode_utf16(units().take(TEXT_LIMIT_BYTES + 1)).collect::<Result<String, _>>();
        match odd.is_empty().then(whole) {
            Some(Ok(text)) if text.len() <= TEXT_LIMIT_BYTES => Self::Whole(text),
            _ => {
                let begins = char::decode_utf16(units().take(TEXT_LIMIT_BYTES));
                Self::Beginning {
                    begins: bounded(begins.map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()),
                    bytes: bytes.len(),
                }
            }
        }
    }

    /// The text, if this is all of it.
    #[must_use]
    pub fn whole(&self) -> Option<&str> {
        match self {
            Self::Whole(text) => Some(text),
            Self::Beginning { .. } => None,
        }
    }
}

/// Cut to the limit, between characters.
fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_LIMIT_BYTES));
    text
}

impl fmt::Display for LogText {
    /// Formats the text for people: without control characters, and with a mark if its end was cut off.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(text) => f.write_str(&as_printable(text, TEXT_LIMIT_BYTES)),
            Self::Beginning { begins, bytes } => {
                write!(f, "{}… ({bytes} bytes)", as_printable(begins, TEXT_LIMIT_BYTES))
            }
        }
    }
}

impl fmt::Debug for LogText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
