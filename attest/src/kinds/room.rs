//! What a kind of evidence says of itself, in its own room.

/// A kind of evidence, by the types that it has in what is about all kinds. Each kind is a type of its own, which has no values.
pub trait EvidenceKind {
    /// What a node says that it can show: its member of [`crate::protocol::Attester`].
    type Offer;
    /// What the node is told to show: its member of [`crate::protocol::Task`].
    type Task;
    /// What the answer is held against: its member of the sealed [`crate::Subject`].
    type Subject;
    /// What the node shows: its member of [`crate::protocol::Evidence`].
    type Evidence;
    /// What a pool accepts of it: its member of [`crate::appraisal::Rules`].
    type Rules;
    /// What was proven by it: its member of [`crate::Claims`], and of records.
    type Proof;
    /// Why it is refused: its variant of [`crate::Reject`].
    type Error;
}
