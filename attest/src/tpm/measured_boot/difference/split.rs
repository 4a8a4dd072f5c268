//! Position of the difference between two texts.

/// Length of the common beginning that is shown, in characters: it identifies the type of the event.
const HEAD_CHARS: usize = 24;

/// Length of the text that is shown directly before and after the part that differs, in characters.
const CONTEXT_CHARS: usize = 24;

/// Two texts, by what they begin with and end with that is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split<'t> {
    pub(super) before: &'t str,
    pub(super) one: &'t str,
    pub(super) other: &'t str,
    pub(super) behind: &'t str,
}

impl<'t> Split<'t> {
    pub(super) fn new(one: &'t str, other: &'t str) -> Self {
        let same = |(one, other): &(char, char)| one == other;
        let length = |(char, _): (char, char)| char.len_utf8();
        let before: usize = one.chars().zip(other.chars()).take_while(same).map(length).sum();
        let (before, one) = one.split_at_checked(before).unwrap_or(("", one));
        let other = other.get(before.len()..).unwrap_or_default();
        let behind: usize = one.chars().rev().zip(other.chars().rev()).take_while(same).map(length).sum();
        let (one, behind) = one.split_at_checked(one.len().saturating_sub(behind)).unwrap_or((one, ""));
        let other = other.get(..other.len().saturating_sub(behind.len())).unwrap_or_default();
        Self {
            before,
            one,
            other,
            behind,
        }
    }

    /// Returns both texts, each with the part that differs in full and little around it.
    pub(super) fn shortened(&self) -> (String, String) {
        let count = self.before.chars().count();
        let before = match count > HEAD_CHARS + CONTEXT_CHARS {
            true => {
                let head: String = self.before.chars().take(HEAD_CHARS).collect();
                let tail: String = self.before.chars().skip(count - CONTEXT_CHARS).collect();
                format!("{head}…{tail}")
            }
            false => self.before.to_owned(),
        };
        let behind = match self.behind.char_indices().nth(CONTEXT_CHARS) {
            Some((end, _)) => format!("{}…", self.behind.get(..end).unwrap_or_default()),
            None => self.behind.to_owned(),
        };
        (format!("{before}{}{behind}", self.one), format!("{before}{}{behind}", self.other))
    }
}
