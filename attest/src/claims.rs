//! Claims: what Evidence has proven.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::nonce::SpkiSha256;
use crate::protocol::HexDigest;
use crate::tpm::ek::EkDigest;
use crate::tpm::wire::HashAlg;

/// The stable identity of a node: `tpm:<EkDigest>`. The same machine has the same one at every boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIdentity(String);

impl NodeIdentity {
    /// The identity that an EK gives a node.
    #[must_use]
    pub fn of_tpm(ek: EkDigest) -> Self {
        Self(format!("tpm:{ek}"))
    }

    /// The identity's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who vouched for the EK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndorsedBy {
    /// The administrator, by naming the EK.
    Allowlist,
    /// A configured root, by a certificate.
    Root {
        /// The root's subject.
        root_subject: String,
        /// SHA-256 of the root certificate.
        root_sha256: HexDigest,
        /// Serial number of the EK certificate, hexadecimal.
        certificate_serial: String,
    },
}

/// What verification has proven about a node. Serialised into audit records; there is no way back from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claims {
    pub(crate) identity: NodeIdentity,
    pub(crate) pool: String,
    pub(crate) name: Option<String>,
    pub(crate) server_key: SpkiSha256,
    pub(crate) tpm: TpmClaims,
}

impl Claims {
    /// Who the node is.
    #[must_use]
    pub const fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// The pool the evidence was made for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The name the node asks to be known by. Bound to the challenge, but not proven: whoever keeps names must see to it that one
    /// name stays with one identity.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The server key that the node saw.
    #[must_use]
    pub const fn server_key(&self) -> &SpkiSha256 {
        &self.server_key
    }

    /// What the TPM says.
    #[must_use]
    pub const fn tpm(&self) -> &TpmClaims {
        &self.tpm
    }
}

/// What a TPM's evidence has proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TpmClaims {
    /// The EK.
    pub ek_digest: EkDigest,
    /// Who vouched for it.
    pub endorsed_by: EndorsedBy,
    /// The AK's Name, hexadecimal.
    pub ak_name: String,
    /// The bank quoted.
    pub pcr_bank: HashAlg,
    /// The PCRs quoted.
    pub pcrs: BTreeMap<u8, HexDigest>,
    /// Milliseconds the TPM has been powered, over its life.
    pub clock_ms: u64,
    /// TPM Resets (boots) since the last TPM2_Clear. Runs backwards only if the TPM was cleared, or is another one.
    pub reset_count: u32,
    /// TPM Restarts and Resumes since the last Reset.
    pub restart_count: u32,
    /// Whether no higher clock value can have been reported before.
    pub clock_safe: bool,
    /// The TPM's firmware version.
    pub firmware_version: u64,
    /// What replaying the event log has shown, if there was one.
    pub event_log: Option<EventLogClaims>,
}

/// An event log that leads to the quoted PCRs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventLogClaims {
    /// Events in the log.
    pub events: usize,
    /// PCRs whose quoted value the log explains: only events in these can be trusted.
    pub explained_pcrs: Vec<u8>,
}
