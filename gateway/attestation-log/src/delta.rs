//! Delta compression of event logs: only the difference from a similar log is recorded.
//!
//! Machines of one model measure the same, except for a few values of their own. So the first log of a model is kept whole, as a blob. The
//! logs of others are in their records, compressed by zstd with that blob as dictionary. A record names the SHA-256 of its whole log all
//! the same.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use attest::protocol::Blob;
use serde::{Deserialize, Serialize};
use zstd::bulk::Decompressor;
use zstd::dict::EncoderDictionary;
use zstd::zstd_safe::CCtx;

use super::blobs::{BlobError, Blobs};

/// Longest event log that is made again from a difference, in bytes: a longer one was never accepted.
const EVENT_LOG_LIMIT_BYTES: usize = 4 * 1024 * 1024;
/// Most logs that are kept as bases; beyond it, the least recently used one is dropped.
const BASES_LIMIT: usize = 16;
/// Most bases that one log is compared with in a round.
const TRIES_LIMIT: usize = 4;
/// Most rounds in which a log is compared with bases that were added meanwhile.
const ROUNDS_LIMIT: usize = 4;
/// Length of a base, in bytes. A shorter log fits into one block of a disk, a longer one is too large to be held.
const BASE_BYTES: RangeInclusive<usize> = 1024..=1024 * 1024;
/// A difference is recorded if it is at least so many times smaller than the log.
const SMALLER: usize = 8;
/// Compression level of zstd. Measured: lower levels take less time, but the difference grows to a third of a log of 256 KiB; higher ones
/// do not make it smaller.
const LEVEL: i32 = 3;
/// First bytes of a dictionary as `zstd --train` makes them. A content that begins with them would be read as one, and is not an event log.
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// Difference of a log from its base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogDifference {
    /// Base: the name of its file among the blobs.
    pub from: String,
    /// A frame of zstd, with the base as its dictionary.
    pub zstd: Blob,
}

/// A log cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// The log, or its base, is missing or altered.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The difference was altered, or belongs to another log.
    #[error("the event log {sha256} cannot be made from {from}: {problem}")]
    Difference { sha256: String, from: String, problem: String },
}

/// Bases for delta compression, with their compressors.
#[derive(Debug, Default)]
pub struct DeltaBases {
    bases: Mutex<Bases>,
    compressors: Compressors,
}

/// Idle contexts of zstd: making one costs as much as it saves. There are as many as there ever were comparisons at once.
#[derive(Default)]
struct Compressors(Mutex<Vec<CCtx<'static>>>);

#[derive(Debug, Default)]
struct Bases {
    /// Bases by use, the most recently used one first.
    by_use: Vec<Arc<ComparedLog>>,
    /// Number of bases that were ever added.
    count: u64,
}

/// A base: a log that others are compared with.
struct ComparedLog {
    /// Number among all bases that were ever added, from 1.
    number: u64,
    sha256: String,
    content: Arc<[u8]>,
    prepared: OnceLock<EncoderDictionary<'static>>,
}

/// Form in which a log is recorded.
#[derive(Debug)]
pub struct Likened {
    /// SHA-256 of the whole log.
    pub sha256: String,
    /// Difference from its base; `None` if it is kept whole.
    pub difference: Option<LogDifference>,
    /// Blob that the record brings: the log, or its base.
    pub blob: (String, Arc<[u8]>),
}

impl DeltaBases {
    /// Returns the form in which to record this log. Without a similar base, and if `is_trusted`, it becomes a base itself: refused
    /// machines do not get to choose the bases.
    #[must_use]
    pub fn liken(&self, content: Vec<u8>, is_trusted: bool) -> Likened {
        let sha256 = Blobs::name(&content);
        let (mut seen, mut round) = (0, 0);
        loop {
            let candidates = {
                let mut bases = self.lock();
                if let Some(same) = bases.used(&sha256) {
                    return Likened::whole(sha256, Arc::clone(&same.content));
                }
                let candidates = bases.closest(content.len(), seen);
                // Many that are alike may come at once: all but one of them find that one here.
                if candidates.is_empty() || round == ROUNDS_LIMIT {
                    let content: Arc<[u8]> = content.into();
                    if is_trusted && can_be_base(&content) {
                        bases.add(&sha256, &content);
                    }
                    return Likened::whole(sha256, content);
                }
                seen = bases.count;
                candidates
            };
            for base in candidates {
                if let Some(zstd) = self.compressors.with(|compressor| base.difference_to(&content, compressor)) {
                    self.lock().used(&base.sha256);
                    return Likened {
                        sha256,
                        difference: Some(LogDifference {
                            from: base.sha256.clone(),
                            zstd: Blob(zstd),
                        }),
                        blob: (base.sha256.clone(), Arc::clone(&base.content)),
                    };
                }
            }
            round += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compressors {
    /// Runs the work with a context that no other thread uses. Each run begins a frame of its own, however the one before it ended.
    fn with<T>(&self, work: impl FnOnce(&mut CCtx<'static>) -> T) -> T {
        let idle = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let mut compressor = kept.unwrap_or_default();
        let done = work(&mut compressor);
        idle().push(compressor);
        done
    }
}

impl fmt::Debug for Compressors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compressors")
    }
}

fn can_be_base(content: &[u8]) -> bool {
    BASE_BYTES.contains(&content.len()) && !content.starts_with(&DICTIONARY_MAGIC)
}

impl Likened {
    fn whole(sha256: String, content: Arc<[u8]>) -> Self {
        Self {
            blob: (sha256.clone(), content),
            difference: None,
            sha256,
        }
    }
}

impl Bases {
    /// Returns the base with this name, and marks it as used.
    fn used(&mut self, sha256: &str) -> Option<&Arc<ComparedLog>> {
        let place = self.by_use.iter().position(|base| base.sha256 == sha256)?;
        self.by_use.get_mut(..=place)?.rotate_right(1);
        self.by_use.first()
    }

    /// Returns bases of about this length that were added after the first `seen`; among equally long ones the most recently used comes
    /// first.
    fn closest(&self, length: usize, seen: u64) -> Vec<Arc<ComparedLog>> {
        // A longer one takes longer than it is worth.
        if length > *BASE_BYTES.end() {
            return Vec::new();
        }
        let mut found: Vec<&Arc<ComparedLog>> = self.by_use.iter().filter(|base| base.number > seen).collect();
        found.sort_by_key(|base| base.content.len().abs_diff(length));
        found.into_iter().take(TRIES_LIMIT).cloned().collect()
    }

    fn add(&mut self, sha256: &str, content: &Arc<[u8]>) {
        self.count += 1;
        self.by_use.truncate(BASES_LIMIT - 1);
        let base = ComparedLog {
            number: self.count,
            sha256: sha256.to_owned(),
            content: Arc::clone(content),
            prepared: OnceLock::new(),
        };
        self.by_use.insert(0, Arc::new(base));
    }
}

impl ComparedLog {
    /// Returns the difference of this log from the base, if it is small enough.
    fn difference_to(&self, content: &[u8], compressor: &mut CCtx<'_>) -> Option<Vec<u8>> {
        let prepared = self.prepared.get_or_init(|| EncoderDictionary::copy(&self.content, LEVEL));
        // What does not fit is not finished.
        let mut difference = Vec::with_capacity(content.len() / SMALLER);
        let compressed = compressor.compress_using_cdict(&mut difference, content, prepared.as_cdict());
        compressed.is_ok().then_some(difference)
    }
}

impl fmt::Debug for ComparedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base({}, {} bytes)", self.sha256, self.content.len())
    }
}

/// Restores the log from its record.
///
/// # Errors
/// [`DeltaError`]: the log is returned exactly as it was, or not at all.
pub fn event_log(blobs: &Blobs, sha256: &str, difference: Option<&LogDifference>) -> Result<Vec<u8>, DeltaError> {
    let Some(LogDifference { from, zstd }) = difference else {
        return Ok(blobs.get(sha256)?);
    };
    let wrong = |problem: String| DeltaError::Difference {
        sha256: sha256.to_owned(),
        from: from.clone(),
        problem,
    };
    let base = blobs.get(from)?;
    let limit = EVENT_LOG_LIMIT_BYTES;
    if Decompressor::upper_bound(&zstd.0).is_some_and(|length| length > limit) {
        return Err(wrong(format!("its difference stands for more than {limit} bytes")));
    }
    let content = Decompressor::with_dictionary(&base).and_then(|mut by| by.decompress(&zstd.0, limit));
    let content = content.map_err(|error| wrong(format!("its difference is altered, or is one from another log: {error}")))?;
    if Blobs::name(&content) != sha256 {
        return Err(wrong("what comes of its difference does not have that SHA-256".to_owned()));
    }
    Ok(content)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
