//! What a kind of evidence says of itself to both ends, in its own room.

use std::borrow::Cow;

use crate::values::Blob;

/// Who runs the machine, by the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    Google,
    Amazon,
    Microsoft,
}

/// Parts of what was sent, by name.
pub type Parts<'a> = Vec<(Cow<'static, str>, Cow<'a, [u8]>)>;

/// A kind of evidence, by its messages and by whose word they are. Each kind is a type of its own, which has no values.
pub trait Messages {
    /// What a node says that it can show: its member of [`crate::protocol::Attester`].
    type Offer;
    /// What the node is told to show: its member of [`crate::protocol::Task`].
    type Task;
    /// What the node shows: its member of [`crate::protocol::Evidence`].
    type Evidence;

    /// The cloud that says it of an instance.
    const CLOUD: Option<Cloud>;
    /// Whether it comes from a TPM of the machine's, and not from a metadata server that every process can ask.
    const IS_OF_A_TPM: bool = false;

    /// Whether what evidence is for, and so the key that a purpose names, is in what is signed. Where it is not, that key is nobody's word.
    const SIGNS_PURPOSE: bool = true;

    /// The size of its document, as it travels, with the claimant where that is part of it. `None` for what has a limit of its own.
    fn size(evidence: &Self::Evidence, claimant: Option<&Blob>) -> Option<usize>;

    /// The parts of what a node offers that a record may have digests of, by the names of their members.
    fn offered_parts(_: &Self::Offer) -> Parts<'_> {
        Vec::new()
    }

    /// The same of evidence. Of secrets there is not even that.
    fn shown_parts(evidence: &Self::Evidence) -> Parts<'_>;

    /// Takes out of the evidence what is worth something to whoever reads a record.
    fn forget_secrets(_: &mut Self::Evidence) {}
}
