//! Checks that a pool's `pool.toml` distinguishes its machines from any others.

use attest::{AppraisalPolicy, Combination, Kind};

use super::Endorsement;

/// Returns an error for a combination in which nothing proves that a TPM and an instance are one machine. TPMs of a trusted manufacturer
/// can be bought. With one, and a copy of an instance's document, an attacker would get the config and the instance.
pub(super) fn joined(policy: &AppraisalPolicy, endorsement: Endorsement, inventory: bool) -> Result<(), String> {
    let apart = |kinds: &&Combination| {
        let certified = endorsement == Endorsement::GcpInstance && kinds.has(Kind::Gcp);
        let by_administrator = endorsement == Endorsement::Allowlist || inventory;
        let instance = kinds.kinds().iter().any(|kind| kind.is_of_a_cloud());
        kinds.has(Kind::Tpm) && instance && !certified && !by_administrator
    };
    let Some(kinds) = policy.accepts().iter().find(apart) else {
        return Ok(());
    };
    let certificate = if kinds.has(Kind::Gcp) {
        "tpm.endorsement = \"gcp-instance\", "
    } else {
        ""
    };
    Err(format!(
        "{kinds}: this evidence does not prove that the TPM belongs to the instance, so any TPM of a trusted manufacturer could be presented together with any instance's evidence. Set {certificate}tpm.endorsement = \"allowlist\", or name each instance with its TPM in an [inventory]; docs/explanation/evidence.md has the reason"
    ))
}

/// Returns an error for a combination in which nothing distinguishes the pool's machines from those of other Azure customers, not even
/// their boot. A TPM that must be bought is only worth a warning, since the pool's setting names it; here an attacker needs to buy nothing.
pub(super) fn somebodys(policy: &AppraisalPolicy, inventory: bool) -> Result<(), String> {
    let checks_nothing = policy.azure_vtpm().is_some_and(|rules| rules.reference_values().checks_nothing());
    match anybodys_in_azure(policy) {
        Some(kinds) if checks_nothing && !inventory => Err(format!(
            "{kinds}: machines of every customer of Azure's would get the attested grant, because [azure_vtpm] accepts any subscription and checks no PCR. Name vm_ids or values of PCRs there, or the pool's machines in an [inventory]"
        )),
        _ => Ok(()),
    }
}

/// Returns the combination that any customer's Azure machine can show, if it has the PCRs.
pub(super) fn anybodys_in_azure(policy: &AppraisalPolicy) -> Option<&Combination> {
    policy.azure_vtpm().filter(|rules| rules.accepts_any_machine())?;
    let others = [Kind::Azure, Kind::Tpm, Kind::Token];
    let alone = |kinds: &&Combination| kinds.has(Kind::AzureVtpm) && !others.iter().any(|other| kinds.has(*other));
    policy.accepts().iter().find(alone)
}
