use std::fmt;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::{IdentityDocumentError, Partition, Replayable, VerifiedIdentityDocument};
use crate::withheld::Withheld;

/// How far in the future pendingTime may be: what the clocks of AWS and of the gateway may differ.
pub const CLOCK_SKEW_LIMIT_SECONDS: u64 = 300;

/// Which identity documents a pool accepts. What is left out is not checked, but for the first three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentRules {
    /// Whether evidence is accepted that a copy would be as well. Left out, a document is refused unless evidence beside it is bound to
    /// the challenge and names the same instance.
    #[serde(default)]
    pub accept_replayable: bool,
    /// The accounts whose instances are accepted: 12 digits each. An empty list refuses everything.
    pub accounts: Vec<String>,
    /// The partitions in which the accounts are; left out, `aws` only. Another partition may have an account of the same number.
    #[serde(default = "commercial")]
    pub partitions: Vec<Partition>,
    /// The regions, such as `eu-central-1`.
    #[serde(default)]
    pub regions: Option<Vec<String>>,
    /// The availability zones, such as `eu-central-1a`.
    #[serde(default)]
    pub availability_zones: Option<Vec<String>>,
    /// The images, such as `ami-0b76fe9a9986f66a7`.
    #[serde(default)]
    pub image_ids: Option<Vec<String>>,
    /// The instance types, such as `m7i.large`.
    #[serde(default)]
    pub instance_types: Option<Vec<String>>,
    /// How long ago, in seconds, the instance may have been started.
    #[serde(default)]
    pub max_age_seconds: Option<u64>,
}

fn commercial() -> Vec<Partition> {
    vec![Partition::Aws]
}

/// A rule that accepts one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// [`IdentityDocumentRules::accounts`].
    Account,
    /// [`IdentityDocumentRules::partitions`].
    Partition,
    /// [`IdentityDocumentRules::regions`].
    Region,
    /// [`IdentityDocumentRules::availability_zones`].
    AvailabilityZone,
    /// [`IdentityDocumentRules::image_ids`].
    Image,
    /// [`IdentityDocumentRules::instance_types`].
    InstanceType,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Account => "account",
            Self::Partition => "partition",
            Self::Region => "region",
            Self::AvailabilityZone => "availability zone",
            Self::Image => "image",
            Self::InstanceType => "instance type",
        })
    }
}

/// Compares a verified document with a pool's rules, at `now`.
///
/// # Errors
/// [`IdentityDocumentError::NotAccepted`] and those about replay and age.
pub fn appraise(
    document: &Replayable<VerifiedIdentityDocument>,
    rules: &IdentityDocumentRules,
    now: UnixTime,
) -> Result<(), IdentityDocumentError> {
    if !rules.accept_replayable {
        return Err(IdentityDocumentError::Replayable);
    }
    appraise_beside_fresh(document, rules, now)
}

/// The same beside evidence that is bound to the challenge and names the same instance: then a copy is worth nothing.
///
/// # Errors
/// [`IdentityDocumentError::NotAccepted`] and those about age.
pub(super) fn appraise_beside_fresh(
    document: &Replayable<VerifiedIdentityDocument>,
    rules: &IdentityDocumentRules,
    now: UnixTime,
) -> Result<(), IdentityDocumentError> {
    let document = document.replayable();
    one_of(Rule::Account, document.account_id.as_str(), &rules.accounts)?;
    let partition = document
        .partition
        .map_or_else(|| "an unknown one".to_owned(), |partition| partition.to_string());
    let partitions: Vec<String> = rules.partitions.iter().map(ToString::to_string).collect();
    one_of(Rule::Partition, &partition, &partitions)?;
    for (rule, found, accepted) in [
        (Rule::Region, document.region.as_str(), &rules.regions),
        (
            Rule::AvailabilityZone,
            document.availability_zone.as_str(),
            &rules.availability_zones,
        ),
        (Rule::Image, document.image_id.as_str(), &rules.image_ids),
        (Rule::InstanceType, document.instance_type.as_str(), &rules.instance_types),
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

fn one_of(rule: Rule, found: &str, accepted: &[String]) -> Result<(), IdentityDocumentError> {
    if accepted.iter().any(|accepted| accepted == found) {
        return Ok(());
    }
    Err(IdentityDocumentError::NotAccepted {
        rule,
        found: found.to_owned(),
        accepted: Withheld::one_of(accepted),
    })
}
