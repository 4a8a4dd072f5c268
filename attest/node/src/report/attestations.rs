//! Results of this boot's attestations, kept in memory for a report: the proof of one that succeeded, and the decision that refused one.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::is_id;
use crate::pointer::write;

/// File name in the folder of kept files.
const FILE: &str = "attestations.json";

/// Result of an attestation to a gateway. There is no `Debug`: the proof is a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayAttestation {
    pub base: String,
    pub pool: String,
    /// Proof of the attestation for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// Id of the decision that refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
}

impl GatewayAttestation {
    /// Returns the result for a gateway that refused, by what it is told ([`crate::failure::Failure::refusal`]): a code, and the id of its
    /// decision if there is one.
    #[must_use]
    pub fn refused(base: &str, pool: &str, refusal: Option<&str>) -> Self {
        let decision = refusal.and_then(|refusal| refusal.split_once(' ')).map(|(_, id)| id);
        Self {
            base: base.to_owned(),
            pool: pool.to_owned(),
            proof: None,
            decision: decision.filter(|id| is_id(id)).map(str::to_owned),
        }
    }
}

/// Keeps the results, readable by root only, if the folder exists: in the initramfs, and nowhere else. Without them a report is unverified.
pub fn keep(folder: &Path, attestations: &[GatewayAttestation]) {
    if let (true, Ok(text)) = (folder.is_dir(), serde_json::to_vec(attestations)) {
        let _ = write::replace(&folder.join(FILE), &text);
    }
}

/// Reads what was kept.
#[must_use]
pub fn read(folder: &Path) -> Vec<GatewayAttestation> {
    let text = fs::read(folder.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}
