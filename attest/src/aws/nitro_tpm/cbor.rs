//! CBOR (RFC 8949), as much of it as attestation documents have: lengths are definite except where the caller lets a map be
//! without one; no tags, no floats, no values that are not asked for.
//!
//! The headers are read by ciborium-ll. Not by ciborium itself: serde does not show tags and indefinite lengths to the reader,
//! so they could not be refused.

use ciborium_ll::{Decoder, Header, simple};

/// Maximum depth of nested values that are skipped. Real documents have a list in a map: 2.
const DEPTH_LIMIT: usize = 3;

/// Bytes that are not the CBOR that is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{expected} is expected at byte {offset}, there is {found}")]
pub struct CborError {
    pub offset: usize,
    pub expected: &'static str,
    pub found: &'static str,
}

/// Reads values one after the other. The returned values are borrowed; nothing is allocated, regardless of the lengths that are claimed.
pub(super) struct CborReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

/// A map being read: the entries left, or `None` until a break.
pub(super) struct Map(Option<usize>);

impl<'a> CborReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Checks that nothing follows the value.
    pub(super) fn end(&self) -> Result<(), CborError> {
        if self.offset == self.bytes.len() {
            return Ok(());
        }
        Err(self.unexpected("the end", "more"))
    }

    /// Takes a tag, if the next value has one.
    pub(super) fn tag(&mut self) -> Result<Option<u64>, CborError> {
        let before = self.offset;
        match self.header("a value")? {
            Header::Tag(tag) => Ok(Some(tag)),
            _ => {
                self.offset = before;
                Ok(None)
            }
        }
    }

    /// An array of a definite length.
    pub(super) fn array(&mut self, expected: &'static str) -> Result<usize, CborError> {
        self.read(expected, |header| match header {
            Header::Array(Some(length)) => Some(*length),
            _ => None,
        })
    }

    /// A map of a definite length.
    pub(super) fn map(&mut self, expected: &'static str) -> Result<Map, CborError> {
        self.read(expected, |header| match header {
            Header::Map(Some(entries)) => Some(Map(Some(*entries))),
            _ => None,
        })
    }

    /// A map of a definite length, or one that ends with a break.
    pub(super) fn map_of_any_length(&mut self, expected: &'static str) -> Result<Map, CborError> {
        self.read(expected, |header| match header {
            Header::Map(entries) => Some(Map(*entries)),
            _ => None,
        })
    }

    /// Returns whether the map has another entry, which comes next.
    pub(super) fn has_entry(&mut self, map: &mut Map) -> Result<bool, CborError> {
        let Some(left) = &mut map.0 else {
            let before = self.offset;
            if matches!(self.header("an entry or a break")?, Header::Break) {
                return Ok(false);
            }
            self.offset = before;
            return Ok(true);
        };
        let more = left.checked_sub(1);
        *left = more.unwrap_or_default();
        Ok(more.is_some())
    }

    /// An integer that is not negative.
    pub(super) fn uint(&mut self, expected: &'static str) -> Result<u64, CborError> {
        self.read(expected, |header| match header {
            Header::Positive(value) => Some(*value),
            _ => None,
        })
    }

    /// A byte string of a definite length.
    pub(super) fn bytes(&mut self, expected: &'static str) -> Result<&'a [u8], CborError> {
        let length = self.read(expected, |header| match header {
            Header::Bytes(Some(length)) => Some(*length),
            _ => None,
        })?;
        self.take(length, expected)
    }

    /// A byte string, or null.
    pub(super) fn bytes_or_null(&mut self, expected: &'static str) -> Result<Option<&'a [u8]>, CborError> {
        let before = self.offset;
        if matches!(self.header(expected)?, Header::Simple(simple::NULL)) {
            return Ok(None);
        }
        self.offset = before;
        self.bytes(expected).map(Some)
    }

    /// A text of a definite length, in UTF-8.
    pub(super) fn text(&mut self, expected: &'static str) -> Result<&'a str, CborError> {
        let before = self.offset;
        let length = self.read(expected, |header| match header {
            Header::Text(Some(length)) => Some(*length),
            _ => None,
        })?;
        let text = self.take(length, expected)?;
        std::str::from_utf8(text).map_err(|_| CborError {
            offset: before,
            expected,
            found: "a text that is not UTF-8",
        })
    }

    /// Passes over one value.
    pub(super) fn skip(&mut self) -> Result<(), CborError> {
        self.skip_within(DEPTH_LIMIT)
    }

    fn skip_within(&mut self, depth: usize) -> Result<(), CborError> {
        const EXPECTED: &str = "a value";
        let before = self.offset;
        let header = self.header(EXPECTED)?;
        let depth = match header {
            Header::Array(_) | Header::Map(_) => depth.checked_sub(1).ok_or(CborError {
                offset: before,
                expected: EXPECTED,
                found: "one that is nested too deeply",
            })?,
            _ => depth,
        };
        match header {
            Header::Positive(_) | Header::Negative(_) | Header::Simple(_) => Ok(()),
            Header::Bytes(Some(length)) | Header::Text(Some(length)) => self.take(length, EXPECTED).map(drop),
            Header::Array(Some(length)) => (0..length).try_for_each(|_| self.skip_within(depth)),
            Header::Map(Some(entries)) => (0..entries).try_for_each(|_| {
                self.skip_within(depth)?;
                self.skip_within(depth)
            }),
            other => Err(CborError {
                offset: before,
                expected: EXPECTED,
                found: name(&other),
            }),
        }
    }

    /// Reads a header, from which `pick` takes what the caller expects.
    fn read<T>(&mut self, expected: &'static str, pick: impl FnOnce(&Header) -> Option<T>) -> Result<T, CborError> {
        let offset = self.offset;
        let header = self.header(expected)?;
        pick(&header).ok_or(CborError {
            offset,
            expected,
            found: name(&header),
        })
    }

    fn header(&mut self, expected: &'static str) -> Result<Header, CborError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let mut decoder = Decoder::from(rest);
        let header = decoder.pull().map_err(|error| {
            let found = match error {
                ciborium_ll::Error::Io(_) => "the end",
                ciborium_ll::Error::Syntax(_) => "no CBOR",
            };
            self.unexpected(expected, found)
        })?;
        self.offset += decoder.offset();
        Ok(header)
    }

    fn take(&mut self, length: usize, expected: &'static str) -> Result<&'a [u8], CborError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let taken = rest
            .get(..length)
            .ok_or_else(|| self.unexpected(expected, "one that ends too early"))?;
        self.offset += length;
        Ok(taken)
    }

    const fn unexpected(&self, expected: &'static str, found: &'static str) -> CborError {
        CborError {
            offset: self.offset,
            expected,
            found,
        }
    }
}

const fn name(header: &Header) -> &'static str {
    match header {
        Header::Positive(_) => "an integer",
        Header::Negative(_) => "a negative integer",
        Header::Float(_) => "a float",
        Header::Simple(simple::NULL) => "null",
        Header::Simple(_) => "a simple value",
        Header::Tag(_) => "a tag",
        Header::Break => "a break",
        Header::Bytes(Some(_)) => "a byte string",
        Header::Bytes(None) => "a byte string of indefinite length",
        Header::Text(Some(_)) => "a text",
        Header::Text(None) => "a text of indefinite length",
        Header::Array(Some(_)) => "an array",
        Header::Array(None) => "an array of indefinite length",
        Header::Map(Some(_)) => "a map",
        Header::Map(None) => "a map of indefinite length",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn skips(bytes: &[u8], found: Result<(), &'static str>) {
        let mut reader = CborReader::new(bytes);
        let skipped = reader.skip().and_then(|()| reader.end());
        assert_eq!(skipped.map_err(|error| error.found), found, "{bytes:02x?}");
    }

    #[test]
    fn cbor_skip_accepts_definite_items_only() {
        skips(&[0x00], Ok(()));
        skips(&[0xf6], Ok(()));
        skips(&[0x82, 0x41, 0xff, 0x61, b'a'], Ok(()));
        skips(&[0xa1, 0x01, 0x82, 0x00, 0x20], Ok(()));
        skips(&[0x81, 0x81, 0x81, 0x00], Ok(()));
        skips(&[0x81, 0x81, 0x81, 0x81, 0x00], Err("one that is nested too deeply"));
        skips(&[0x5f, 0x41, 0x00, 0xff], Err("a byte string of indefinite length"));
        skips(&[0x9f, 0xff], Err("an array of indefinite length"));
        skips(&[0xbf, 0xff], Err("a map of indefinite length"));
        skips(&[0xd2, 0x00], Err("a tag"));
        skips(&[0xfa, 0, 0, 0, 0], Err("a float"));
        skips(&[0xff], Err("a break"));
        skips(&[0x1c], Err("no CBOR"));
        skips(&[0x42, 0x00], Err("one that ends too early"));
        skips(&[], Err("the end"));
        skips(&[0x00, 0x00], Err("more"));
    }

    /// Lengths that are only claimed cost neither memory nor time.
    #[test]
    fn attack_23_huge_claimed_lengths_are_rejected() {
        let huge = [0xff; 8];
        for major in [0x5b, 0x7b, 0x9b, 0xbb] {
            skips(
                &[&[major][..], &huge].concat(),
                Err(match major {
                    0x5b | 0x7b => "one that ends too early",
                    _ => "the end",
                }),
            );
        }
    }

    #[test]
    fn cbor_text_must_be_utf8() {
        assert_eq!(
            CborReader::new(&[0x61, 0xff]).text("a name").unwrap_err().found,
            "a text that is not UTF-8"
        );
        assert_eq!(CborReader::new(&[0x61, b'a']).text("a name"), Ok("a"));
    }
}
