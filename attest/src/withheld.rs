//! Details that a refusal withholds from the client.

use std::fmt;

/// Values that are named; of more, how many.
const NAMED_LIMIT: usize = 8;

/// The values that a pool accepts, in words for the log and the record. A client could learn from them which accounts, roles and images are
/// the cluster's, and which digests a bought TPM must be extended with. It has no `Display`, so that no error's text can contain it: only
/// [`Reject::detail`](crate::Reject::detail) reads it.
#[derive(Clone, PartialEq, Eq)]
pub struct Withheld {
    text: Box<str>,
}

impl Withheld {
    /// Describes one of these values.
    pub fn one_of<T: fmt::Display>(values: &[T]) -> Self {
        Self::list(values, ", ")
    }

    /// Describes one of these values, each of which takes several words.
    pub fn alternatives<T: fmt::Display>(values: &[T]) -> Self {
        Self::list(values, ", or ")
    }

    /// At most so many seconds.
    #[must_use]
    pub fn at_most_seconds(limit: u64) -> Self {
        Self::from_text(format!("at most {limit} s"))
    }

    /// Wraps a description that exists only in words.
    pub fn from_text(words: impl Into<String>) -> Self {
        Self {
            text: words.into().into_boxed_str(),
        }
    }

    /// Returns the same description with an addition.
    #[must_use]
    pub(crate) fn and(&self, more: &str) -> Self {
        Self::from_text(format!("{}; {more}", self.text))
    }

    fn list<T: fmt::Display>(values: &[T], separator: &str) -> Self {
        let named: Vec<String> = values.iter().take(NAMED_LIMIT).map(ToString::to_string).collect();
        let named = named.join(separator);
        Self::from_text(match values.len().saturating_sub(NAMED_LIMIT) {
            _ if values.is_empty() => "none".to_owned(),
            0 => named,
            more => format!("{named} or {more} more"),
        })
    }

    /// The words, for the log and the record.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }
}

/// Debug output ends in messages too.
impl fmt::Debug for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Withheld")
    }
}
