use serde::Serialize;

use crate::gcp::GceInstance;
use crate::verified::Verified;

/// The instance that an identity token is about, and Google's other statements about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GceIdentity {
    pub instance: GceInstance,
    /// Creation time of the instance, in seconds since 1970.
    pub created: u64,
    /// `instance_confidentiality`: 1 for a Confidential VM, as Google documents it; `None` if the token does not have it.
    pub confidentiality: Option<u64>,
    /// Codes of the licences of the images that the instance's disks were made of.
    pub licenses: Vec<String>,
    pub service_account: ServiceAccount,
    /// Time of Google's signature, in seconds since 1970.
    pub issued: u64,
    /// End of the token's validity, in seconds since 1970.
    pub expires: u64,
    /// The key it was signed with.
    pub key_id: String,
}

/// Proof from an identity token. Only [`crate::gcp::verify`] makes one.
pub type VerifiedIdentity = Verified<GceIdentity>;

/// The service account that the instance runs as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceAccount {
    /// Its unique id: a decimal number.
    pub id: String,
    pub email: String,
}

impl GceIdentity {
    /// The stable identity of the node: [`GceInstance::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        self.instance.identity()
    }
}
