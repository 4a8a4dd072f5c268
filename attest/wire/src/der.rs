//! Minimal DER parser that finds an element's end.

/// Length of the header and of the content of the DER element that `bytes` begins with. Bounded to what two length bytes can
/// say: nothing in a certificate is longer.
#[must_use]
pub fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1..)? {
        [short @ 0..=0x7f, ..] => Some((2, usize::from(short))),
        [0x81, length, ..] => Some((3, usize::from(length))),
        [0x82, high, low, ..] => Some((4, usize::from(u16::from_be_bytes([high, low])))),
        _ => None,
    }
}

/// The content of the DER element that `bytes` begins with.
#[must_use]
pub fn content(bytes: &[u8]) -> Option<&[u8]> {
    let (header, length) = lengths(bytes)?;
    bytes.get(header..header + length)
}
