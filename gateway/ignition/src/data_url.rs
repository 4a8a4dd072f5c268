//! `data:` URLs (RFC 2397), as Ignition's configs carry contents.

use data_encoding::BASE64;

/// Bytes that are processed together.
const AT_A_TIME: usize = 64;
/// Escape of each byte in a URL: up to three bytes, then their number.
static ESCAPES: [[u8; 4]; 256] = escapes();

/// Returns the contents of a `data:` URL; `None` for another URL or a damaged one.
#[must_use]
pub fn decode(url: &str) -> Option<Vec<u8>> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(',')?;
    match (kind.ends_with(";base64"), data.contains('%')) {
        (true, false) => BASE64.decode(data.as_bytes()).ok(),
        (true, true) => BASE64.decode(&unescape(data)?).ok(),
        (false, _) => unescape(data),
    }
}

/// Returns whether the text is base64, without decoding it.
pub(super) fn is_base64(text: &[u8]) -> bool {
    let is_of_base64 = |byte: &u8| byte.is_ascii_alphanumeric() | (*byte == b'+') | (*byte == b'/');
    let Some((whole, last)) = text.len().checked_sub(4).and_then(|last| text.split_at_checked(last)) else {
        return text.is_empty();
    };
    // Of padding within it, which is taken as well, the decoder knows.
    if text.len().is_multiple_of(4) && all(whole, is_of_base64) {
        BASE64.decode(last).is_ok()
    } else {
        BASE64.decode(text).is_ok()
    }
}

/// Returns whether a predicate holds for all bytes. Works on chunks, which the compiler can vectorize, instead of byte by byte.
pub(super) fn all(bytes: &[u8], holds: impl Fn(&u8) -> bool) -> bool {
    bytes
        .chunks(AT_A_TIME)
        .all(|bytes| bytes.iter().fold(true, |all, byte| all & holds(byte)))
}

/// Returns whether each `%` is followed by two hexadecimal digits.
pub(super) fn is_escaped(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text).all(|at| {
        text.get(at + 1..at + 3)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Prefix of a `data:` URL with escaped contents.
pub const ESCAPED: &str = "data:,";

/// Returns a `data:` URL of some contents, in which text stays readable.
#[must_use]
pub fn encode(contents: &[u8]) -> String {
    let mut url = String::with_capacity(contents.len() + contents.len() / 4 + 8);
    url.push_str(ESCAPED);
    // What is escaped is ASCII.
    escape(contents, |escaped| url.push_str(std::str::from_utf8(escaped).unwrap_or_default()));
    url
}

/// Escapes contents for the part of a URL after [`ESCAPED`], and passes it on in pieces.
pub fn escape(contents: &[u8], mut take: impl FnMut(&[u8])) {
    for piece in contents.chunks(AT_A_TIME) {
        // Four bytes are written for each, and those taken that are its own.
        let (mut escaped, mut end) = ([0; 3 * AT_A_TIME + 1], 0);
        for byte in piece {
            let escape @ [.., length] = ESCAPES.get(usize::from(*byte)).copied().unwrap_or_default();
            if let Some(room) = escaped.get_mut(end..end + escape.len()) {
                room.copy_from_slice(&escape);
            }
            end += usize::from(length);
        }
        take(escaped.get(..end).unwrap_or_default());
    }
}

#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "before the program runs, of 256 bytes"
)]
const fn escapes() -> [[u8; 4]; 256] {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut all = [[0; 4]; 256];
    let mut at = 0;
    while at < all.len() {
        let byte = at as u8;
        all[at] = if is_unreserved(byte) {
            [byte, 0, 0, 1]
        } else {
            [b'%', HEX[at >> 4], HEX[at & 15], 3]
        };
        at += 1;
    }
    all
}

/// Returns whether RFC 3986 calls the character unreserved.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr(b'%', rest) {
        let (plain, escaped) = rest.split_at_checked(at)?;
        let [_, high, low, after @ ..] = escaped else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.extend_from_slice(plain);
        bytes.push(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?);
        rest = after;
    }
    bytes.extend_from_slice(rest);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_both_encodings_and_rejects_damage() {
        let check = |url: &str, expected: Option<&[u8]>| assert_eq!(decode(url).as_deref(), expected, "{url}");
        check("data:,a%20b%0A", Some(b"a b\n"));
        check("data:", None);
        check("data:,", Some(b""));
        check("data:text/plain;charset=utf-8;base64,YSBi", Some(b"a b"));
        check("data:;base64,YSB%69", Some(b"a b"));
        check("data:;base64,YSBi=", None);
        check("data:,100%", None);
        check("data:,100%4", None);
        check("data:,%zz", None);
        check("https://example.com/a,b", None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::default() })]

        #[test]
        fn is_base64_agrees_with_the_decoder(start in "([AQgw+/]{4}){0,40}", end in "[AQg=%\\-é]{0,6}") {
            let text = format!("{start}{end}");
            assert_eq!(is_base64(text.as_bytes()), BASE64.decode(text.as_bytes()).is_ok(), "{text}");
        }

        #[test]
        fn is_escaped_agrees_with_unescape(text in "[a%4fFgé]{0,12}") {
            assert_eq!(is_escaped(text.as_bytes()), unescape(&text).is_some(), "{text}");
        }
    }

    #[test]
    fn data_url_round_trips() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert_eq!(encode(b"a b~\n"), "data:,a%20b~%0A");
    }
}
