//! Approvals of client certificates: which machine a node's name was approved for.

use attest_store::{EntryKind, EntryTransaction, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::json_entry::read;

/// By what a machine is taken for the node of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The administrator has given it the name, with its EK.
    Given,
    /// A Machine object names the instance that it has proven to be.
    Machine,
    /// It has asked for the name when it attested, and nobody else has it.
    Asked,
}

/// That a gateway has approved a client certificate for a node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// Whose name it is from then on.
    pub identity: String,
    /// Which instance of a cloud that is, if that is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    pub pool: String,
    /// When, seconds since 1970.
    pub at: u64,
    /// Id of the record of the attestation that it was for.
    pub attestation: String,
    /// By what the machine is taken for this node.
    pub bound: Bound,
    /// The Machine object, if there had to be one: `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The CertificateSigningRequest: its name and uid.
    pub csr: String,
    pub uid: String,
    /// SHA-256 of the key's SubjectPublicKeyInfo.
    pub key_sha256: String,
}

/// What was approved of this name.
///
/// # Errors
/// [`StoreError`].
pub fn approval(transaction: &mut EntryTransaction<'_>, name: &str) -> Result<Option<Approval>, StoreError> {
    let entry = transaction.get(EntryKind::Approval, name)?;
    entry.map(|entry| read(EntryKind::Approval, &entry)).transpose()
}

/// All approvals, by name.
///
/// # Errors
/// [`StoreError`].
pub async fn approvals(store: &dyn Store) -> Result<Vec<(String, Approval)>, StoreError> {
    let entries = store.list(EntryKind::Approval).await?.into_iter();
    entries
        .map(|entry| Ok((entry.id.clone(), read(EntryKind::Approval, &entry)?)))
        .collect()
}
