//! Anomalies of a known TPM.

use super::date::date;

/// An anomaly of a known TPM. Each one can also have harmless causes, see `docs/explanation/measured-boot.md`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryFinding {
    /// Resets and restarts, or a safe clock, are behind what they were: before, and now.
    #[error(
        "the TPM's counters ran backwards: resets {} to {}, restarts {} to {}, clock {} to {} ms; the TPM was cleared, or another TPM answers",
        .resets.0, .resets.1, .restarts.0, .restarts.1, .clock_ms.0, .clock_ms.1
    )]
    CountersBack {
        resets: (u32, u32),
        restarts: (u32, u32),
        clock_ms: (u64, u64),
    },
    /// The TPM's firmware was replaced by a version with known vulnerabilities, or something else answers in the TPM's place.
    #[error("the TPM's firmware version decreased from {before:#018x} to {now:#018x}: it was downgraded, or another TPM answers")]
    FirmwareBack { before: u64, now: u64 },
    /// The PCR values match, but the log differs.
    #[error(
        "the event log for PCR {pcr} differs from that of {}, although the PCR's value is the same: parts without digests were altered, or the same files were booted from another device; compare with decision {decision}: `attest-audit log compare-boots --html`",
        date(*.at)
    )]
    AnotherLog {
        pcr: u8,
        /// Time of the last trusted boot, in seconds since 1970.
        at: u64,
        /// The decision that stored the last trusted log.
        decision: String,
    },
}

impl HistoryFinding {
    /// Returns the state before and now, without the parts that change within a boot.
    #[must_use]
    pub fn change(&self) -> String {
        match self {
            Self::CountersBack { resets, restarts, .. } => {
                format!("resets {} to {}, restarts {} to {}", resets.0, resets.1, restarts.0, restarts.1)
            }
            Self::FirmwareBack { before, now } => format!("firmware {before:#018x} to {now:#018x}"),
            Self::AnotherLog { pcr, decision, .. } => format!("event log of PCR {pcr} since decision {decision}"),
        }
    }
}

/// Refusal of a TPM for a finding, by the rules of its pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{finding}")]
pub struct HistoryRefusal {
    /// The identity under which its history is stored.
    pub tpm: String,
    pub finding: HistoryFinding,
}
