//! Records of administrative acts: each change by a command, or by the gateway itself.

mod recorded;

pub use recorded::{last_snapshot_digest, snapshot_change};

pub use super::act::{Act, By, ByObject, ValueChange, Verb};
use super::{Journal, JournalError};

/// Records an act at once, durably.
///
/// # Errors
/// [`JournalError`].
pub async fn record(journal: &Journal, act: Act, at: u64) -> Result<(), JournalError> {
    journal.record_event(&act.event(at)?).await
}
