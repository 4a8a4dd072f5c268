//! Texts of an event in messages: bounded, with a mark where something was left out, and in words that say whose they are.

use std::fmt;

use crate::values::printable;

/// Maximum length of an event's text that a message has in full, in characters. With the words before it, that is as much as `attest-node`
/// shows of an answer.
pub(super) const WHOLE_LIMIT_CHARS: usize = 240;

/// Length of the beginning of a longer text that is shown, in characters. The rest of [`WHOLE_LIMIT_CHARS`] is its end, which has the text
/// that a person typed at a boot loader's menu.
const HEAD_CHARS: usize = 60;

/// Length of the text that is shown before and after the part that differs, in characters.
const CONTEXT_CHARS: usize = 40;

/// A part of a text of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt(Box<ExcerptContent>);

/// The content of an [`Excerpt`]: on the heap, so that refusals stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExcerptContent {
    /// Set if a part was cut off before the first part.
    is_cut_before: bool,
    parts: Vec<Box<str>>,
    /// Set if a part was cut off after the last part.
    is_cut_behind: bool,
}

impl Excerpt {
    /// All of a text; of a long one its beginning and its end.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let count = text.chars().count();
        let parts = match count <= WHOLE_LIMIT_CHARS {
            true => vec![chars(text, 0, count)],
            false => vec![
                chars(text, 0, HEAD_CHARS),
                chars(text, count - (WHOLE_LIMIT_CHARS - HEAD_CHARS), count),
            ],
        };
        Self(Box::new(ExcerptContent {
            is_cut_before: false,
            parts,
            is_cut_behind: false,
        }))
    }

    /// The part of a long text that differs from the one of `others` that is most like it, and which that is; `None` if all of the text is shown anyway, or none is
    /// like it.
    pub(super) fn differing_part<'o>(text: &str, others: impl Iterator<Item = &'o str>) -> Option<(&'o str, Self)> {
        let count = text.chars().count();
        if count <= WHOLE_LIMIT_CHARS {
            return None;
        }
        let alike = |other: &'o str| {
            let (before, behind) = common(text, other);
            (before.saturating_add(behind), before, behind, other)
        };
        let (_, before, behind, nearest) = others.map(alike).max().filter(|(alike, ..)| *alike > CONTEXT_CHARS)?;
        let from = before.saturating_sub(CONTEXT_CHARS);
        let to = count.saturating_sub(behind.saturating_sub(CONTEXT_CHARS)).max(from);
        let mut found = Self::new(&chars(text, from, to));
        found.0.is_cut_before = from > 0;
        found.0.is_cut_behind = to < count;
        Some((nearest, found))
    }

    /// The parts, without marks.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.parts.concat()
    }
}

/// Some of a text's characters, without control characters.
fn chars(text: &str, from: usize, to: usize) -> Box<str> {
    let part: String = text.chars().skip(from).take(to.saturating_sub(from)).collect();
    printable(&part, to.saturating_sub(from)).into_boxed_str()
}

/// Counts the characters that two texts begin with, and end with, in common; none is counted twice.
fn common(one: &str, other: &str) -> (usize, usize) {
    let same = |(one, other): &(char, char)| one == other;
    let before = one.chars().zip(other.chars()).take_while(same).count();
    let left = one.chars().count().min(other.chars().count()) - before;
    let behind = one.chars().rev().zip(other.chars().rev()).take(left).take_while(same).count();
    (before, behind)
}

impl fmt::Display for Excerpt {
    /// Writes marks outside of the quotation marks: no text can look as if something had been left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |is_cut| if is_cut { "…" } else { "" };
        f.write_str(mark(self.0.is_cut_before))?;
        for (place, part) in self.0.parts.iter().enumerate() {
            write!(f, "{}{part:?}", mark(place > 0))?;
        }
        f.write_str(mark(self.0.is_cut_behind))
    }
}

/// Knowledge about an event, apart from its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventDetail {
    Nothing,
    /// A text that the digest covers.
    Content(Excerpt),
    /// A text that is the node's own claim.
    NodesWord(Excerpt),
    /// A file that is GRUB's environment block, by the node's own claim.
    GrubEnvironment(Excerpt),
    /// Name of a section of a unified kernel image.
    Section(&'static str),
    /// An image that was authorised by its own hash.
    OwnHash,
}

impl fmt::Display for EventDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Content(text) => write!(f, " ({text})"),
            Self::NodesWord(text) | Self::GrubEnvironment(text) => write!(f, "; the node names it {text}"),
            Self::Section(section) => write!(f, " (.{section})"),
            Self::OwnHash => f.write_str(" (an image, by its own hash)"),
        }
    }
}
