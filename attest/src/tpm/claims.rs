//! Claims: what a TPM's Evidence has proven.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::boot_complete::BootCompleteMeasurement;
use super::ek::EkDigest;
use super::error::TpmEvidenceError;
use super::event_log::{EventLogError, Phase};
use super::measured_boot::MeasuredBoot;
use super::vtpm::VerifiedInstance;
use super::wire::HashAlg;
use crate::values::HexDigest;

/// Proof from a TPM's evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TpmClaims {
    pub ek_digest: EkDigest,
    /// The endorsement of the EK.
    pub endorsed_by: EndorsedBy,
    /// The AK's Name, hexadecimal.
    pub ak_name: String,
    /// The bank of the quoted PCRs.
    pub pcr_bank: HashAlg,
    /// The quoted PCRs and their values.
    pub pcrs: BTreeMap<u8, HexDigest>,
    /// Milliseconds the TPM has been powered, over its life.
    pub clock_ms: u64,
    /// TPM Resets (boots) since the last TPM2_Clear. Runs backwards only if the TPM was cleared, or is another one.
    pub reset_count: u32,
    /// TPM Restarts and Resumes since the last Reset.
    pub restart_count: u32,
    /// Set if no higher clock value can have been reported earlier.
    pub clock_safe: bool,
    pub firmware_version: u64,
    /// Result of replaying the event log, if there was one.
    pub event_log: Option<EventLogClaims>,
}

impl TpmClaims {
    /// The instance that Google has certified the EK for.
    #[must_use]
    pub fn instance(&self) -> Option<&VerifiedInstance> {
        match &self.endorsed_by {
            EndorsedBy::GcpInstance(instance) => Some(instance),
            _ => None,
        }
    }
}

/// An event log, and what it explains of the quoted PCRs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EventLogClaims {
    pub events: usize,
    /// PCRs whose quoted value the log explains: only events in these can be trusted.
    pub explained_pcrs: Vec<u8>,
    /// Explained PCRs into which systemd has extended its separator after the log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub os_separator_pcrs: Vec<u8>,
    /// Phases that systemd has extended into PCR 11 after the log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub os_phases: Vec<Phase>,
    /// State of Secure Boot, if the log proves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// Reason why the log explains nothing. The pool decides whether that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<EventLogProblem>,
    /// Meaning of the log's events. A record has the log itself.
    #[serde(skip)]
    pub boot: Option<Arc<MeasuredBoot>>,
    /// The log's claim about the boot-complete PCR, regardless of other PCRs.
    #[serde(skip)]
    pub door: Option<BootCompleteMeasurement>,
}

/// Reason why an event log explains nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventLogProblem {
    Malformed(EventLogError),
    /// The log does not lead to the quoted PCRs.
    Mismatch(EventLogError),
}

impl EventLogProblem {
    /// The refusal that it is, where it matters.
    #[must_use]
    pub fn refusal(&self) -> TpmEvidenceError {
        match self {
            Self::Malformed(error) => TpmEvidenceError::EventLog(error.clone()),
            Self::Mismatch(error) => TpmEvidenceError::EventLogMismatch(error.clone()),
        }
    }
}

impl Serialize for EventLogProblem {
    /// Serializes the code of the refusal.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.refusal().code())
    }
}

/// Endorsement that vouches for the EK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndorsedBy {
    /// The administrator, by naming the EK.
    Allowlist,
    /// A configured root, by a certificate.
    Root {
        root_subject: String,
        /// SHA-256 of the root certificate.
        root_sha256: HexDigest,
        /// Serial number of the EK certificate, hexadecimal.
        certificate_serial: String,
    },
    /// Google, by a certificate that names the instance whose vTPM it is.
    GcpInstance(Box<VerifiedInstance>),
}
