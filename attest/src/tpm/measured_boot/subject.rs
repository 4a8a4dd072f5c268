//! The subject of an unverified certificate, for people.
//!
//! Secure Boot's databases have a dozen certificates, of which only the fingerprints count. To read all of each for its name would take longer than to
//! hash the whole log.

use attest_wire::der::{content, lengths};

/// Maximum length of a subject that is stored, in characters.
const SUBJECT_LIMIT_CHARS: usize = 256;

/// Most attributes of a name that are read.
const ATTRIBUTES_LIMIT: usize = 32;

/// Attributes by the content of their OBJECT IDENTIFIER (RFC 4519; RFC 2985, 5.2.1), as RFC 4514 and openssl abbreviate them.
const ATTRIBUTES: [(&[u8], &str); 9] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
];

/// Returns the subject, such as `C=US, O=Example, CN=Example CA`; `None` if the bytes are not a certificate.
pub(super) fn subject(certificate: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(SUBJECT_LIMIT_CHARS);
    let mut sets = content(name(certificate)?)?;
    let mut attributes = 0;
    while !sets.is_empty() {
        let (mut set, rest) = element(sets)?;
        sets = rest;
        while !set.is_empty() {
            let (attribute, rest) = element(set)?;
            set = rest;
            attributes += 1;
            if attributes > ATTRIBUTES_LIMIT {
                return None;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            put(&mut text, attribute)?;
        }
    }
    Some(crate::values::printable(&text, SUBJECT_LIMIT_CHARS))
}

/// Returns the Name within a certificate: in the TBSCertificate, it follows version, serialNumber, signature, issuer and validity (RFC
/// 5280, 4.1).
fn name(certificate: &[u8]) -> Option<&[u8]> {
    const VERSION: u8 = 0xa0;
    let mut fields = content(content(certificate)?)?;
    let before = if fields.first() == Some(&VERSION) { 5 } else { 4 };
    for _ in 0..before {
        (_, fields) = element(fields)?;
    }
    (fields.first() == Some(&0x30)).then_some(fields)
}

/// Returns the content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = lengths(bytes)?;
    let (element, rest) = bytes.split_at_checked(header + length)?;
    Some((element.get(header..)?, rest))
}

/// Appends an `AttributeTypeAndValue` to the text.
fn put(text: &mut String, attribute: &[u8]) -> Option<()> {
    const OBJECT_IDENTIFIER: u8 = 6;
    const BMP_STRING: u8 = 30;
    if attribute.first() != Some(&OBJECT_IDENTIFIER) {
        return None;
    }
    let (oid, value) = element(attribute)?;
    match ATTRIBUTES.iter().find(|(known, _)| *known == oid) {
        Some((_, name)) => text.push_str(name),
        None => text.push_str(&data_encoding::HEXLOWER.encode(oid)),
    }
    text.push('=');
    let tag = value.first()?;
    let (value, _) = element(value)?;
    if *tag == BMP_STRING {
        let (units, _) = value.as_chunks::<2>();
        let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
        text.extend(char::decode_utf16(units).map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER)));
    } else {
        text.push_str(&String::from_utf8_lossy(value));
    }
    Some(())
}
