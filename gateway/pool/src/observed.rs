//! Check that a pool can identify its machines before it may observe what they boot.

use attest::{AppraisalPolicy, Combination, Kind};

use super::exclusivity::anybodys_in_azure;

/// Returns an error for a combination in which only the boot tells the pool's machines from those of the cloud's other customers. While the
/// pool observes, the boot distinguishes nothing. `listed` is `true` if an inventory names the machines.
pub(super) fn somebodys(policy: &AppraisalPolicy, listed: bool) -> Result<(), String> {
    if !policy.observes() || listed {
        return Ok(());
    }
    match anybodys_in_azure(policy).or_else(|| anybodys_in_aws(policy)) {
        None => Ok(()),
        Some(kinds) => Err(format!(
            "{kinds}: with observe = true no boot is refused, so machines of every customer of that cloud would get the attested grant: restrict the accounts or instances, or name the machines in an [inventory]"
        )),
    }
}

/// Returns the combination that any customer's AWS instance can show.
fn anybodys_in_aws(policy: &AppraisalPolicy) -> Option<&Combination> {
    policy.aws_nitro_tpm().filter(|rules| rules.accepts_any_instance())?;
    let others = [Kind::AwsIdentityDocument, Kind::AwsSts, Kind::Tpm, Kind::Token];
    let alone = |kinds: &&Combination| kinds.has(Kind::AwsNitroTpm) && !others.iter().any(|other| kinds.has(*other));
    policy.accepts().iter().find(alone)
}
