//! `data:` URLs (RFC 2397), in which the pointer carries its CAs.

use std::io::Read as _;

use data_encoding::{BASE64, BASE64_NOPAD};
use flate2::read::MultiGzDecoder;

/// Most bytes that a URL may decode and decompress to: a bundle of a hundred CAs.
const CONTENT_LIMIT_BYTES: usize = 256 * 1024;

/// The content of a data URL, decompressed as `compression` says: absent, empty or `gzip`.
pub(crate) fn content(url: &str, compression: Option<&str>) -> Result<Vec<u8>, String> {
    let (media_type, data) = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(','))
        .ok_or("is not a data URL")?;
    let data = percent_decoded(data)?;
    let base64 = media_type
        .rsplit(';')
        .next()
        .is_some_and(|parameter| parameter.trim().eq_ignore_ascii_case("base64"));
    let decoded = if base64 { from_base64(data)? } else { data };
    match compression {
        None | Some("") => bounded(decoded.as_slice()),
        Some("gzip") => bounded(MultiGzDecoder::new(decoded.as_slice())),
        Some(other) => Err(format!(
            "has compression {:?}, which Ignition does not support",
            other.chars().take(20).collect::<String>()
        )),
    }
}

fn bounded(content: impl std::io::Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(CONTENT_LIMIT_BYTES).unwrap_or(u64::MAX);
    content
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be decompressed: {error}"))?;
    if bytes.len() > CONTENT_LIMIT_BYTES {
        Err(format!("has more than {CONTENT_LIMIT_BYTES} bytes"))
    } else {
        Ok(bytes)
    }
}

fn from_base64(mut data: Vec<u8>) -> Result<Vec<u8>, String> {
    data.retain(|byte| !byte.is_ascii_whitespace());
    BASE64
        .decode(&data)
        .or_else(|_| BASE64_NOPAD.decode(&data))
        .map_err(|_| "is not valid base64".to_owned())
}

fn percent_decoded(data: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(data.len());
    let mut rest = data.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                high.zip(low)
                    .map(|(high, low)| high * 16 + low)
                    .ok_or("has a % without two hexadecimal digits")?
            }
            other => other,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn check(url: &str, compression: Option<&str>, expect: Result<&str, &str>) {
        assert_eq!(
            content(url, compression),
            expect.map(|text| text.as_bytes().to_vec()).map_err(str::to_owned),
            "{url}"
        );
    }

    fn gzip(bytes: &[u8]) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        format!("data:;base64,{}", BASE64.encode(&encoder.finish().unwrap()))
    }

    #[test]
    fn data_urls_are_decoded() {
        check("data:,hello", None, Ok("hello"));
        check("data:,", None, Ok(""));
        check("data:text/plain;charset=utf-8,a%20b%0Ac", None, Ok("a b\nc"));
        check("data:,a+b", None, Ok("a+b"));
        check("data:text/plain;charset=utf-8;base64,aGVsbG8=", None, Ok("hello"));
        check("data:;base64,aGVsbG8", None, Ok("hello"));
        check("data:;base64,aGVs%0AbG8%3D", None, Ok("hello"));
        check("data:,hello", Some(""), Ok("hello"));
        check(&gzip(b"hello"), Some("gzip"), Ok("hello"));
        check("data:,a%2", None, Err("has a % without two hexadecimal digits"));
        check("data:,a%zz", None, Err("has a % without two hexadecimal digits"));
        check("data:;base64,a!", None, Err("is not valid base64"));
        check("data:;base64", None, Err("is not a data URL"));
        check("https://a/ca.pem", None, Err("is not a data URL"));
        check(
            "data:,hello",
            Some("zstd"),
            Err("has compression \"zstd\", which Ignition does not support"),
        );
        check(
            "data:,hello%20world",
            Some("gzip"),
            Err("cannot be decompressed: invalid gzip header"),
        );
        check(
            &gzip(&vec![0; CONTENT_LIMIT_BYTES + 1]),
            Some("gzip"),
            Err(&format!("has more than {CONTENT_LIMIT_BYTES} bytes")),
        );
    }
}
