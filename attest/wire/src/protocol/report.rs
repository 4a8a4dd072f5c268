//! The report of a failed first boot, as its node states it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::SecretText;

/// Largest journal of a report, in bytes: its last lines.
pub const REPORT_JOURNAL_LIMIT_BYTES: usize = 64 * 1024;
/// Longest [`ReportRequest::error`], in characters: a line or two of Ignition's.
pub const REPORT_ERROR_LIMIT_CHARS: usize = 1000;
/// Longest name of a unit, in bytes (`UNIT_NAME_MAX` in systemd's `unit-name.h`).
const UNIT_LIMIT_BYTES: usize = 255;
/// Digits of a boot ID and of a decision's id.
const ID_DIGITS: usize = 32;

/// Body of a request for [`super::REPORT_PATH`]. Only [`ReportRequest::proof`] can be verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    /// The pool of the pointer config.
    pub pool: String,
    pub stage: ReportStage,
    /// The failed unit of systemd.
    pub unit: String,
    /// Cause of the failure: one line.
    pub error: String,
    /// The kernel's boot ID, as in the journal: 32 hexadecimal digits.
    pub boot: String,
    /// Id of the decision by which the gateway refused this node's evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Unchanged value of [`super::EvidenceResponse::report`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<SecretText>,
    /// The last lines of the journal, without secrets.
    pub journal: String,
}

/// Stage of a first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportStage {
    /// The attestation, before Ignition fetches.
    Attest,
    FetchOffline,
    Fetch,
    Kargs,
    Disks,
    Mount,
    Files,
    /// No stage of Ignition's.
    Other,
}

impl ReportStage {
    /// All stages, in the order of a boot.
    pub const ALL: [Self; 8] = [
        Self::Attest,
        Self::FetchOffline,
        Self::Fetch,
        Self::Kargs,
        Self::Disks,
        Self::Mount,
        Self::Files,
        Self::Other,
    ];

    /// Returns the word for it in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attest => "attest",
            Self::FetchOffline => "fetch-offline",
            Self::Fetch => "fetch",
            Self::Kargs => "kargs",
            Self::Disks => "disks",
            Self::Mount => "mount",
            Self::Files => "files",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for ReportStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Answer of [`super::REPORT_PATH`]: the report is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportResponse {
    /// Id of its record in the gateway's attestation log.
    pub report: String,
}

impl ReportRequest {
    /// Checks sizes, and that no text has control characters.
    ///
    /// # Errors
    /// The member that is wrong, and its allowed form.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_id = |text: &str| text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_unit(&self.unit) {
            return Err("unit is not the name of a unit: 1 to 255 of A-Z, a-z, 0-9, ':', '-', '_', '.', '\\' and '@'");
        }
        if self.error.chars().count() > REPORT_ERROR_LIMIT_CHARS || self.error.chars().any(char::is_control) {
            return Err("error is not one line of at most 1,000 characters without control characters");
        }
        if !is_id(&self.boot) {
            return Err("boot is not 32 lower-case hexadecimal digits");
        }
        if !self.decision.as_deref().is_none_or(is_id) {
            return Err("decision is not 32 lower-case hexadecimal digits");
        }
        if self.journal.len() > REPORT_JOURNAL_LIMIT_BYTES {
            return Err("journal has more than 65,536 bytes");
        }
        if self
            .journal
            .chars()
            .any(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'))
        {
            return Err("journal has control characters other than line feeds and tabs");
        }
        Ok(())
    }
}

/// Returns whether a text can be the name of a unit (systemd.unit(5)).
#[must_use]
pub fn is_unit(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'_' | b'.' | b'\\' | b'@');
    (1..=UNIT_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(plain)
}
