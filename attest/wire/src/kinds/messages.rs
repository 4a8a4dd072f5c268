//! Properties of a kind of evidence that both ends need, defined in the kind's own module.

use std::borrow::Cow;

use crate::values::Blob;

/// Operator of the machine, according to the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineCloud {
    Google,
    Amazon,
    Microsoft,
}

/// Parts of a message, by name.
pub type Parts<'a> = Vec<(Cow<'static, str>, Cow<'a, [u8]>)>;

/// A kind of evidence, by its messages and by whose word they are. Each kind is a type of its own, which has no values.
pub trait Messages {
    /// Node's offer of this kind: its member of [`crate::protocol::Attester`].
    type Offer;
    /// Gateway's task for the node: its member of [`crate::protocol::Task`].
    type Task;
    /// Node's evidence: its member of [`crate::protocol::Evidence`].
    type Evidence;

    /// The cloud that says it of an instance.
    const CLOUD: Option<MachineCloud>;
    /// `true` if it comes from a TPM of the machine's, and not from a metadata server that every process can ask.
    const IS_OF_A_TPM: bool = false;

    /// `true` if the signed data includes the purpose of the evidence, and so the key that a purpose names. Otherwise, that key is
    /// unattested.
    const SIGNS_PURPOSE: bool = true;

    /// Returns the size of its document as sent, with the claimant if that is part of it. `None` for evidence with a limit of its own.
    fn size(evidence: &Self::Evidence, claimant: Option<&Blob>) -> Option<usize>;

    /// Returns the parts of a node's offer that a record may have digests of, by the names of their members.
    fn offered_parts(_: &Self::Offer) -> Parts<'_> {
        Vec::new()
    }

    /// Returns the same parts of evidence. Secrets are left out entirely.
    fn shown_parts(evidence: &Self::Evidence) -> Parts<'_>;

    /// Removes secrets from the evidence that would be valuable to a reader of the record.
    fn forget_secrets(_: &mut Self::Evidence) {}
}
