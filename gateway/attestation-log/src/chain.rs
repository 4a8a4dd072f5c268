//! Hash chain of the log: each line has its number and the hash of the line before it. So lines that are removed, inserted or altered later
//! show.

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
    /// Value in the first line of a chain, in place of the previous line's hash.
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
    /// Identifier of the chain: 128 random bits, hexadecimal. It names the log of one gateway's state.
    pub id: String,
    /// Number of the line in its chain, from 1.
    pub number: u64,
    /// Hash of the line before it; [`LineHash::NONE`] in the first line.
    pub previous: LineHash,
    /// In the first line: the circumstances of the chain's beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<ChainBeginning>,
}

/// Beginning of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainBeginning {
    pub why: Why,
    /// Contents of its file before the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<LinesBefore>,
    /// Lines that the gateway had signed, and that are missing from its log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Point>,
}

/// Reason for the beginning of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// There was no log.
    New,
    /// The last line of the log is not in a chain: an older release wrote it.
    Unchained,
    /// The log does not hold what the gateway had signed.
    Incomplete,
}

/// A line of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Identifier of the chain.
    pub chain: String,
    pub number: u64,
    /// Hash of the line.
    pub sha256: LineHash,
}

/// Beginning of a file that must stay as it was when a chain began after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinesBefore {
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: LineHash,
}

/// Lines of a chain that no checkpoint covered when their gateway started, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UncoveredLines {
    pub first: u64,
    pub last: u64,
}

/// Member of a line with its place in the chain.
#[derive(Deserialize)]
struct Linked {
    chain: Option<Link>,
}

/// Parses a line's place in its chain, if it has one.
///
/// # Errors
/// The line is not a JSON object, or its place is malformed.
pub fn link_of(line: &[u8]) -> Result<Option<Link>, serde_json::Error> {
    serde_json::from_slice::<Linked>(line).map(|line| line.chain)
}

/// State of a chain at its last line.
#[derive(Debug, Clone)]
pub struct ChainProgress {
    id: String,
    number: u64,
    head: LineHash,
    /// Set if its last line is a checkpoint.
    signed: bool,
    /// Unsigned lines that were at its end when it was opened, until they are signed.
    found: Option<UncoveredLines>,
    begins: Option<ChainBeginning>,
}

impl ChainProgress {
    /// Begins a chain whose first line comes next.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without random bytes.
    pub fn begin(begins: ChainBeginning) -> Result<Self, JournalError> {
        Ok(Self {
            id: decision_id().ok_or(JournalError::Failed)?,
            number: 0,
            head: LineHash::NONE,
            signed: false,
            found: None,
            begins: Some(begins),
        })
    }

    /// Returns the chain whose last line is `last`; `None` if that is not in a chain.
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

    /// Sets the unsigned lines at its end; `None` if its last line is a checkpoint.
    pub(super) fn with_found(self, found: Option<UncoveredLines>) -> Self {
        let signed = found.is_none();
        Self { signed, found, ..self }
    }

    /// Returns the unsigned lines that were at its end when it was opened, if no checkpoint was made since.
    pub(super) const fn found(&self) -> Option<UncoveredLines> {
        self.found
    }

    /// Returns whether nothing was written after its last checkpoint.
    pub(super) const fn is_signed(&self) -> bool {
        self.signed
    }

    /// Returns the chain's identifier, the number of its lines, and the hash of the last of them.
    #[must_use]
    pub fn head(&self) -> (&str, u64, LineHash) {
        (&self.id, self.number, self.head)
    }

    /// Turns a record, a JSON object, into the chain's next line, with its line feed.
    ///
    /// # Errors
    /// [`JournalError`], if the record is not a JSON object.
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

    /// Like [`ChainProgress::link`], but for a checkpoint.
    pub(super) fn link_checkpoint(&mut self, record: &[u8]) -> Result<Vec<u8>, JournalError> {
        let line = self.link(record)?;
        self.signed = true;
        self.found = None;
        Ok(line)
    }
}

/// Approximate size of a line's place in the chain, in bytes.
const LINK_BYTES: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn new() -> ChainProgress {
        let begins = ChainBeginning {
            why: Why::New,
            before: None,
            after: Vec::new(),
        };
        ChainProgress::begin(begins).unwrap()
    }

    fn whole(line: &[u8]) -> &[u8] {
        line.strip_suffix(b"\n").unwrap()
    }

    #[test]
    fn line_ends_with_its_link_to_the_previous() {
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
        let mut found = ChainProgress::after(whole(&second)).unwrap();
        assert_eq!(found.link(b"{\"id\":\"c\"}").unwrap(), chain.link(b"{\"id\":\"c\"}").unwrap());
    }

    #[test]
    fn line_without_a_valid_link_has_no_chain() {
        for line in [
            "",
            "x",
            "{}",
            r#"{"chain":null}"#,
            r#"{"chain":{}}"#,
            r#"{"chain":{"id":"a","number":-1,"previous":"00"}}"#,
        ] {
            assert!(ChainProgress::after(line.as_bytes()).is_none(), "{line}");
        }
        let place = |previous: &str| format!(r#"{{"chain":{{"id":"a","number":1,"previous":"{previous}"}}}}"#);
        for (previous, good) in [("0a".repeat(32), true), ("0A".repeat(32), false), ("0a".repeat(48), false)] {
            assert_eq!(link_of(place(&previous).as_bytes()).is_ok(), good, "{previous}");
        }
    }
}
