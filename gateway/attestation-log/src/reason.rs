//! Reasons for which a node was trusted, served or refused, in words for people.

use attest::{AttestationResult, Reject, TpmEvidenceError};

use super::record::ShownEvidence;
use super::ticket_use::TicketUse;

/// Returns the reason for which a config was served without a client certificate. `audit` compares it.
#[must_use]
pub fn served_for(shown: ShownEvidence, used: Option<TicketUse>) -> String {
    match (shown, used) {
        (ShownEvidence::Ticket, Some(made)) => format!("a ticket was shown, use {}{}", made.number, late(made)),
        (
            ShownEvidence::Token,
            Some(TicketUse {
                number,
                is_repeated: again,
                ..
            }),
        ) => {
            let again = if again { ", again" } else { "" };
            format!("a provisioning token was shown, use {number}{again}")
        }
        _ => "nothing was shown".to_owned(),
    }
}

/// Describes the use of a ticket that had expired.
pub(super) fn late(TicketUse { number, late_seconds, .. }: TicketUse) -> String {
    match (late_seconds, number) {
        (None, _) => String::new(),
        (Some(seconds), 1) => format!(", {seconds} s after it expired; it was not used before"),
        (Some(seconds), _) => format!(", {seconds} s after it expired; its first use was late, too"),
    }
}

/// Returns the reason for which a node was trusted. `audit` compares it, and with a changed text older records come out differently. So it
/// contains only what follows from the claims, and from what the pool observed.
#[must_use]
pub fn trusted_by(result: &AttestationResult) -> String {
    result.reasons().join("; ")
}

/// Longest reason in a record, in characters: twice the longest that is about one thing, a list of accepted digests of one PCR.
const REASON_LIMIT_CHARACTERS: usize = 4096;

/// Returns the reason of a refusal of evidence. `audit` compares it.
#[must_use]
pub fn refused_for(reject: &Reject) -> String {
    let command = command_for(reject);
    with_next_step(&reject.detail(), command.as_deref().unwrap_or(reject.advice().next_step))
}

/// Returns the next step after a refusal of evidence, where it is one command; otherwise it is the advice's.
#[must_use]
pub fn command_for(reject: &Reject) -> Option<String> {
    unknown_ek(reject).map(|ek_digest| {
        format!(
            "If this machine is yours: `attest-gateway ek add {ek_digest} --name NODE`, or let the pool trust the TPM's manufacturer (docs/how-to/endorse-tpms.md); then boot again."
        )
    })
}

/// Returns the digest of the EK, if evidence is refused because nobody endorses its TPM.
#[must_use]
pub const fn unknown_ek(reject: &Reject) -> Option<&String> {
    match reject {
        Reject::Tpm(
            TpmEvidenceError::EkNotEndorsed { ek_digest, .. }
            | TpmEvidenceError::EkUnknown { ek_digest }
            | TpmEvidenceError::EkCertificateUnread { ek_digest },
        ) => Some(ek_digest),
        _ => None,
    }
}

/// Returns the reason of a refusal and what to do about it, as a record has it. Some details are as long as what the node sent.
#[must_use]
pub fn with_next_step(detail: &str, next_step: &str) -> String {
    let reason = format!("{detail}{NEXT_STEP}{next_step}");
    match reason.char_indices().nth(REASON_LIMIT_CHARACTERS) {
        Some((end, _)) => format!("{}…", reason.get(..end).unwrap_or_default()),
        None => reason,
    }
}

/// Separator between a refusal's reason and the next step.
pub const NEXT_STEP: &str = "; next: ";

/// Returns the reason of a refusal with what the machine had before, inserted before the next step.
#[must_use]
pub fn with_before(reason: &str, before: Option<&str>) -> String {
    match (before, reason.rsplit_once(NEXT_STEP)) {
        (None, _) => reason.to_owned(),
        (Some(before), Some((why, next))) => format!("{why}; {before}{NEXT_STEP}{next}"),
        (Some(before), None) => format!("{reason}; {before}"),
    }
}
