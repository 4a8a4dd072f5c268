//! Approvals of client certificates: for which machine a node's name was approved.

use attest_store::{EntryKind, EntryTransaction, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::json_entry::read;

/// Reason why a machine is accepted as the node of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The administrator has given it the name, with its EK.
    Given,
    /// A Machine object names the instance that it has proven to be.
    Machine,
    /// It asked for the name when it attested, and the name had no other owner.
    Asked,
}

/// A gateway's approval of a client certificate for a node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// Identity of the machine that owns the name from then on.
    pub identity: String,
    /// Identity of its cloud instance, if that differs from `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    pub pool: String,
    /// Time of the approval, in seconds since 1970.
    pub at: u64,
    /// Id of the record of the attestation that it was for.
    pub attestation: String,
    /// Reason why the machine is accepted as this node.
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

/// Returns the approval of this name, if there is one.
///
/// # Errors
/// [`StoreError`].
pub fn approval(transaction: &mut EntryTransaction<'_>, name: &str) -> Result<Option<Approval>, StoreError> {
    let entry = transaction.get(EntryKind::Approval, name)?;
    entry.map(|entry| read(EntryKind::Approval, &entry)).transpose()
}

/// Returns all approvals, by name.
///
/// # Errors
/// [`StoreError`].
pub async fn approvals(store: &dyn Store) -> Result<Vec<(String, Approval)>, StoreError> {
    let entries = store.list(EntryKind::Approval).await?.into_iter();
    entries
        .map(|entry| Ok((entry.id.clone(), read(EntryKind::Approval, &entry)?)))
        .collect()
}
