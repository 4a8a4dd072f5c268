use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use super::{TpmReader, WireError};

/// Hash algorithms that are strong enough for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HashAlg {
    /// Algorithm identifier `TPM_ALG_SHA256`, 0x000b.
    Sha256,
    /// Algorithm identifier `TPM_ALG_SHA384`, 0x000c.
    Sha384,
    /// Algorithm identifier `TPM_ALG_SHA512`, 0x000d.
    Sha512,
}

/// Error for a name other than `sha256`, `sha384` and `sha512`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown or refused hash algorithm {0:?}: use sha256, sha384 or sha512")]
pub struct UnknownHashAlg(pub String);

impl HashAlg {
    /// The algorithm of a TPM_ALG_ID, `None` for one that is weak or unknown.
    #[must_use]
    pub const fn from_id(id: u16) -> Option<Self> {
        match id {
            0x000b => Some(Self::Sha256),
            0x000c => Some(Self::Sha384),
            0x000d => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Returns the algorithm's `TPM_ALG_ID`.
    #[must_use]
    pub const fn id(self) -> u16 {
        match self {
            Self::Sha256 => 0x000b,
            Self::Sha384 => 0x000c,
            Self::Sha512 => 0x000d,
        }
    }

    /// Length of its digests in bytes.
    #[must_use]
    pub const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the algorithm of aws-lc-rs.
    #[must_use]
    pub const fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }

    /// Digest of the concatenation of `parts`.
    #[must_use]
    pub fn digest(self, parts: &[&[u8]]) -> Digest {
        let mut context = digest::Context::new(self.algorithm());
        for part in parts {
            context.update(part);
        }
        Digest(context.finish())
    }

    pub(super) fn read(reader: &mut TpmReader<'_>, field: &'static str) -> Result<Self, WireError> {
        let found = reader.u16(field)?;
        Self::from_id(found).ok_or(WireError::HashRefused { field, found })
    }
}

impl fmt::Display for HashAlg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

impl FromStr for HashAlg {
    type Err = UnknownHashAlg;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "sha256" => Ok(Self::Sha256),
            "sha384" => Ok(Self::Sha384),
            "sha512" => Ok(Self::Sha512),
            other => Err(UnknownHashAlg(other.chars().take(32).collect())),
        }
    }
}

/// A digest of a [`HashAlg`]. Compared as public data: none of the digests here is a secret.
#[derive(Clone, Copy)]
pub struct Digest(digest::Digest);

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(self.as_ref()))
    }
}
