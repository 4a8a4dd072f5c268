//! Bytes of a file, in memory or read when they are hashed: an image may have 1 GiB, of which the headers and a few small sections have to be in memory.

use std::borrow::Cow;
use std::fmt;

use aws_lc_rs::digest::Context;

use super::BankDigests;
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// Bytes read at once: enough that a read costs little compared with the hashing.
const BUFFER_BYTES: usize = 256 * 1024;

/// A file that can be read at any place.
pub trait RandomAccess {
    /// Fills `into` with the bytes from `start` on.
    ///
    /// # Errors
    /// [`ByteReadError::Failed`], also if the file has not as many.
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ByteReadError>;
}

/// An error when reading the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteReadError {
    /// The file cannot be read, in the words of who reads it.
    #[error("reading it failed: {0}")]
    Failed(String),
    /// The file has more bytes than are read into memory.
    #[error("it has {bytes} bytes, more than {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

/// A range of bytes.
#[derive(Clone, Copy)]
pub struct Bytes<'s>(BytesLocation<'s>);

#[derive(Clone, Copy)]
enum BytesLocation<'s> {
    Memory(&'s [u8]),
    File {
        file: &'s dyn RandomAccess,
        start: usize,
        length: usize,
    },
}

impl<'s> Bytes<'s> {
    /// All of a file that has so many.
    #[must_use]
    pub const fn from_file(file: &'s dyn RandomAccess, length: usize) -> Self {
        Self(BytesLocation::File { file, start: 0, length })
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            BytesLocation::Memory(bytes) => bytes.len(),
            BytesLocation::File { length, .. } => length,
        }
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes from `start` on, if there are `length` of them.
    #[must_use]
    pub fn part(self, start: usize, length: usize) -> Option<Self> {
        let end = start.checked_add(length).filter(|&end| end <= self.len())?;
        Some(Self(match self.0 {
            BytesLocation::Memory(bytes) => BytesLocation::Memory(bytes.get(start..end)?),
            BytesLocation::File { file, start: first, .. } => BytesLocation::File {
                file,
                start: first.checked_add(start)?,
                length,
            },
        }))
    }

    /// The first ones, at most so many.
    #[must_use]
    pub fn first(self, at_most: usize) -> Self {
        self.part(0, at_most.min(self.len())).unwrap_or(self)
    }

    /// Takes all of them into memory.
    ///
    /// # Errors
    /// [`ByteReadError`] if the file cannot be read, or is larger.
    pub fn read(self, limit: usize) -> Result<Cow<'s, [u8]>, ByteReadError> {
        if self.len() > limit {
            return Err(ByteReadError::TooLarge { bytes: self.len(), limit });
        }
        match self.0 {
            BytesLocation::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            BytesLocation::File { file, start, length } => {
                let mut bytes = vec![0; length];
                file.read(start, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// SHA-256 of all of them.
    ///
    /// # Errors
    /// [`ByteReadError::Failed`].
    pub fn sha256(self) -> Result<BankDigests, ByteReadError> {
        BankDigests::read(&[HashAlg::Sha256], &[self])
    }

    /// Calls `each` with all of them, piece by piece.
    fn pieces(self, mut each: impl FnMut(&[u8])) -> Result<(), ByteReadError> {
        match self.0 {
            BytesLocation::Memory(bytes) => each(bytes),
            BytesLocation::File { file, start, length } => {
                let mut buffer = vec![0; BUFFER_BYTES.min(length)];
                let mut done = 0;
                while done < length {
                    let count = BUFFER_BYTES.min(length - done);
                    let piece = buffer.get_mut(..count).unwrap_or_default();
                    file.read(start.saturating_add(done), piece)?;
                    each(piece);
                    done += count;
                }
            }
        }
        Ok(())
    }
}

impl BankDigests {
    /// The digests of the concatenation of `parts`.
    ///
    /// # Errors
    /// [`ByteReadError::Failed`].
    pub fn read(banks: &[HashAlg], parts: &[Bytes<'_>]) -> Result<Self, ByteReadError> {
        let mut contexts: Vec<(HashAlg, Context)> = banks.iter().map(|&bank| (bank, Context::new(bank.algorithm()))).collect();
        for part in parts {
            part.pieces(|piece| contexts.iter_mut().for_each(|(_, context)| context.update(piece)))?;
        }
        // A bank's digest has a length that HexDigest takes: none is left out.
        let digests = contexts
            .into_iter()
            .filter_map(|(bank, context)| Some((bank, HexDigest::new(context.finish().as_ref())?)));
        Ok(Self(digests.collect()))
    }
}

impl<'s> From<&'s [u8]> for Bytes<'s> {
    fn from(bytes: &'s [u8]) -> Self {
        Self(BytesLocation::Memory(bytes))
    }
}

impl<'s> From<&'s Vec<u8>> for Bytes<'s> {
    fn from(bytes: &'s Vec<u8>) -> Self {
        Self(BytesLocation::Memory(bytes))
    }
}

impl<'s, const N: usize> From<&'s [u8; N]> for Bytes<'s> {
    fn from(bytes: &'s [u8; N]) -> Self {
        Self(BytesLocation::Memory(bytes))
    }
}

impl Default for Bytes<'_> {
    fn default() -> Self {
        Self(BytesLocation::Memory(&[]))
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
