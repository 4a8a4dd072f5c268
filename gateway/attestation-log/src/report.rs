//! Reports: failures of first boots, as the nodes state them.

use std::fmt;

use attest::protocol::ReportStage;
use serde::{Deserialize, Serialize};

/// The failure of a first boot, as its node states it. Apart from the attestation of a verified report, any client can send it, and it
/// decides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeReport {
    /// `true` if the node proved [`NodeReport::attestation`].
    pub verified: bool,
    /// Id of the decision about the node's evidence: proven if the report is verified, otherwise claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<String>,
    pub stage: ReportStage,
    /// Unit of systemd that failed.
    pub unit: String,
    /// Cause of the failure, in the node's words.
    pub error: String,
    /// The kernel's boot ID.
    pub boot: String,
    /// Length of the journal, in bytes.
    pub journal_bytes: u64,
    /// SHA-256 of the last lines of the node's journal, which are kept as evidence. Absent if the node sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_sha256: Option<String>,
}

/// Source of a report: proven if the report is verified, apart from the address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSource {
    /// Address and port of the node.
    pub peer: String,
    pub pool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Cloud instance, if it is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, unit, error, .. } = self;
        let verified = if self.verified { "" } else { "unverified: " };
        write!(f, "{verified}the first boot failed in stage {stage} ({unit}): {error}")
    }
}
