//! The machines that the store knows.

use std::collections::BTreeMap;

use attest_machines::by_object::is_by;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::revocations::{self, Revocation};
use attest_machines::{instances, waiting};
use attest_store::{Store, StoreError};
use attest_system::clock::rfc3339;

use super::object_name::{identity_of_tpm, object_name};
use super::status::{AttestedNodeStatus, ConditionAnswer, ConditionType};

/// Prefix of a TPM's identity.
const TPM: &str = "tpm:";

/// Facts of the store about one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredMachine {
    pub identity: String,
    pub name: Option<String>,
    pub listed: Option<EkRecord>,
    /// Revocation by its identity, or by its name alone.
    pub revoked: Option<Revocation>,
    /// Set if its identity is revoked.
    pub revoked_itself: bool,
    /// Question of new values that it waits for.
    pub waiting: Option<String>,
}

impl StoredMachine {
    /// Returns a machine that the store does not know, by its object: that of a TPM, or one that has attested.
    pub fn unknown(object: &str, status: &AttestedNodeStatus) -> Option<Self> {
        let said = status
            .identity
            .clone()
            .filter(|identity| object_name(identity).as_deref() == Some(object));
        Some(Self {
            identity: said.or_else(|| identity_of_tpm(object))?,
            ..Self::default()
        })
    }

    /// Says what the store knows of it, as of this time, seconds since 1970.
    pub fn add_to(&self, status: &mut AttestedNodeStatus, object: &str, generation: i64, now: u64) {
        status.identity = Some(self.identity.clone());
        status.node_name.clone_from(&self.name);
        status.waiting.clone_from(&self.waiting);
        let banned = self.revoked.as_ref().map_or_else(
            || ConditionAnswer::new(false, "NotBanned", ""),
            |revoked| {
                let by = if is_by(revoked, object) { "ByThisObject" } else { "ByCommand" };
                let why = revoked.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                ConditionAnswer::new(true, by, format!("revoked at {}{why}", rfc3339(revoked.at)))
            },
        );
        status.set_condition(ConditionType::Banned, banned, generation, now);
        let approved = match &self.listed {
            Some(EkRecord { removed: Some(at), .. }) => {
                ConditionAnswer::new(false, "Removed", format!("removed from the allowlist at {}", rfc3339(*at)))
            }
            Some(record) if record.pools.is_empty() => ConditionAnswer::new(true, "Allowlisted", "for every pool"),
            Some(record) => ConditionAnswer::new(true, "Allowlisted", format!("for {}", record.pools.join(", "))),
            None => ConditionAnswer::new(
                None,
                "NotListed",
                "the machine has no entry in the allowlist; EK roots or the cloud may endorse it",
            ),
        };
        status.set_condition(ConditionType::Approved, approved, generation, now);
        if status.says(ConditionType::Attested).is_none() {
            let answer = ConditionAnswer::new(None, "NotSeen", "no attestation of this machine in the logs that were read");
            status.set_condition(ConditionType::Attested, answer, generation, now);
        }
    }
}

/// Returns all machines as of this time, in seconds since 1970, by the names of their objects.
///
/// # Errors
/// [`StoreError`].
pub async fn all(store: &dyn Store, now: u64) -> Result<BTreeMap<String, StoredMachine>, StoreError> {
    let mut machines: BTreeMap<String, StoredMachine> = BTreeMap::new();
    let mut known = |identity: &str, add: &mut dyn FnMut(&mut StoredMachine)| {
        if let Some(name) = object_name(identity) {
            let machine = machines.entry(name).or_default();
            identity.clone_into(&mut machine.identity);
            add(machine);
        }
    };
    for (name, identity) in enrolment::names(store).await? {
        known(&identity, &mut |machine| machine.name = Some(name.clone()));
    }
    for identity in enrolment::attested_tpms(store).await? {
        known(&identity, &mut |_| {});
    }
    for (instance, record) in instances::list(store).await? {
        // One that belongs to a TPM is that machine.
        if !record.holder.starts_with(TPM) {
            known(&instance, &mut |_| {});
        }
    }
    for (identity, record) in enrolment::allowlist(store).await? {
        known(&identity, &mut |machine| machine.listed = Some(record.clone()));
    }
    for (identity, question) in waiting::waiting(store, now).await? {
        known(&identity, &mut |machine| machine.waiting = Some(question.clone()));
    }
    let revoked = revocations::list(store).await?;
    for (who, revocation) in &revoked {
        // An instance is revoked by its own TPM, too, which is no other machine; one that is not known otherwise has no object.
        if who.starts_with(TPM) {
            known(who, &mut |machine| machine.revoked = Some(revocation.clone()));
        }
    }
    for machine in machines.values_mut() {
        let (itself, by_name) = (
            revoked.get(&machine.identity),
            machine.name.as_ref().and_then(|name| revoked.get(name)),
        );
        machine.revoked_itself = itself.is_some();
        machine.revoked = itself.or(by_name).cloned();
    }
    Ok(machines)
}
