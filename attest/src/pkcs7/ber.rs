//! From the BER that AWS sends to the DER that parsers read.
//!
//! Converts indefinite lengths and OCTET STRINGs in segments (X.690, 8.1.3.6 and 8.7.3). Other forms that BER allows and DER does not do
//! not occur, and are refused. These are lengths in more bytes than needed, other strings in segments, and segments of segments. DER's
//! rules about contents (such as the order in a SET OF) are not checked here.

use super::{MESSAGE_LIMIT_BYTES, Pkcs7Error};

/// Deepest nesting. A certificate inside of a message goes to about twelve; the call stack has to bear it.
const NESTING_LIMIT_LEVELS: usize = 24;

/// Most elements directly in another one. Certificates have up to fifteen extensions. The bound keeps the work small that parsers
/// do to bring a SET in order, which grows with the square.
const ELEMENTS_LIMIT: usize = 64;

const OCTET_STRING: u8 = 0x04;
const CONSTRUCTED: u8 = 0x20;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const SEGMENTED_OCTET_STRING: u8 = OCTET_STRING | CONSTRUCTED;
/// The two bits of a tag that tell its class; zero is the universal class.
const CLASS: u8 = 0xc0;
/// The five bits of a tag that tell its number; all set mean that the number follows in bytes of its own.
const NUMBER: u8 = 0x1f;

/// The one element that `message` is, in DER.
///
/// # Errors
/// [`Pkcs7Error::TooLarge`] and [`Pkcs7Error::Encoding`].
pub(super) fn to_der(message: &[u8]) -> Result<Vec<u8>, Pkcs7Error> {
    if message.len() > MESSAGE_LIMIT_BYTES {
        return Err(Pkcs7Error::TooLarge {
            bytes: message.len(),
            limit: MESSAGE_LIMIT_BYTES,
        });
    }
    let mut reader = BerReader { message, offset: 0 };
    let mut der = Vec::with_capacity(message.len());
    reader.element(&mut der, 0)?;
    match message.len() - reader.offset {
        0 => Ok(der),
        _ => Err(reader.error("bytes follow the message")),
    }
}

struct BerReader<'a> {
    message: &'a [u8],
    offset: usize,
}

impl<'a> BerReader<'a> {
    /// Writes the next element to `der`.
    fn element(&mut self, der: &mut Vec<u8>, level: usize) -> Result<(), Pkcs7Error> {
        if level >= NESTING_LIMIT_LEVELS {
            return Err(self.error("elements are nested too deeply"));
        }
        let start = self.offset;
        let (tag, length) = self.header()?;
        if tag & CONSTRUCTED == 0 {
            let Some(length) = length else {
                return Err(self.error("a primitive element has no definite length"));
            };
            if matches!(tag | CONSTRUCTED, SEQUENCE | SET) || tag == 0 {
                return Err(self.error("an element is primitive that cannot be"));
            }
            self.take(length)?;
            // As long as it was, since it was as short as can be.
            der.extend_from_slice(self.message.get(start..self.offset).unwrap_or_default());
            return Ok(());
        }
        if tag & CLASS == 0 && !matches!(tag, SEQUENCE | SET | SEGMENTED_OCTET_STRING) {
            return Err(self.error("an element is constructed that cannot be"));
        }
        let header = self.message.get(start..self.offset).unwrap_or_default();
        let start = der.len();
        der.extend_from_slice(header);
        let content = der.len();
        let segments = tag == SEGMENTED_OCTET_STRING;
        self.content(length, |reader| {
            if segments {
                reader.segment(der)
            } else {
                reader.element(der, level + 1)
            }
        })?;
        let der_length = der.len() - content;
        // Moving the content is what costs most; nearly all headers may stay.
        if segments || length != Some(der_length) {
            set_header(der, start..content, if segments { OCTET_STRING } else { tag }, der_length);
        }
        Ok(())
    }

    /// Reads each of the elements in a constructed one, whose end is at `length` or else marked.
    fn content(&mut self, length: Option<usize>, mut each: impl FnMut(&mut Self) -> Result<(), Pkcs7Error>) -> Result<(), Pkcs7Error> {
        let whole = self.message;
        if let Some(length) = length {
            let end = self.offset.saturating_add(length);
            // What is inside must not reach beyond it.
            self.message = whole.get(..end).ok_or_else(|| self.error("an element is cut off"))?;
        }
        for _ in 0..ELEMENTS_LIMIT {
            let rest = self.message.get(self.offset..).unwrap_or_default();
            match length {
                Some(_) if rest.is_empty() => {
                    self.message = whole;
                    return Ok(());
                }
                None if rest.starts_with(&[0, 0]) => {
                    self.offset += 2;
                    return Ok(());
                }
                _ => each(self)?,
            }
        }
        Err(self.error("an element has too many elements in it"))
    }

    /// Appends the content of the next segment of an OCTET STRING.
    fn segment(&mut self, der: &mut Vec<u8>) -> Result<(), Pkcs7Error> {
        match self.header()? {
            (OCTET_STRING, Some(length)) => {
                der.extend_from_slice(self.take(length)?);
                Ok(())
            }
            _ => Err(self.error("a segment of an OCTET STRING is not an OCTET STRING")),
        }
    }

    /// Tag and length; `None` for the indefinite length.
    fn header(&mut self) -> Result<(u8, Option<usize>), Pkcs7Error> {
        let tag = self.byte()?;
        if tag & NUMBER == NUMBER {
            return Err(self.error("a tag has a number above 30"));
        }
        let (least, length) = match self.byte()? {
            0x80 => return Ok((tag, None)),
            short @ ..0x80 => (0, usize::from(short)),
            // Two bytes of length are enough for any message.
            0x81 => (0x80, usize::from(self.byte()?)),
            0x82 => (0x100, usize::from(self.byte()?) << 8 | usize::from(self.byte()?)),
            _ => return Err(self.error("an element is longer than any message")),
        };
        if length < least {
            return Err(self.error("a length has more bytes than it needs"));
        }
        Ok((tag, Some(length)))
    }

    fn byte(&mut self) -> Result<u8, Pkcs7Error> {
        self.take(1)?.first().copied().ok_or_else(|| self.error("an element is cut off"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Pkcs7Error> {
        let end = self.offset.saturating_add(length);
        let taken = self
            .message
            .get(self.offset..end)
            .ok_or_else(|| self.error("an element is cut off"))?;
        self.offset = end;
        Ok(taken)
    }

    const fn error(&self, problem: &'static str) -> Pkcs7Error {
        Pkcs7Error::Encoding {
            offset: self.offset,
            problem,
        }
    }
}

/// Puts a header in the place of another one.
fn set_header(der: &mut Vec<u8>, place: std::ops::Range<usize>, tag: u8, length: usize) {
    // At most twice the limit of a message, which three bytes hold.
    let [.., high, middle, low] = length.to_be_bytes();
    let header: &[u8] = match (high, middle, low) {
        (0, 0, ..0x80) => &[tag, low],
        (0, 0, _) => &[tag, 0x81, low],
        (0, ..) => &[tag, 0x82, middle, low],
        _ => &[tag, 0x83, high, middle, low],
    };
    der.splice(place, header.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ber: &[u8], der: &[u8]) {
        assert_eq!(to_der(ber).as_deref(), Ok(der), "{ber:02x?}");
    }

    fn refused(ber: &[u8], problem: &str) {
        match to_der(ber) {
            Err(Pkcs7Error::Encoding { problem: found, .. }) => assert_eq!(found, problem, "{ber:02x?}"),
            other => panic!("{ber:02x?}: {other:?}"),
        }
    }

    #[test]
    fn der_is_unchanged() {
        let long = [&[0x04, 0x82, 0x01, 0x00], [7; 256].as_slice()].concat();
        let in_sequence = [&[0x30, 0x82, 0x01, 0x04], long.as_slice()].concat();
        let ber: [&[u8]; 7] = [
            &[0x05, 0x00],
            &[0x30, 0x00],
            &[0x30, 0x03, 0x02, 0x01, 0x05],
            &[0xa0, 0x02, 0x31, 0x00],
            &[0x80, 0x01, 0x00],
            &long,
            &in_sequence,
        ];
        ber.iter().for_each(|ber| check(ber, ber));
    }

    #[test]
    fn indefinite_lengths_become_definite() {
        check(&[0x30, 0x80, 0x00, 0x00], &[0x30, 0x00]);
        check(
            &[0x30, 0x80, 0xa0, 0x80, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x30, 0x04, 0xa0, 0x02, 0x05, 0x00],
        );
        check(
            &[0x30, 0x06, 0x31, 0x80, 0x05, 0x00, 0x00, 0x00],
            &[0x30, 0x04, 0x31, 0x02, 0x05, 0x00],
        );
        let zeros = [&[0x04, 0x82, 0x01, 0x00], [0; 256].as_slice()].concat();
        check(
            &[&[0x30, 0x80], zeros.as_slice(), &[0, 0]].concat(),
            &[&[0x30, 0x82, 0x01, 0x04], zeros.as_slice()].concat(),
        );
    }

    #[test]
    fn segments_are_joined() {
        check(&[0x24, 0x80, 0x00, 0x00], &[0x04, 0x00]);
        check(&[0x24, 0x05, 0x04, 0x01, 0x0a, 0x04, 0x00], &[0x04, 0x01, 0x0a]);
        check(&[0x24, 0x80, 0x04, 0x02, 1, 2, 0x04, 0x01, 3, 0, 0], &[0x04, 0x03, 1, 2, 3]);
        check(&[0x24, 0x80, 0x04, 0x02, 0, 0, 0, 0], &[0x04, 0x02, 0, 0]);
    }

    #[test]
    fn attack_23_other_ber_forms_are_rejected() {
        refused(&[0x30, 0x81, 0x00], "a length has more bytes than it needs");
        refused(&[0x30, 0x82, 0x00, 0x80], "a length has more bytes than it needs");
        refused(&[0x30, 0x83, 0x01, 0x00, 0x00], "an element is longer than any message");
        refused(&[0x04, 0x80, 0x00, 0x00], "a primitive element has no definite length");
        refused(&[0x10, 0x00], "an element is primitive that cannot be");
        refused(&[0x11, 0x00], "an element is primitive that cannot be");
        refused(&[0x00, 0x00], "an element is primitive that cannot be");
        refused(&[0x23, 0x00], "an element is constructed that cannot be");
        refused(&[0x2c, 0x80, 0x0c, 0x00, 0x00, 0x00], "an element is constructed that cannot be");
        refused(
            &[0x24, 0x04, 0x24, 0x02, 0x04, 0x00],
            "a segment of an OCTET STRING is not an OCTET STRING",
        );
        refused(&[0x24, 0x02, 0x05, 0x00], "a segment of an OCTET STRING is not an OCTET STRING");
        refused(&[0x1f, 0x20, 0x00], "a tag has a number above 30");
        refused(&[0x05, 0x00, 0x00], "bytes follow the message");
        refused(&[0x30, 0x80, 0x00, 0x00, 0x00, 0x00], "bytes follow the message");
    }

    #[test]
    fn attack_23_truncated_and_overlong_elements_are_rejected() {
        refused(&[], "an element is cut off");
        refused(&[0x30], "an element is cut off");
        refused(&[0x30, 0x05, 0x00], "an element is cut off");
        refused(&[0x30, 0x80], "an element is cut off");
        refused(&[0x30, 0x80, 0x05, 0x00, 0x00], "an element is cut off");
        // The inner element is longer than the outer one.
        refused(&[0x30, 0x03, 0x04, 0x02, 0xaa, 0xbb], "an element is cut off");
        refused(&[0x30, 0x02, 0x30, 0x80, 0x00, 0x00], "an element is cut off");
    }

    #[test]
    fn attack_23_nesting_element_and_size_limits() {
        let nested = |levels: usize| [[0x30, 0x80].repeat(levels), [0, 0].repeat(levels)].concat();
        assert!(to_der(&nested(NESTING_LIMIT_LEVELS)).is_ok());
        refused(&nested(NESTING_LIMIT_LEVELS + 1), "elements are nested too deeply");
        refused(&nested(MESSAGE_LIMIT_BYTES / 4), "elements are nested too deeply");
        let many = |elements: usize| [&[0x30, 0x80], [0x05, 0x00].repeat(elements).as_slice(), &[0, 0]].concat();
        assert!(to_der(&many(ELEMENTS_LIMIT - 1)).is_ok());
        refused(&many(ELEMENTS_LIMIT), "an element has too many elements in it");
        let bytes = MESSAGE_LIMIT_BYTES + 1;
        let limit = MESSAGE_LIMIT_BYTES;
        assert_eq!(to_der(&vec![0; bytes]), Err(Pkcs7Error::TooLarge { bytes, limit }));
    }
}
