//! DER and BER, written by hand: so that every wrong form can be written, too.

/// Tag of an OCTET STRING.
pub const OCTETS: u8 = 0x04;
/// Tag of an OBJECT IDENTIFIER.
pub const OID: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
/// Tag `[0]`, context-specific, constructed.
pub const CONTEXT_0: u8 = 0xa0;
/// Tag `[1]`, context-specific, constructed.
pub const CONTEXT_1: u8 = 0xa1;

/// Encodes an element in DER, of at most 64 KiB.
#[must_use]
pub fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let header = match content.len() {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [header, content].concat()
}

/// Encodes a constructed element with an indefinite length.
#[must_use]
pub fn indefinite(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    [&[tag, 0x80], parts.concat().as_slice(), &[0, 0]].concat()
}

/// Encodes a `UTF8String` element.
#[must_use]
pub fn text(text: &str) -> Vec<u8> {
    der(0x0c, &[text.as_bytes()])
}

/// Encodes a nonnegative INTEGER element.
#[must_use]
pub fn number(number: u64) -> Vec<u8> {
    let bytes = [&[0], number.to_be_bytes().as_slice()].concat();
    let zeros = bytes.windows(2).take_while(|pair| pair[0] == 0 && pair[1] < 0x80).count();
    der(0x02, &[&bytes[zeros..]])
}

/// Encodes a BOOLEAN element.
#[must_use]
pub fn flag(flag: bool) -> Vec<u8> {
    der(0x01, &[&[if flag { 0xff } else { 0 }]])
}
