use serde::Serialize;

use crate::gcp::Instance;

/// What an identity token has proven. Only [`crate::gcp::verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedIdentity {
    pub(super) instance: Instance,
    pub(super) created: u64,
    pub(super) confidentiality: Option<u64>,
    pub(super) licenses: Vec<String>,
    pub(super) service_account: ServiceAccount,
    pub(super) issued: u64,
    pub(super) expires: u64,
    pub(super) key_id: String,
}

/// The service account that the instance runs as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceAccount {
    /// Its unique id: a decimal number.
    pub id: String,
    /// Its email address.
    pub email: String,
}

impl VerifiedIdentity {
    /// The instance.
    #[must_use]
    pub const fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The stable identity of the node: [`Instance::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        self.instance.identity()
    }

    /// When the instance was created, in seconds since 1970.
    #[must_use]
    pub const fn created(&self) -> u64 {
        self.created
    }

    /// `instance_confidentiality`: 1 for a Confidential VM, in Google's own words; `None` where it does not say.
    #[must_use]
    pub const fn confidentiality(&self) -> Option<u64> {
        self.confidentiality
    }

    /// Codes of the licences of the images that the instance's disks were made of.
    #[must_use]
    pub fn licenses(&self) -> &[String] {
        &self.licenses
    }

    /// The service account.
    #[must_use]
    pub const fn service_account(&self) -> &ServiceAccount {
        &self.service_account
    }

    /// When Google signed, in seconds since 1970.
    #[must_use]
    pub const fn issued(&self) -> u64 {
        self.issued
    }

    /// Until when it is valid, in seconds since 1970.
    #[must_use]
    pub const fn expires(&self) -> u64 {
        self.expires
    }

    /// The key it was signed with.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }
}
