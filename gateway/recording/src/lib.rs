//! The attestation log and the store together: lines that wait for the store, checkpoints that the store keeps, acts that wait in its outbox,
//! and decisions that are not recorded yet.

#![deny(unreachable_pub)]

mod acting;
mod checkpoints;
mod journal;
mod outbox;
mod pending;
mod redaction;

pub use acting::Acting;
pub use checkpoints::{
    AbandonOutcome, CheckpointUpdate, Signs, abandon, checkpoints_by_other_keys, keep, keep_checkpoint, last_checkpoints, missing,
};
pub use journal::{position, replacement, with_store};
pub use outbox::{OutboxCount, TakeError, take};
pub use pending::{PendingIn, ResolvedDecisions, Unrecorded, resolve_pending};
