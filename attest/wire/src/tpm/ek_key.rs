use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::der;

/// An EK's public key, of the kinds that TCG EK templates have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EkKey {
    /// RSA: modulus and public exponent, big-endian, without leading zeros.
    Rsa {
        /// Modulus, without leading zeros.
        n: Vec<u8>,
        /// Public exponent, without leading zeros.
        e: Vec<u8>,
    },
    /// NIST P-256: the point's coordinates, big-endian, full length.
    P256 { x: [u8; 32], y: [u8; 32] },
    /// NIST P-384: the point's coordinates, big-endian, full length.
    P384 { x: [u8; 48], y: [u8; 48] },
}

/// AlgorithmIdentifier of rsaEncryption with its NULL (RFC 3279, 2.3.1).
const RSA_ENCRYPTION: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
/// AlgorithmIdentifier of id-ecPublicKey on secp256r1 (RFC 5480, 2.1.1).
const EC_P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
];
/// AlgorithmIdentifier of id-ecPublicKey on secp384r1.
const EC_P384: &[u8] = &[
    0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22,
];

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
/// First byte of a point that is not compressed (SEC 1, 2.3.3).
const UNCOMPRESSED: u8 = 0x04;

impl EkKey {
    /// Encodes the key as SubjectPublicKeyInfo in DER: one encoding for each key, regardless of its source.
    #[must_use]
    pub fn spki_der(&self) -> Vec<u8> {
        let (algorithm, key) = match self {
            Self::Rsa { n, e } => (RSA_ENCRYPTION, element(SEQUENCE, &[&unsigned(n), &unsigned(e)])),
            Self::P256 { x, y } => (EC_P256, [&[UNCOMPRESSED], x.as_slice(), y].concat()),
            Self::P384 { x, y } => (EC_P384, [&[UNCOMPRESSED], x.as_slice(), y].concat()),
        };
        let no_unused_bits = [0];
        element(SEQUENCE, &[algorithm, &element(BIT_STRING, &[&no_unused_bits, &key])])
    }

    /// Reads a certificate's key.
    ///
    /// # Errors
    /// The type of key that it is instead.
    pub fn from_spki(spki: &SubjectPublicKeyInfo<'_>) -> Result<Self, String> {
        let identifier = der_prefix(spki.raw).unwrap_or_default();
        match spki.parsed() {
            Ok(PublicKey::RSA(key)) if identifier == RSA_ENCRYPTION => {
                let (n, e) = (without_leading_zeros(key.modulus), without_leading_zeros(key.exponent));
                let bits = n.len() * 8 - n.first().map_or(0, |byte| usize::try_from(byte.leading_zeros()).unwrap_or(0));
                if !matches!(bits, 2048 | 3072 | 4096) {
                    return Err(format!("RSA-{bits}"));
                }
                Ok(Self::Rsa {
                    n: n.to_vec(),
                    e: e.to_vec(),
                })
            }
            Ok(PublicKey::EC(point)) => match (identifier, point.data().split_first()) {
                (EC_P256, Some((&UNCOMPRESSED, point))) => coordinates(point)
                    .map(|(x, y)| Self::P256 { x, y })
                    .ok_or_else(|| format!("a P-256 point of {} bytes", point.len())),
                (EC_P384, Some((&UNCOMPRESSED, point))) => coordinates(point)
                    .map(|(x, y)| Self::P384 { x, y })
                    .ok_or_else(|| format!("a P-384 point of {} bytes", point.len())),
                _ => Err("an elliptic curve key on another curve, or compressed".to_owned()),
            },
            _ => Err(format!("of algorithm {}", spki.algorithm.algorithm)),
        }
    }
}

fn coordinates<const N: usize>(point: &[u8]) -> Option<([u8; N], [u8; N])> {
    let (x, y) = point.split_at_checked(N)?;
    Some((x.try_into().ok()?, y.try_into().ok()?))
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

fn unsigned(number: &[u8]) -> Vec<u8> {
    let number = without_leading_zeros(number);
    let sign: &[u8] = if number.first().is_none_or(|byte| byte & 0x80 != 0) {
        &[0]
    } else {
        &[]
    };
    element(INTEGER, &[sign, number])
}

fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let length = without_leading_zeros(&length);
    let mut out = vec![tag];
    match (length, u8::try_from(length.len())) {
        ([], _) => out.push(0),
        ([short], _) if *short < 0x80 => out.push(*short),
        (long, count) => {
            // A usize has at most eight bytes.
            out.push(0x80 | count.unwrap_or_default());
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(&content);
    out
}

/// The first element inside a DER SEQUENCE, with its header.
fn der_prefix(sequence: &[u8]) -> Option<&[u8]> {
    let (header, _) = der::lengths(sequence)?;
    let content = sequence.get(header..)?;
    let (header, length) = der::lengths(content)?;
    content.get(..header + length)
}
