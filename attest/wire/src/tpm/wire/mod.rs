//! TPM 2.0 wire structures, as far as evidence needs them: TPMT_PUBLIC, TPMS_ATTEST, TPMT_SIGNATURE, TPML_PCR_SELECTION,
//! TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET (TPM 2.0 Library, Part 2: Structures, revision 1.59).
//!
//! Every parser is bounded by the limits of the structure it reads, consumes its input exactly and refuses trailing bytes. The parsers
//! refuse unknown values: an algorithm is accepted because the verifier can verify it.

mod credential;
mod hash;
mod public;
mod quote;
mod signature;

pub use credential::{EncryptedSecret, IdObject};
pub use hash::{Digest, HashAlg, UnknownHashAlg};
pub use public::{Attributes, Curve, KeyParameters, Public, SymmetricCipher, TpmScheme};
pub use quote::{ClockInfo, QuoteAttest, SelectedBank};
pub use signature::TpmSignature;

/// Largest TPM2B that any structure here holds: an RSA-4096 modulus or signature (MAX_RSA_KEY_BYTES of that key size).
const BUFFER_LIMIT_BYTES: usize = 512;

/// Reason why bytes are not the structure they claim to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The input ends inside a field.
    #[error("{field} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field being read.
        field: &'static str,
        /// Size of the field, in bytes.
        needed: usize,
        left: usize,
    },
    /// Bytes follow the end of the structure.
    #[error("{left} bytes follow the structure")]
    TrailingBytes { left: usize },
    /// A length or count is above its limit.
    #[error("{field} is {found}, at most {limit} is allowed")]
    TooLarge {
        field: &'static str,
        /// The value it carries.
        found: usize,
        limit: usize,
    },
    /// A field holds a value that this verifier does not handle.
    #[error("{field} {found:#06x} is not supported")]
    Unsupported {
        field: &'static str,
        /// The value it carries.
        found: u32,
    },
    /// A hash algorithm that is too weak (SHA-1) or unknown.
    #[error("{field}: hash algorithm {found:#06x} is refused, SHA-256 or better is required")]
    HashRefused {
        field: &'static str,
        /// Algorithm identifier in the structure (`TPM_ALG_ID`).
        found: u16,
    },
    /// TPMS_ATTEST does not begin with TPM_GENERATED_VALUE.
    #[error("magic is {found:#010x}, a TPM writes 0xff544347")]
    Magic {
        /// First four bytes, big-endian.
        found: u32,
    },
    /// TPMS_ATTEST is not a quote.
    #[error("attestation type is {found:#06x}, a quote is 0x8018")]
    NotAQuote {
        /// The TPMI_ST_ATTEST it carries.
        found: u16,
    },
}

/// Reads big-endian fields from the front of a byte slice.
struct TpmReader<'a> {
    rest: &'a [u8],
}

impl<'a> TpmReader<'a> {
    const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads the whole of `bytes` by `parse`, and refuses whatever follows.
    fn all<T>(bytes: &'a [u8], parse: impl FnOnce(&mut Self) -> Result<T, WireError>) -> Result<T, WireError> {
        let mut reader = Self::new(bytes);
        let value = parse(&mut reader)?;
        match reader.rest.len() {
            0 => Ok(value),
            left => Err(WireError::TrailingBytes { left }),
        }
    }

    fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated {
            field,
            needed: count,
            left: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated {
            field,
            needed: N,
            left: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_be_bytes)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_be_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// A TPM2B: a 16-bit size, then that many bytes.
    fn sized(&mut self, field: &'static str, limit: usize) -> Result<&'a [u8], WireError> {
        let size = usize::from(self.u16(field)?);
        if size > limit {
            return Err(WireError::TooLarge { field, found: size, limit });
        }
        self.bytes(field, size)
    }

    /// Takes the remaining bytes.
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// Appends `bytes` as a TPM2B. The structures here are bounded far below 64 KiB, so the size always fits.
pub fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX), "a TPM2B of {} bytes", bytes.len());
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(bytes);
}
