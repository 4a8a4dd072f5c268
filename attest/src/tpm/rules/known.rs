//! What a message says of an event beside its digest: bounded, with a mark where it was cut, and in words that say whose they are.

use std::fmt;

use crate::values::printable;

/// Longest text of an event that a message has, in characters.
pub(super) const SAID_LIMIT_CHARS: usize = 120;

/// How a text begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    text: Box<str>,
    /// Whether there is more of it.
    is_cut: bool,
}

impl Beginning {
    /// Of any text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self {
            text: printable(text, SAID_LIMIT_CHARS).into_boxed_str(),
            is_cut: text.chars().nth(SAID_LIMIT_CHARS).is_some(),
        }
    }

    /// The text, without a mark.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As earlier releases showed it: who read it could not see that it was cut.
    pub(super) fn unmarked(&self) -> Self {
        Self {
            text: self.text.clone(),
            is_cut: false,
        }
    }
}

impl fmt::Display for Beginning {
    /// The mark stands behind the quotation marks: no text can look as if it had been cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.text, if self.is_cut { "…" } else { "" })
    }
}

/// What is known of an event beside its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Nothing,
    /// The digest covers it.
    Content(Beginning),
    /// The node's own word.
    NodesWord(Beginning),
    /// Which section of a unified kernel image it is.
    Section(&'static str),
    /// An image that was authorised by its own hash.
    OwnHash,
}

impl Known {
    pub(super) fn unmarked(&self) -> Self {
        match self {
            Self::Content(text) => Self::Content(text.unmarked()),
            Self::NodesWord(text) => Self::NodesWord(text.unmarked()),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Content(text) => write!(f, " ({text})"),
            Self::NodesWord(text) => write!(f, "; the node calls it {text}"),
            Self::Section(section) => write!(f, " (.{section})"),
            Self::OwnHash => f.write_str(" (an image, by its own hash)"),
        }
    }
}
