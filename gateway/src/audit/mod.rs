//! The attestation log: for each decision one line of JSON, durable before the answer leaves, from which the decision can be made
//! again.

pub mod admin;
mod anchors;
mod basis;
mod blobs;
mod by_command;
mod chain;
mod checkpoint;
pub mod configs;
mod counted;
mod digests;
mod journal;
mod kept;
mod log_end;
mod log_file;
mod log_key;
mod pending;
mod reach;
pub mod reading;
mod reason;
mod record;
mod replay;
mod retention;
mod segments;
mod unfinished;
mod unsigned;
mod verification;
mod writer_lock;

pub use basis::{Basis, CloudBasis, RecordedAnswer};
pub use blobs::{BlobError, Blobs};
pub use by_command::CommandLog;
pub use chain::{Before, Begins, Found, LineHash, Link, Point, Why, link_of};
pub use checkpoint::{Checkpoint, CheckpointLine, Signer, replica_name};
pub use counted::{STRANGERS_AT_ONCE_BYTES, STRANGERS_EACH_SECOND_BYTES};
pub use digests::{Digests, Part};
pub use journal::{Durable, Folders, Journal, JournalError, LargeParts, Recorded};
pub use kept::{Keeping, Kept, give_up, keep, kept, missing, of_other_keys, standing};
pub use log_key::{LogKey, LogKeyError, LogPublicKey};
pub use pending::{Resolved, resolve_pending};
pub use reason::{Use, served_for, trusted_by};
pub use record::{DecidedBy, Decision, NotAttested, Record, Shown, TicketTerms, Verdict, WAITED, decision_id};
pub use replay::{ReplayError, replay, replay_kubelet};
pub use retention::{Held, KEPT_NAME, KeptLines, LastLine, Past, Removal, Retention, RetentionError, Rule, Span, Tended, kept_file};
pub use segments::{SegmentLimits, SegmentName, closed_segments, next_file};
pub use verification::{ChainReport, FileReport, Finding, Note, Place, Report, Trust, Verifier};
pub use writer_lock::{is_written, lock_file};
