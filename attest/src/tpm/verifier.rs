//! A TPM's evidence, verified step by step; cheap refusals first, and nothing used before it is verified.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls_pki_types::UnixTime;
use subtle::ConstantTimeEq;

use super::ak::AkPublic;
use super::boot_complete::BootCompleteMeasurement;
use super::claims::{EventLogClaims, EventLogProblem, TpmClaims};
use super::endorsements::TpmEndorsements;
use super::error::TpmEvidenceError;
use super::event_log::EventLog;
use super::measured_boot::MeasuredBoot;
use super::pcr::{PcrSelection, PcrValues};
use super::quote::{self, ExpectedQuote, VerifiedQuote};
use super::wire::HashAlg;
use super::{TpmEvidence, TpmSubject};
use crate::nonce::{EvidenceBinding, SpkiSha256, qualifying_data};
use crate::values::HexDigest;

/// Verifies `evidence` as the answer to what was asked of `subject`; also returns the server key that the node saw.
pub(crate) fn verify(
    binding: &EvidenceBinding<'_>,
    subject: &TpmSubject,
    evidence: &TpmEvidence,
    endorsements: &TpmEndorsements,
    now: UnixTime,
) -> Result<(TpmClaims, SpkiSha256), TpmEvidenceError> {
    activated(subject, evidence)?;
    let answer = ShownQuote {
        ak_public: subject.attester.ak_public.as_ref(),
        quoted: evidence.quoted.as_ref(),
        signature: evidence.signature.as_ref(),
        pcrs: &evidence.pcrs,
    };
    // The TPM signed these PCRs for this challenge and for a key of this server.
    let (ak, quote) = quoted(binding, &subject.selection, &answer)?;

    // Somebody trusted vouches for the EK, still: the endorsements may have changed since the challenge.
    let endorsed = endorsements.endorse(&subject.attester, now)?;

    let event_log = evidence
        .event_log
        .as_ref()
        .map(|log| explain(log.as_ref(), subject.selection.bank(), &evidence.pcrs));
    let claims = TpmClaims {
        ek_digest: endorsed.ek.digest(),
        endorsed_by: endorsed.by,
        ak_name: ak.name().to_string(),
        pcr_bank: subject.selection.bank(),
        pcrs: evidence.pcrs.clone(),
        clock_ms: quote.clock.clock_ms,
        reset_count: quote.clock.reset_count,
        restart_count: quote.clock.restart_count,
        clock_safe: quote.clock.safe,
        firmware_version: quote.firmware_version,
        event_log,
    };
    Ok((claims, quote.server_key))
}

/// The AK is in the TPM that has the EK: only that TPM could recover the secret.
pub(crate) fn activated(subject: &TpmSubject, evidence: &TpmEvidence) -> Result<(), TpmEvidenceError> {
    let activated = subject.secret_sha256.as_bytes().ct_eq(evidence.secret_sha256.as_bytes());
    match bool::from(activated) {
        true => Ok(()),
        false => Err(TpmEvidenceError::CredentialMismatch),
    }
}

/// A TPM's answer, regardless of the endorsement of its AK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownQuote<'a> {
    /// TPMT_PUBLIC of the AK.
    pub(crate) ak_public: &'a [u8],
    /// The quote, a `TPMS_ATTEST`.
    pub(crate) quoted: &'a [u8],
    /// The signature over the quote, a `TPMT_SIGNATURE`.
    pub(crate) signature: &'a [u8],
    /// The presented values of the PCRs.
    pub(crate) pcrs: &'a BTreeMap<u8, HexDigest>,
}

/// Verifies that the AK signed these PCRs, for this challenge and for a key of this server. That the AK is in a TPM is for others to say.
pub(crate) fn quoted(
    binding: &EvidenceBinding<'_>,
    selection: &PcrSelection,
    answer: &ShownQuote<'_>,
) -> Result<(AkPublic, VerifiedQuote), TpmEvidenceError> {
    let pcrs = PcrValues::presented(answer.pcrs, selection)?;
    let ak = AkPublic::parse(answer.ak_public)?;
    let bound = |key: &SpkiSha256| (*key, qualifying_data(binding.nonce, binding.purpose, binding.pool, key));
    let extra_data: Vec<_> = binding.server_keys.iter().map(bound).collect();
    let expected = ExpectedQuote {
        extra_data: &extra_data,
        selection,
        pcrs,
    };
    let quote = quote::verify(&ak, answer.quoted, answer.signature, &expected)?;
    Ok((ak, quote))
}

/// Replays the log against the PCRs, which at this point are the quoted ones. What is wrong with it is for the pool's rules to weigh, after the
/// PCRs themselves: [`crate::appraise`].
pub(crate) fn explain(log: &[u8], bank: HashAlg, quoted: &BTreeMap<u8, HexDigest>) -> EventLogClaims {
    let nothing = |events, problem| EventLogClaims {
        events,
        problem: Some(problem),
        ..EventLogClaims::default()
    };
    let parsed = match EventLog::parse(log) {
        Ok(parsed) => parsed,
        Err(error) => return nothing(0, EventLogProblem::Malformed(error)),
    };
    let door = BootCompleteMeasurement::by(&parsed, bank);
    match parsed.check_against(bank, quoted) {
        Err(error) => EventLogClaims {
            door,
            ..nothing(parsed.event_count(), EventLogProblem::Mismatch(error))
        },
        Ok(trusted) => {
            let boot = MeasuredBoot::from_events(&trusted);
            EventLogClaims {
                events: parsed.event_count(),
                explained_pcrs: trusted.explained_pcrs().collect(),
                os_separator_pcrs: trusted.separated_pcrs().collect(),
                os_phases: trusted.phases().to_vec(),
                secure_boot: boot.secure_boot().ok(),
                problem: None,
                boot: Some(Arc::new(boot)),
                door,
            }
        }
    }
}
