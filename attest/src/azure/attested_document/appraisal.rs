//! Appraisal of a verified attested document by a pool's rules.

use rustls_pki_types::UnixTime;

use super::rules::{AttestedDocumentRules, AzureValueRule, CLOCK_SKEW_LIMIT_SECONDS};
use super::{AttestedDocumentError, VerifiedAttestedDocument};
use crate::withheld::Withheld;

/// Compares a verified document with a pool's rules, at `now`.
///
/// # Errors
/// [`AttestedDocumentError::NotAccepted`] and those about time.
pub fn appraise(document: &VerifiedAttestedDocument, rules: &AttestedDocumentRules, now: UnixTime) -> Result<(), AttestedDocumentError> {
    one_of(
        AzureValueRule::Subscription,
        Some(document.subscription_id.as_str()),
        &rules.subscriptions,
    )?;
    for (rule, found, accepted) in [
        (AzureValueRule::Vm, Some(document.vm_id.as_str()), &rules.vm_ids),
        (AzureValueRule::Sku, document.sku.as_deref(), &rules.skus),
        (AzureValueRule::Location, document.location.as_deref(), &rules.locations),
    ] {
        accepted.as_ref().map_or(Ok(()), |accepted| one_of(rule, found, accepted))?;
    }
    let (created_on, expires_on, now) = (document.created_on, document.expires_on, now.as_secs());
    if created_on > now.saturating_add(CLOCK_SKEW_LIMIT_SECONDS) {
        return Err(AttestedDocumentError::Future { created_on, now });
    }
    if now > expires_on {
        return Err(AttestedDocumentError::Expired { expires_on, now });
    }
    let age_seconds = now.saturating_sub(created_on);
    match rules.max_age_seconds {
        Some(limit_seconds) if age_seconds > limit_seconds => Err(AttestedDocumentError::TooOld {
            age_seconds,
            accepted: Withheld::at_most_seconds(limit_seconds),
        }),
        _ => Ok(()),
    }
}

/// Compares an identifier of Azure's without regard to case.
fn one_of(rule: AzureValueRule, found: Option<&str>, accepted: &[String]) -> Result<(), AttestedDocumentError> {
    if found.is_some_and(|found| accepted.iter().any(|accepted| accepted.eq_ignore_ascii_case(found))) {
        return Ok(());
    }
    Err(AttestedDocumentError::NotAccepted {
        rule,
        found: found.map_or_else(|| "not told".to_owned(), |found| format!("{found:?}")),
        accepted: Withheld::one_of(accepted),
    })
}
