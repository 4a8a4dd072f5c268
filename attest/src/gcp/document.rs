use serde::Serialize;

use crate::gcp::Instance;
use crate::verified::Verified;

/// Whom an identity token is about, and what else Google says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    pub instance: Instance,
    /// When the instance was created, in seconds since 1970.
    pub created: u64,
    /// `instance_confidentiality`: 1 for a Confidential VM, in Google's own words; `None` where it does not say.
    pub confidentiality: Option<u64>,
    /// Codes of the licences of the images that the instance's disks were made of.
    pub licenses: Vec<String>,
    pub service_account: ServiceAccount,
    /// When Google signed, in seconds since 1970.
    pub issued: u64,
    /// Until when it is valid, in seconds since 1970.
    pub expires: u64,
    /// The key it was signed with.
    pub key_id: String,
}

/// What an identity token has proven. Only [`crate::gcp::verify`] makes one.
pub type VerifiedIdentity = Verified<Identity>;

/// The service account that the instance runs as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceAccount {
    /// Its unique id: a decimal number.
    pub id: String,
    /// Its email address.
    pub email: String,
}

impl Identity {
    /// The stable identity of the node: [`Instance::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        self.instance.identity()
    }
}
