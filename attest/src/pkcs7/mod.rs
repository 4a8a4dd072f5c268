//! PKCS#7 signed documents: CMS SignedData (RFC 5652), as the metadata services of AWS and Azure give them.
//!
//! [`SignedData::verify`] proves that the holder of the key of *the certificate that the caller chose* has signed the returned content. The
//! caller decides who that is, and whether the certificate is trusted. Nothing inside of a message makes a certificate trusted, and
//! [`SignedData::signer_certificate`] only says which certificate the message claims.
//!
//! These forms are accepted, and no others:
//! - BER with indefinite lengths and segmented OCTET STRINGs, as AWS sends it; all else as DER has it;
//! - exactly one SignerInfo, over content of type id-data, which is inside of the message or given by the caller, never both;
//! - RSASSA-PKCS1-v1_5 with SHA-256, SHA-384 or SHA-512 and keys of 2048 to 8192 bits;
//! - signed attributes, if there are any, with contentType and messageDigest exactly once;
//! - as digestAlgorithm also the signature algorithm's name (`sha256WithRSAEncryption`), which Azure writes there.
//!
//! Parts that no signature covers must not matter, so they must not vary either. Versions and digest algorithms have to be those that RFC
//! 5652 prescribes, and revocation lists are refused. Only unsigned attributes and certificates that are not the signer's are left unread.

mod ber;
mod certificate;
mod error;
mod message;
mod signed_data;

pub use certificate::SigningCertificate;
pub use error::Pkcs7Error;
pub use signed_data::{SignedContent, SignedData};

/// Largest message that is read. AWS's have about 1.1 kB, Azure's 3.2 kB; a bag of certificates could add some more.
pub const MESSAGE_LIMIT_BYTES: usize = 32 * 1024;

/// Most certificates in a message. A chain of Microsoft's has three.
pub const CERTIFICATES_LIMIT: usize = 8;

/// Largest certificate that is read: Azure's have 2.4 kB, most of it transparency timestamps.
pub const CERTIFICATE_LIMIT_BYTES: usize = 8 * 1024;

/// A PKCS#7 message from its Base64, which a metadata service may have broken into lines.
///
/// # Errors
/// [`Pkcs7Error::TooLarge`] and [`Pkcs7Error::Base64`].
pub fn from_base64(text: &[u8]) -> Result<Vec<u8>, Pkcs7Error> {
    // Four characters for three bytes, and room for a line break of two in every 64.
    const TEXT_LIMIT_BYTES: usize = MESSAGE_LIMIT_BYTES / 3 * 4 / 64 * 66;
    if text.len() > TEXT_LIMIT_BYTES {
        return Err(Pkcs7Error::TooLarge {
            bytes: text.len(),
            limit: TEXT_LIMIT_BYTES,
        });
    }
    let malformed = |problem: String| Pkcs7Error::Base64 { problem };
    let lines = std::str::from_utf8(text).map_err(|error| malformed(error.to_string()))?.split('\n');
    let mut text = String::with_capacity(text.len());
    lines.for_each(|line| text.push_str(line.strip_suffix('\r').unwrap_or(line)));
    // The decoder would also take several texts in a row, each with its padding.
    let padding = text.find('=').unwrap_or(text.len());
    if text.len() - padding > 2 {
        return Err(malformed(format!("padding at character {padding}, which is not the end")));
    }
    data_encoding::BASE64
        .decode(text.as_bytes())
        .map_err(|error| malformed(error.to_string()))
}
