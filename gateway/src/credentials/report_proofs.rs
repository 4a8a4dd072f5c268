//! Proofs of an attestation for reports: a node that attested shows one with the report of its failed first boot. It earns nothing else, so
//! the node may keep it after the boot.

use std::time::Duration;

use attest::{NodeIdentity, UnixTime};
use serde::{Deserialize, Serialize};

use super::seal::{SealError, SealKeyRing, Sealed};

/// The attestation that a proof is about. Only the seal makes it authentic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenAttestation {
    /// Id of the decision.
    pub decision: String,
    pub identity: NodeIdentity,
    /// Cloud instance, if that is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<NodeIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub pool: String,
    /// The last second at which the proof is valid, since 1970.
    pub expires: u64,
}

/// Reason for refusing a proof.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportProofError {
    #[error("this gateway did not issue the proof of the attestation")]
    Invalid,
    #[error("the proof of the attestation expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired { expires: u64, now: u64 },
    #[error("the proof is of an attestation for pool {proven}, but the report is for pool {asked}")]
    WrongPool { proven: String, asked: String },
}

/// Issues a proof that is valid for `lifetime` after `now`; its `expires` is ignored.
///
/// # Errors
/// [`SealError`].
pub fn issue(seal: &SealKeyRing, attestation: ProvenAttestation, lifetime: Duration, now: UnixTime) -> Result<String, SealError> {
    let expires = now.as_secs().saturating_add(lifetime.as_secs());
    let content = serde_json::to_vec(&ProvenAttestation { expires, ..attestation })?;
    seal.seal(Sealed::Report, &content)
}

/// Opens a proof for a report about `pool`.
///
/// # Errors
/// [`ReportProofError`].
pub fn open(seal: &SealKeyRing, text: &str, pool: &str, now: UnixTime) -> Result<ProvenAttestation, ReportProofError> {
    let bytes = seal.unseal(Sealed::Report, text).map_err(|_| ReportProofError::Invalid)?;
    let proven: ProvenAttestation = serde_json::from_slice(&bytes).map_err(|_| ReportProofError::Invalid)?;
    let (expires, now) = (proven.expires, now.as_secs());
    if now > expires {
        return Err(ReportProofError::Expired { expires, now });
    }
    if proven.pool != pool {
        return Err(ReportProofError::WrongPool {
            proven: proven.pool,
            asked: pool.to_owned(),
        });
    }
    Ok(proven)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_proof_is_for_its_pool_and_time_and_of_its_seal() {
        let folder = tempfile::tempdir().unwrap();
        let seal = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
        let attestation = ProvenAttestation {
            decision: "ab".repeat(16),
            identity: NodeIdentity::from_ek("cd".repeat(32).parse().unwrap()),
            instance: None,
            name: Some("worker-1".to_owned()),
            pool: "worker".to_owned(),
            expires: 0,
        };
        let proof = issue(&seal, attestation.clone(), Duration::from_secs(60), at(1000)).unwrap();
        let open = |text: &str, pool, now| open(&seal, text, pool, at(now));
        let expires = 1060;
        assert_eq!(open(&proof, "worker", 1060), Ok(ProvenAttestation { expires, ..attestation }));
        assert_eq!(open(&proof, "worker", 1061), Err(ReportProofError::Expired { expires, now: 1061 }));
        assert!(matches!(open(&proof, "infra", 1000), Err(ReportProofError::WrongPool { .. })));
        let mut altered = proof.clone();
        altered.pop();
        let ticket = seal.seal(Sealed::Ticket, b"{}").unwrap();
        let junk = seal.seal(Sealed::Report, b"{}").unwrap();
        for wrong in [&*altered, &ticket, &junk, "", "a.b"] {
            assert_eq!(open(wrong, "worker", 1000), Err(ReportProofError::Invalid), "{wrong}");
        }
        // A proof earns no config.
        assert!(seal.unseal(Sealed::Ticket, &proof).is_err());
    }
}
