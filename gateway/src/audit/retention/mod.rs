//! What is kept of the log, and that what is not is removed: never without a record that says so.

mod removal;

use std::path::{Path, PathBuf};

pub use removal::{KeptLines, Past, Removal, Span};

/// Where checkpoints of segments stand that were removed, beside the log.
pub const KEPT_NAME: &str = "checkpoints.jsonl";

/// Those of this log.
#[must_use]
pub fn kept_file(log: &Path) -> PathBuf {
    log.with_file_name(KEPT_NAME)
}
