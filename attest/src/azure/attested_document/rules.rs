use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum time that `createdOn` may be in the future, in seconds: the difference between the clocks of Azure and of the gateway.
pub const CLOCK_SKEW_LIMIT_SECONDS: u64 = 300;

/// A pool's rules for attested documents. Rules that are left out are not checked, except for the subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestedDocumentRules {
    /// The subscriptions whose machines are accepted: UUIDs. An empty list refuses everything.
    pub subscriptions: Vec<String>,
    /// The machines that are accepted, by `vmId`: UUIDs.
    #[serde(default)]
    pub vm_ids: Option<Vec<String>>,
    /// The SKUs of Marketplace images, such as `20_04-lts-gen2`; `""` for images that are not from there.
    #[serde(default)]
    pub skus: Option<Vec<String>>,
    /// The regions of the metadata services that sign, such as `eastus`.
    #[serde(default)]
    pub locations: Option<Vec<String>>,
    /// Maximum time since the document was made, in seconds.
    #[serde(default)]
    pub max_age_seconds: Option<u64>,
}

/// A rule that accepts one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AzureValueRule {
    /// Checks the subscription: [`AttestedDocumentRules::subscriptions`].
    Subscription,
    /// Checks the vmId: [`AttestedDocumentRules::vm_ids`].
    Vm,
    /// Checks the SKU: [`AttestedDocumentRules::skus`].
    Sku,
    /// Checks the location: [`AttestedDocumentRules::locations`].
    Location,
}

impl fmt::Display for AzureValueRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subscription => "subscription",
            Self::Vm => "vmId",
            Self::Sku => "sku",
            Self::Location => "location",
        })
    }
}
