//! Why a node was trusted, or served, for a person.

use attest::tpm::EventLogClaims;
use attest::{Claims, EndorsedBy, TpmClaims};

use super::record::Shown;

/// Which use of a ticket or token a config was served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Its number.
    pub number: u32,
    /// Whether its node had made it before.
    pub again: bool,
    /// How long after the ticket had expired, seconds, if it had.
    pub late_seconds: Option<u64>,
}

/// For what a config was served that was asked for without a client certificate. `audit` compares it.
#[must_use]
pub fn served_for(shown: Shown, used: Option<Use>) -> String {
    match (shown, used) {
        (Shown::Ticket, Some(made)) => format!("a ticket was shown, use {}{}", made.number, late(made)),
        (Shown::Token, Some(Use { number, again, .. })) => {
            let again = if again { ", again" } else { "" };
            format!("a provisioning token was shown, use {number}{again}")
        }
        _ => "nothing was shown".to_owned(),
    }
}

/// What is to be said of a use after its ticket had expired.
pub(super) fn late(Use { number, late_seconds, .. }: Use) -> String {
    match (late_seconds, number) {
        (None, _) => String::new(),
        (Some(seconds), 1) => format!(", {seconds} s after it expired; it was not used before"),
        (Some(seconds), _) => format!(", {seconds} s after it expired; its first use was late, too"),
    }
}

/// By what a node was trusted. `audit` compares it: a text that is changed makes older records come out differently, so it says only
/// what follows from the claims.
#[must_use]
pub fn trusted_by(claims: &Claims) -> String {
    let mut reasons = Vec::new();
    reasons.extend(claims.tpm().map(tpm_reason));
    if let Some(identity) = claims.gcp() {
        let (instance, account) = (identity.instance(), identity.service_account());
        reasons.push(format!(
            "identity token of Google: instance {} in {}, service account {}",
            instance.instance_name(),
            instance.zone(),
            account.email
        ));
    }
    if let Some(claimed) = claims.aws_identity_document() {
        let document = claimed.document().replayable();
        reasons.push(format!(
            "identity document of AWS: image {} in {}",
            document.image_id(),
            document.region()
        ));
    }
    if let Some(document) = claims.aws_nitro_tpm() {
        let document = document.document();
        reasons.push(format!(
            "NitroTPM document of AWS: {} PCRs accepted, in {}",
            document.pcrs().len(),
            document.region()
        ));
    }
    if let Some(caller) = claims.aws_sts() {
        reasons.push(format!("AWS STS in {}: role {}", caller.region(), caller.role()));
    }
    if let Some(document) = claims.azure() {
        let place = document.location().unwrap_or("an unnamed region");
        reasons.push(format!("attested document of Azure, signed in {place}"));
    }
    if let Some(vtpm) = claims.azure_vtpm() {
        reasons.push(format!(
            "vTPM of Azure: AK certified as {}, {} PCRs accepted",
            vtpm.certificate().name(),
            vtpm.pcrs().len()
        ));
    }
    if let Some(name) = claims.token() {
        reasons.push(format!("provisioning token {name:?}"));
    }
    reasons.join("; ")
}

fn tpm_reason(tpm: &TpmClaims) -> String {
    let by = match &tpm.endorsed_by {
        EndorsedBy::Allowlist => "the allowlist".to_owned(),
        EndorsedBy::Root { root_subject, .. } => format!("{root_subject:?}"),
        EndorsedBy::GcpInstance(instance) => format!("Google as the vTPM of {}", instance.identity()),
    };
    let log = match &tpm.event_log {
        None => "no event log".to_owned(),
        Some(EventLogClaims {
            problem: Some(problem), ..
        }) => format!("an event log that explains none of them ({})", problem.refusal().code()),
        Some(log) => format!(
            "an event log of {} events explains {} of them",
            log.events,
            log.explained_pcrs.len()
        ),
    };
    format!(
        "EK endorsed by {by}; AK in the same TPM; {} PCRs of {} quoted and accepted, {log}",
        tpm.pcrs.len(),
        tpm.pcr_bank
    )
}
