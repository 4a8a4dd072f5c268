//! What is not as it should be with a TPM that is known.

use super::date::date;

/// One thing. Each has honest causes, too, which docs/evidence/tpm.md names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// Resets and restarts, or a safe clock, are behind what they were: before, and now.
    #[error(
        "the TPM's counters ran backwards: resets {} to {}, restarts {} to {}, clock {} to {} ms; the TPM was cleared, or this is not the TPM it was",
        .resets.0, .resets.1, .restarts.0, .restarts.1, .clock_ms.0, .clock_ms.1
    )]
    CountersBack {
        resets: (u32, u32),
        restarts: (u32, u32),
        clock_ms: (u64, u64),
    },
    /// Somebody has put a version there whose holes are known, or something else answers in the TPM's place.
    #[error(
        "the TPM's firmware went from version {before:#018x} back to {now:#018x}: somebody has put an older one there, or this is not the TPM it was"
    )]
    FirmwareBack { before: u64, now: u64 },
    /// The same was measured, and the log says something else about it.
    #[error(
        "the event log says of PCR {pcr} something else than on {}, and its value is the same: what the digests do not cover was written by somebody else, or the same files were booted from another place; compare it by `attest-audit log boot-diff --html` with decision {decision}",
        date(*.at)
    )]
    AnotherLog {
        pcr: u8,
        /// When it was trusted last, seconds since 1970.
        at: u64,
        /// The decision that kept what was said.
        decision: String,
    },
}

/// A TPM is not taken as it is now, because its pool says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{finding}")]
pub struct HistoryRefusal {
    /// By what its history is kept.
    pub tpm: String,
    pub finding: Finding,
}
