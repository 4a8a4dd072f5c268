use std::fmt;

use serde::{Deserialize, Serialize};

/// How far in the future createdOn may be: what the clocks of Azure and of the gateway may differ.
pub const CLOCK_SKEW_LIMIT_SECONDS: u64 = 300;

/// Which attested documents a pool accepts. What is left out is not checked, but for the subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestedDocumentRules {
    /// The subscriptions whose machines are accepted: UUIDs. An empty list refuses everything.
    pub subscriptions: Vec<String>,
    /// The machines: UUIDs.
    #[serde(default)]
    pub vm_ids: Option<Vec<String>>,
    /// The SKUs of Marketplace images, such as `20_04-lts-gen2`; `""` for images that are not from there.
    #[serde(default)]
    pub skus: Option<Vec<String>>,
    /// The regions of the metadata services that sign, such as `eastus`.
    #[serde(default)]
    pub locations: Option<Vec<String>>,
    /// How long ago, in seconds, the document may have been made.
    #[serde(default)]
    pub max_age_seconds: Option<u64>,
}

/// A rule that accepts one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// [`AttestedDocumentRules::subscriptions`].
    Subscription,
    /// [`AttestedDocumentRules::vm_ids`].
    Vm,
    /// [`AttestedDocumentRules::skus`].
    Sku,
    /// [`AttestedDocumentRules::locations`].
    Location,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subscription => "subscription",
            Self::Vm => "vmId",
            Self::Sku => "sku",
            Self::Location => "location",
        })
    }
}
