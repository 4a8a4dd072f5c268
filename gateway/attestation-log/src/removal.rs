//! Removal of a segment: recorded in the log, and signed there, before it happens.

use std::fmt;

use aws_lc_rs::digest::{self, SHA256};
use serde::{Deserialize, Serialize};

use super::chain::LineHash;

/// A segment that is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    /// Part of its name after that of the log.
    pub segment: String,
    /// Rule that it exceeds.
    pub rule: RetentionCause,
    /// Number of its lines, including lines without a chain.
    pub lines: u64,
    /// Length in bytes, uncompressed.
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: LineHash,
    /// Its lines that have a place in a chain, in their order.
    pub chains: Vec<Span>,
    /// Lines of it that are kept.
    pub kept: KeptLines,
}

/// Rule of retention that a segment exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetentionCause {
    /// It is older than it has to be kept.
    Age,
    /// There is more of the log than has to be kept.
    Size,
}

/// Lines of a chain that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Identifier of the chain.
    pub id: String,
    pub first: u64,
    pub last: u64,
    /// The hash of the last of them.
    pub head: LineHash,
}

/// Lines of a removed segment that are kept: checkpoints, and records of the removal of earlier segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptLines {
    pub lines: u64,
    /// SHA-256 over their hashes, in their order: 64 digits and a line feed for each.
    pub sha256: LineHash,
}

impl KeptLines {
    /// Returns the number and the digest of lines with these hashes.
    pub(super) fn from_hashes(hashes: impl IntoIterator<Item = LineHash>) -> Self {
        let (mut lines, mut digest) = (0, digest::Context::new(&SHA256));
        for hash in hashes {
            lines += 1;
            digest.update(format!("{hash}\n").as_bytes());
        }
        let sha256 = LineHash::from_digest(digest.finish());
        Self { lines, sha256 }
    }
}

impl fmt::Display for RetentionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Age => "attestation_log.keep_seconds",
            Self::Size => "attestation_log.keep_bytes",
        })
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment,
            rule,
            lines,
            chains,
            kept,
            ..
        } = self;
        write!(f, "by {rule} a segment is removed: {segment}, {lines} line(s)")?;
        for Span { id, first, last, .. } in chains {
            write!(f, ", {first} to {last} of chain {id}")?;
        }
        write!(f, "; {} of them are kept", kept.lines)
    }
}
