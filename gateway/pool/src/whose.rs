//! Whether something tells a pool's machines from anybody's, by its `pool.toml`.

use attest::{AppraisalPolicy, Combination, Kind};

use super::Endorsement;

/// Whether, in each combination, something says that a TPM and an instance beside it are one machine. A TPM of a trusted maker can be bought
/// anywhere; and whoever has an instance's document and any such TPM would have the config, and the instance.
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
        "{kinds}: nothing says that the TPM and the instance are one machine, so any TPM of a trusted maker could stand beside any instance's evidence: say {certificate}tpm.endorsement = \"allowlist\", or name each instance with its TPM in an [inventory]; docs/policy.md says what joins what"
    ))
}

/// Whether, in each combination, something tells the pool's machines from those of any customer of Azure's: at least what they have booted. Of a
/// TPM that is bought this is a warning, since the pool's words say so; here nobody has to buy anything.
pub(super) fn somebodys(policy: &AppraisalPolicy, inventory: bool) -> Result<(), String> {
    let checks_nothing = policy.azure_vtpm().is_some_and(|rules| rules.reference_values().checks_nothing());
    match anybodys_in_azure(policy) {
        Some(kinds) if checks_nothing && !inventory => Err(format!(
            "{kinds}: every customer of Azure's would get what an attestation earns: [azure_vtpm] takes any subscription and checks no PCR. Name vm_ids there, or the values of PCRs, or the pool's machines in an [inventory]"
        )),
        _ => Ok(()),
    }
}

/// The combination that any machine of Azure's can show, whoever's it is, if it has the PCRs.
pub(super) fn anybodys_in_azure(policy: &AppraisalPolicy) -> Option<&Combination> {
    policy.azure_vtpm().filter(|rules| rules.accepts_any_machine())?;
    let others = [Kind::Azure, Kind::Tpm, Kind::Token];
    let alone = |kinds: &&Combination| kinds.has(Kind::AzureVtpm) && !others.iter().any(|other| kinds.has(*other));
    policy.accepts().iter().find(alone)
}
