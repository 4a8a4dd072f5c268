//! Values that travel in a form of their own.

use std::borrow::Cow;
use std::fmt;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// Bytes that travel as base64. `Debug` shows the length only, so a secret cannot slip into a log this way.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("standard base64 with padding")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Blob, E> {
                BASE64.decode(text.as_bytes()).map(Blob).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Sensitive text, such as an identity token. `Debug` shows the length only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BearerText(pub String);

impl fmt::Debug for BearerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.0.len())
    }
}

/// A digest of 32, 48 or 64 bytes that travels as hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HexDigest {
    /// The digest, and zeros.
    bytes: [u8; 64],
    length: u8,
}

impl HexDigest {
    /// Takes digest bytes as they are; `None` unless there are 32, 48 or 64 of them.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let length = u8::try_from(bytes.len()).ok().filter(|length| matches!(length, 32 | 48 | 64))?;
        let mut digest = Self { bytes: [0; 64], length };
        digest.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(digest)
    }

    /// Reads hexadecimal, upper or lower case.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        Self::new(&HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?)
    }

    /// The digest's bytes: 32, 48 or 64.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

impl From<[u8; 32]> for HexDigest {
    fn from(digest: [u8; 32]) -> Self {
        let mut bytes = [0; 64];
        let (begin, _) = bytes.split_at_mut(digest.len());
        begin.copy_from_slice(&digest);
        Self { bytes, length: 32 }
    }
}

impl fmt::Display for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(self.as_bytes()))
    }
}

impl fmt::Debug for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HexDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HexDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("expected 64, 96 or 128 hexadecimal digits"))
    }
}

/// A secret text, such as a provisioning token. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Wraps a secret text.
    #[must_use]
    pub const fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

/// An object without members: there is nothing to say beyond the kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Returns whether a text consists of hexadecimal digits in lower case only.
#[must_use]
pub fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A text from outside, fit for a log: bounded, without control characters.
#[must_use]
pub fn printable(text: &str, limit_chars: usize) -> String {
    as_printable(text, limit_chars).into_owned()
}

/// Like [`printable`]; copies the text only if characters of it are replaced.
#[must_use]
pub fn as_printable(text: &str, limit_chars: usize) -> Cow<'_, str> {
    // Nearly all texts are of these characters, and a look at all bytes at once costs little.
    if let Some(part) = text.get(..text.len().min(limit_chars))
        && is_plain(part.as_bytes())
    {
        return part.into();
    }
    let end = text.char_indices().nth(limit_chars);
    let part = end.and_then(|(end, _)| text.get(..end)).unwrap_or(text);
    match part.contains(char::is_control) {
        true => part.replace(char::is_control, "\u{fffd}").into(),
        false => part.into(),
    }
}

/// Returns whether all bytes are printable characters of ASCII.
#[must_use]
pub fn is_plain(bytes: &[u8]) -> bool {
    // Without an early end, so that many are looked at by one instruction.
    !bytes.iter().fold(false, |odd, byte| odd | !(b' '..=b'~').contains(byte))
}
