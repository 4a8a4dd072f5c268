//! The attestation log: for each decision one line of JSON, durable before the answer leaves, from which the decision can be made
//! again.

mod anchors;
mod blobs;
mod journal;
mod record;
mod replay;

pub use blobs::{BlobError, Blobs};
pub use journal::{Journal, JournalError, Recorded};
pub use record::{Basis, CloudBasis, Decision, Record, RecordedAnswer, Shown, Verdict};
pub use replay::{ReplayError, replay, replay_kubelet};
