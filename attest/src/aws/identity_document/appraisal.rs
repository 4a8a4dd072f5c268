//! Appraisal of a verified identity document by a pool's rules.

use rustls_pki_types::UnixTime;

use super::rules::{CLOCK_SKEW_LIMIT_SECONDS, IdentityDocumentRules, ValueRule};
use super::{IdentityDocumentError, Replayable, VerifiedIdentityDocument};
use crate::withheld::Withheld;

/// Compares a verified document with a pool's rules, at `now`.
///
/// # Errors
/// [`IdentityDocumentError::NotAccepted`], [`IdentityDocumentError::Replayable`], and those about age.
pub fn appraise(
    document: &Replayable<VerifiedIdentityDocument>,
    rules: &IdentityDocumentRules,
    now: UnixTime,
) -> Result<(), IdentityDocumentError> {
    if !rules.accept_replayable {
        return Err(IdentityDocumentError::Replayable);
    }
    appraise_with_fresh(document, rules, now)
}

/// Compares a verified document as [`appraise`] does, next to evidence that is bound to the challenge and names the same instance. A copy of the
/// document is worth nothing then.
///
/// # Errors
/// [`IdentityDocumentError::NotAccepted`] and those about age.
pub(super) fn appraise_with_fresh(
    document: &Replayable<VerifiedIdentityDocument>,
    rules: &IdentityDocumentRules,
    now: UnixTime,
) -> Result<(), IdentityDocumentError> {
    let document = document.replayable();
    one_of(ValueRule::Account, document.account_id.as_str(), &rules.accounts)?;
    let partition = document
        .partition
        .map_or_else(|| "an unknown one".to_owned(), |partition| partition.to_string());
    let partitions: Vec<String> = rules.partitions.iter().map(ToString::to_string).collect();
    one_of(ValueRule::Partition, &partition, &partitions)?;
    for (rule, found, accepted) in [
        (ValueRule::Region, document.region.as_str(), &rules.regions),
        (
            ValueRule::AvailabilityZone,
            document.availability_zone.as_str(),
            &rules.availability_zones,
        ),
        (ValueRule::Image, document.image_id.as_str(), &rules.image_ids),
        (ValueRule::InstanceType, document.instance_type.as_str(), &rules.instance_types),
    ] {
        accepted.as_ref().map_or(Ok(()), |accepted| one_of(rule, found, accepted))?;
    }
    let (pending_time, now) = (document.pending_time, now.as_secs());
    if pending_time > now.saturating_add(CLOCK_SKEW_LIMIT_SECONDS) {
        return Err(IdentityDocumentError::Future { pending_time, now });
    }
    let age_seconds = now.saturating_sub(pending_time);
    match rules.max_age_seconds {
        Some(limit_seconds) if age_seconds > limit_seconds => Err(IdentityDocumentError::TooOld {
            age_seconds,
            accepted: Withheld::at_most_seconds(limit_seconds),
        }),
        _ => Ok(()),
    }
}

fn one_of(rule: ValueRule, found: &str, accepted: &[String]) -> Result<(), IdentityDocumentError> {
    if accepted.iter().any(|accepted| accepted == found) {
        return Ok(());
    }
    Err(IdentityDocumentError::NotAccepted {
        rule,
        found: found.to_owned(),
        accepted: Withheld::one_of(accepted),
    })
}
