//! Why a node was trusted, or served, for a person.

use attest::AttestationResult;

use super::record::Shown;
use super::ticket_use::Use;

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
/// what follows from the claims, and from what the pool observed.
#[must_use]
pub fn trusted_by(result: &AttestationResult) -> String {
    result.reasons().join("; ")
}

/// What stands between a refusal's reason and what to do.
pub const NEXT_STEP: &str = "; next: ";

/// The reason of a refusal with what the machine had before, which goes before the next step.
#[must_use]
pub fn with_before(reason: &str, before: Option<&str>) -> String {
    match (before, reason.rsplit_once(NEXT_STEP)) {
        (None, _) => reason.to_owned(),
        (Some(before), Some((why, next))) => format!("{why}; {before}{NEXT_STEP}{next}"),
        (Some(before), None) => format!("{reason}; {before}"),
    }
}
