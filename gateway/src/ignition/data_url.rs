//! `data:` URLs (RFC 2397), as Ignition's configs carry contents.

use data_encoding::BASE64;

/// What a `data:` URL carries; `None` if it is another URL, or damaged.
#[must_use]
pub fn decode(url: &str) -> Option<Vec<u8>> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(',')?;
    let bytes = unescape(data)?;
    if kind.ends_with(";base64") {
        BASE64.decode(&bytes).ok()
    } else {
        Some(bytes)
    }
}

/// The `data:` URL of some contents: text stays readable.
#[must_use]
pub fn encode(contents: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut url = String::with_capacity(contents.len() + contents.len() / 4 + 8);
    url.push_str("data:,");
    let mut rest = contents;
    loop {
        let plain = rest.iter().take_while(|byte| is_unreserved(**byte)).count();
        let (text, after) = rest.split_at_checked(plain).unwrap_or_default();
        // Unreserved characters are ASCII.
        url.push_str(std::str::from_utf8(text).unwrap_or_default());
        let [byte, after @ ..] = after else { break };
        url.push('%');
        for digit in [byte >> 4, byte & 15] {
            url.push(HEX.get(usize::from(digit)).copied().map_or('0', char::from));
        }
        rest = after;
    }
    url
}

/// RFC 3986, unreserved characters.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.as_bytes().split(|byte| *byte == b'%');
    bytes.extend_from_slice(parts.next()?);
    for part in parts {
        let [high, low, plain @ ..] = part else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?);
        bytes.extend_from_slice(plain);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_and_damage() {
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

    #[test]
    fn what_is_encoded_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert_eq!(encode(b"a b~\n"), "data:,a%20b~%0A");
    }
}
