//! A pool's rules for STS, and the endpoints of STS.

use serde::{Deserialize, Serialize};

use super::document::VerifiedSts;
use super::error::StsError;
use crate::aws::names::{is_account, is_instance, is_region, is_role};
use crate::withheld::Withheld;

/// The rules. Accounts, roles and regions must be given; an empty list accepts nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawStsRules")]
pub struct StsRules {
    accounts: Vec<String>,
    roles: Vec<String>,
    regions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instances: Option<Vec<String>>,
}

/// Serialized form of the rules in `pool.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStsRules {
    accounts: Vec<String>,
    roles: Vec<String>,
    regions: Vec<String>,
    instances: Option<Vec<String>>,
}

/// A rule with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {found:?} is not a valid AWS {field}")]
pub struct StsRulesError {
    pub field: &'static str,
    pub found: String,
}

/// Endpoint of STS in a region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoint<'a> {
    pub(super) region: &'a str,
}

/// A partition of AWS: regions that share accounts, names and nothing with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StsPartition {
    /// Name of the partition in ARNs.
    pub(super) arn: &'static str,
    /// Suffix of the host names of endpoints.
    dns_suffix: &'static str,
}

/// The partition of a region: by its name, as AWS's SDKs have it (`partitions.json` of smithy-rs and of botocore; there the European Sovereign
/// Cloud is `aws-eusc`, `^eusc\-(de)\-\w+\-\d+$`, `amazonaws.eu`).
pub(super) fn partition_of(region: &str) -> StsPartition {
    let (arn, dns_suffix) = match region {
        china if china.starts_with("cn-") => ("aws-cn", "amazonaws.com.cn"),
        government if government.starts_with("us-gov-") => ("aws-us-gov", "amazonaws.com"),
        sovereign if sovereign.starts_with("eusc-") => ("aws-eusc", "amazonaws.eu"),
        _ => ("aws", "amazonaws.com"),
    };
    StsPartition { arn, dns_suffix }
}

impl Endpoint<'_> {
    pub(super) fn host(&self) -> String {
        format!("sts.{}.{}", self.region, partition_of(self.region).dns_suffix)
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}/", self.host())
    }
}

impl TryFrom<RawStsRules> for StsRules {
    type Error = StsRulesError;

    fn try_from(raw: RawStsRules) -> Result<Self, StsRulesError> {
        check_form("account", &raw.accounts, is_account)?;
        check_form("role", &raw.roles, is_role)?;
        check_form("region", &raw.regions, is_public_region)?;
        check_form("instance", raw.instances.as_deref().unwrap_or_default(), is_instance)?;
        Ok(Self {
            accounts: raw.accounts,
            roles: raw.roles,
            regions: raw.regions,
            instances: raw.instances,
        })
    }
}

fn check_form(field: &'static str, values: &[String], is_one: fn(&str) -> bool) -> Result<(), StsRulesError> {
    match values.iter().find(|value| !is_one(value)) {
        None => Ok(()),
        Some(found) => Err(StsRulesError {
            field,
            found: found.clone(),
        }),
    }
}

/// The isolated partitions have other suffixes, which are not known here.
fn is_public_region(text: &str) -> bool {
    is_region(text) && !text.starts_with("us-iso") && !text.starts_with("eu-iso")
}

impl StsRules {
    /// The endpoints that may be called: those of the regions listed.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = Endpoint<'_>> {
        self.regions.iter().map(|region| Endpoint { region })
    }
}

/// Appraises what AWS has answered against a pool's rules. They need no time: freshness is the request's.
///
/// # Errors
/// [`StsError`] with both values, for the first rule that does not hold.
pub fn appraise(verified: &VerifiedSts, rules: &StsRules) -> Result<(), StsError> {
    let one_of = |found: &str, accepted: &[String]| accepted.iter().any(|accepted| accepted == found);
    if !one_of(&verified.account, &rules.accounts) {
        return Err(StsError::Account {
            found: verified.account.clone(),
            accepted: Withheld::one_of(&rules.accounts),
        });
    }
    if !one_of(&verified.role, &rules.roles) {
        return Err(StsError::Role {
            found: verified.role.clone(),
            accepted: Withheld::one_of(&rules.roles),
        });
    }
    match &rules.instances {
        Some(accepted) if !one_of(&verified.instance, accepted) => Err(StsError::Instance {
            found: verified.instance.clone(),
            accepted: Withheld::one_of(accepted),
        }),
        _ => Ok(()),
    }
}
