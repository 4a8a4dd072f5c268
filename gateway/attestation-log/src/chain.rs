//! Each line says which it is and carries the hash of the one before it: what is taken out, put in or altered later shows.

use std::fmt;

use aws_lc_rs::digest::{self, SHA256, SHA256_OUTPUT_LEN};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::journal_error::JournalError;
use super::record::decision_id;

/// SHA-256 of a line's bytes, without its line feed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineHash([u8; SHA256_OUTPUT_LEN]);

impl LineHash {
    /// What the first line of a chain has in place of the one before it.
    pub const NONE: Self = Self([0; SHA256_OUTPUT_LEN]);

    #[must_use]
    pub fn of(line: &[u8]) -> Self {
        Self::from_digest(digest::digest(&SHA256, line))
    }

    pub(super) fn from_digest(digest: impl AsRef<[u8]>) -> Self {
        let mut hash = Self::NONE;
        hash.0.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        hash
    }
}

impl fmt::Display for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for LineHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LineHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        let hash = bytes.and_then(|bytes| bytes.try_into().ok()).map(Self);
        hash.ok_or_else(|| de::Error::custom("expected 64 hexadecimal digits, lower case"))
    }
}

/// A line's place in its chain: the last member of the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Which chain: 128 random bits, hexadecimal. It names the log of one gateway's state.
    pub id: String,
    /// Which line of it, from 1.
    pub number: u64,
    /// The hash of the line before it; of the first line, [`LineHash::NONE`].
    pub previous: LineHash,
    /// Of the first line: why a chain begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Begins>,
}

/// How a chain begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begins {
    pub why: Why,
    /// What stands before it in its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
    /// Lines that the gateway had signed, and that are not in its log any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Point>,
}

/// Why a chain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// There was no log.
    New,
    /// The last line of the log is of no chain: an older release wrote it.
    Unchained,
    /// The log does not hold what the gateway had signed.
    Incomplete,
}

/// A line of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Which chain.
    pub chain: String,
    pub number: u64,
    /// The hash of the line.
    pub sha256: LineHash,
}

/// The beginning of a file: it is what it was when a chain began after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: LineHash,
}

/// Lines of a chain that no checkpoint held when their gateway started, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    pub first: u64,
    pub last: u64,
}

/// Of a line, its place.
#[derive(Deserialize)]
struct Linked {
    chain: Option<Link>,
}

/// A line's place in its chain, if it has one.
///
/// # Errors
/// What is no object of JSON, or has a place that is none.
pub fn link_of(line: &[u8]) -> Result<Option<Link>, serde_json::Error> {
    serde_json::from_slice::<Linked>(line).map(|line| line.chain)
}

/// How far a chain has come.
#[derive(Debug, Clone)]
pub struct Chain {
    id: String,
    number: u64,
    head: LineHash,
    /// Whether its last line is a checkpoint.
    signed: bool,
    /// What stood at its end when it was opened, and is not signed yet.
    found: Option<Found>,
    begins: Option<Begins>,
}

impl Chain {
    /// One whose first line comes next.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without random bytes.
    pub fn begin(begins: Begins) -> Result<Self, JournalError> {
        Ok(Self {
            id: decision_id().ok_or(JournalError::Failed)?,
            number: 0,
            head: LineHash::NONE,
            signed: false,
            found: None,
            begins: Some(begins),
        })
    }

    /// The one that `last` is the last line of; `None` if it is of none.
    #[must_use]
    pub fn after(last: &[u8]) -> Option<Self> {
        let link = link_of(last).ok()??;
        Some(Self {
            id: link.id,
            number: link.number,
            head: LineHash::of(last),
            signed: false,
            found: None,
            begins: None,
        })
    }

    /// With what stands at its end since its last checkpoint; nothing, if that is its last line.
    pub(super) fn with_found(self, found: Option<Found>) -> Self {
        let signed = found.is_none();
        Self { signed, found, ..self }
    }

    /// What stood at its end when it was opened, if no checkpoint was made since.
    pub(super) const fn found(&self) -> Option<Found> {
        self.found
    }

    /// Whether nothing was written after its last checkpoint.
    pub(super) const fn is_signed(&self) -> bool {
        self.signed
    }

    /// Which chain it is, how many lines it has, and the hash of the last of them.
    #[must_use]
    pub fn head(&self) -> (&str, u64, LineHash) {
        (&self.id, self.number, self.head)
    }

    /// A record, an object of JSON, as the chain's next line, with its line feed.
    ///
    /// # Errors
    /// [`JournalError`], if that is no object of JSON.
    pub fn link(&mut self, record: &[u8]) -> Result<Vec<u8>, JournalError> {
        let link = Link {
            id: self.id.clone(),
            number: self.number.saturating_add(1),
            previous: self.head,
            begins: self.begins.clone(),
        };
        let open = record.strip_suffix(b"}").ok_or(JournalError::Failed)?;
        let mut line = Vec::with_capacity(record.len() + LINK_BYTES);
        line.extend_from_slice(open);
        line.extend_from_slice(b",\"chain\":");
        serde_json::to_writer(&mut line, &link)?;
        line.push(b'}');
        self.number = link.number;
        self.head = LineHash::of(&line);
        self.begins = None;
        self.signed = false;
        line.push(b'\n');
        Ok(line)
    }

    /// As [`Chain::link`], for a checkpoint.
    pub(super) fn link_checkpoint(&mut self, record: &[u8]) -> Result<Vec<u8>, JournalError> {
        let line = self.link(record)?;
        self.signed = true;
        self.found = None;
        Ok(line)
    }
}

/// About as much as a line's place takes.
const LINK_BYTES: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn new() -> Chain {
        let begins = Begins {
            why: Why::New,
            before: None,
            after: Vec::new(),
        };
        Chain::begin(begins).unwrap()
    }

    fn whole(line: &[u8]) -> &[u8] {
        line.strip_suffix(b"\n").unwrap()
    }

    #[test]
    fn a_line_has_its_place_last_and_names_the_line_before_it() {
        let mut chain = new();
        let first = chain.link(br#"{"id":"a"}"#).unwrap();
        let second = chain.link(br#"{"id":"b"}"#).unwrap();
        let text = String::from_utf8(first.clone()).unwrap();
        let none = "0".repeat(64);
        let id = &chain.id;
        let place = format!(r#","chain":{{"id":"{id}","number":1,"previous":"{none}","begins":{{"why":"new"}}}}}}"#);
        assert_eq!(text, format!("{{\"id\":\"a\"{place}\n"));
        let link = link_of(whole(&second)).unwrap().unwrap();
        assert_eq!((link.number, link.previous), (2, LineHash::of(whole(&first))));
        assert_eq!((link.id.as_str(), link.begins), (id.as_str(), None));
        // Whoever finds that line at the log's end goes on as this one does.
        let mut found = Chain::after(whole(&second)).unwrap();
        assert_eq!(found.link(b"{\"id\":\"c\"}").unwrap(), chain.link(b"{\"id\":\"c\"}").unwrap());
    }

    #[test]
    fn what_has_no_place_is_of_no_chain() {
        for line in [
            "",
            "x",
            "{}",
            r#"{"chain":null}"#,
            r#"{"chain":{}}"#,
            r#"{"chain":{"id":"a","number":-1,"previous":"00"}}"#,
        ] {
            assert!(Chain::after(line.as_bytes()).is_none(), "{line}");
        }
        let place = |previous: &str| format!(r#"{{"chain":{{"id":"a","number":1,"previous":"{previous}"}}}}"#);
        for (previous, good) in [("0a".repeat(32), true), ("0A".repeat(32), false), ("0a".repeat(48), false)] {
            assert_eq!(link_of(place(&previous).as_bytes()).is_ok(), good, "{previous}");
        }
    }
}
