//! Estimates how long verification takes by the form of the input, before any of it is trusted.

use attest::Kind;
use attest::protocol::{Evidence, TpmAttester};

use crate::admission::Length;

/// An event log that is hashed in about a millisecond, however many events it has. That of a server has some 40 KB.
const SHORT_LOG_BYTES: usize = 128 * 1024;

/// Estimates a challenge: the verification of a TPM's endorsement, and its credential.
pub(super) fn estimate_challenge(kinds: impl IntoIterator<Item = Kind>, tpm: Option<&TpmAttester>) -> Length {
    match tpm {
        Some(tpm) if kinds.into_iter().all(|kind| kind == Kind::Tpm) => estimate_chain(tpm),
        _ => Length::Long,
    }
}

/// Estimates evidence, with the TPM that its challenge is about.
pub(super) fn estimate_evidence(evidence: &Evidence, tpm: Option<&TpmAttester>) -> Length {
    let log = evidence.tpm.as_ref().and_then(|tpm| tpm.event_log.as_ref());
    match log.is_none_or(|log| log.as_ref().len() <= SHORT_LOG_BYTES) {
        true => estimate_challenge(evidence.kinds(), tpm),
        false => Length::Long,
    }
}

/// Estimates a chain: a sender of intermediates determines how many signatures are verified, and with which keys.
const fn estimate_chain(tpm: &TpmAttester) -> Length {
    match tpm.ek_intermediates.is_empty() {
        true => Length::Short,
        false => Length::Long,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use attest::protocol::{Blob, HexDigest, SecretText, TokenEvidence, TpmEvidence};

    use super::*;

    fn attester(intermediates: usize) -> TpmAttester {
        TpmAttester {
            ek_public: Blob::default(),
            ek_certificate: Some(Blob(vec![7; 1000])),
            ek_certificate_unread: false,
            ek_intermediates: vec![Blob(vec![7; 1000]); intermediates],
            ak_public: Blob::default(),
        }
    }

    fn evidence(log_bytes: usize) -> Evidence {
        TpmEvidence {
            secret_sha256: HexDigest::from([7; 32]),
            quoted: Blob::default(),
            signature: Blob::default(),
            pcrs: BTreeMap::new(),
            event_log: Some(Blob(vec![7; log_bytes])),
        }
        .into()
    }

    #[test]
    fn only_bounded_verification_work_counts_as_short() {
        let [alone, chain] = [attester(0), attester(1)];
        assert_eq!(estimate_challenge([Kind::Tpm], Some(&alone)), Length::Short);
        assert_eq!(estimate_challenge([Kind::Tpm], Some(&chain)), Length::Long);
        assert_eq!(estimate_challenge([Kind::Tpm, Kind::Gcp], Some(&alone)), Length::Long);
        assert_eq!(estimate_challenge([Kind::Gcp], None), Length::Long);

        assert_eq!(estimate_evidence(&evidence(SHORT_LOG_BYTES), Some(&alone)), Length::Short);
        assert_eq!(estimate_evidence(&evidence(SHORT_LOG_BYTES + 1), Some(&alone)), Length::Long);
        assert_eq!(estimate_evidence(&evidence(1), Some(&chain)), Length::Long);
        assert_eq!(estimate_evidence(&evidence(1), None), Length::Long);
        let with_token = Evidence {
            token: Some(TokenEvidence {
                token: SecretText::default(),
            }),
            ..evidence(1)
        };
        assert_eq!(estimate_evidence(&with_token, Some(&alone)), Length::Long);
    }
}
