use std::fmt;

use serde::{Deserialize, Serialize};

use super::AwsPartition;

/// Maximum time that `pendingTime` may be in the future, in seconds: the difference between the clocks of AWS and of the gateway.
pub const CLOCK_SKEW_LIMIT_SECONDS: u64 = 300;

/// A pool's rules for identity documents. Rules that are left out are not checked, except for the first three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentRules {
    /// Set if replayable evidence is accepted, of which a copy is as good. Otherwise a document is refused unless other evidence is bound
    /// to the challenge and names the same instance.
    #[serde(default)]
    pub accept_replayable: bool,
    /// The accounts whose instances are accepted: 12 digits each. An empty list refuses everything.
    pub accounts: Vec<String>,
    /// The partitions in which the accounts are; left out, `aws` only. Another partition may have an account of the same number.
    #[serde(default = "commercial")]
    pub partitions: Vec<AwsPartition>,
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
    /// Maximum time since the instance's start, in seconds.
    #[serde(default)]
    pub max_age_seconds: Option<u64>,
}

fn commercial() -> Vec<AwsPartition> {
    vec![AwsPartition::Aws]
}

/// A rule that accepts one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRule {
    /// Checks the account: [`IdentityDocumentRules::accounts`].
    Account,
    /// Checks the partition: [`IdentityDocumentRules::partitions`].
    Partition,
    /// Checks the region: [`IdentityDocumentRules::regions`].
    Region,
    /// Checks the availability zone: [`IdentityDocumentRules::availability_zones`].
    AvailabilityZone,
    /// Checks the image: [`IdentityDocumentRules::image_ids`].
    Image,
    /// Checks the instance type: [`IdentityDocumentRules::instance_types`].
    InstanceType,
}

impl fmt::Display for ValueRule {
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
