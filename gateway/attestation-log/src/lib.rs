//! The attestation log: for each decision one line of JSON, durable before the answer leaves, from which the decision can be made
//! again.

#![deny(unreachable_pub)]

mod acceptable;
mod act;
pub mod admin;
mod basis;
mod blobs;
mod by_command;
mod chain;
mod checkpoint;
pub mod codes;
mod delta;
mod digests;
mod entry;
mod file_type;
mod found_decisions;
mod grants;
mod journal;
mod journal_error;
mod last_checkpoint;
mod leftover_files;
mod log_end;
mod log_file;
mod log_key;
mod log_version;
mod newer_log;
pub mod past_evidence;
mod read_range;
pub mod reading;
mod reason;
mod record;
mod removal;
mod replica_name;
mod report;
mod retention;
mod segment_name;
mod segments;
mod signer;
mod store_link;
mod store_position;
mod ticket_use;
mod unsigned;
mod verification;
mod would_refuse;
mod writer_lock;

pub use acceptable::{Acceptable, AcceptableRow, accept_command};
pub use basis::{Basis, CloudBasis, RecordedAnswer};
pub use blobs::{BLOB_LIMIT_BYTES, BlobError, Blobs};
pub use by_command::CommandLog;
pub use chain::{ChainBeginning, ChainProgress, LineHash, LinesBefore, Link, Point, UncoveredLines, Why, link_of};
pub use checkpoint::{Checkpoint, CheckpointLine};
pub use delta::{DeltaBases, DeltaError, Likened, LogDifference, event_log};
pub use digests::{RequestDigests, RequestPart};
pub use entry::{Entry, EventKind, LineKind, LogEvent};
pub use found_decisions::{FoundDecisions, PendingDecision};
pub use grants::{ConfigSet, Earns, Grants};
pub use journal::{Durable, Journal, LargeParts, LogState, Observer, PreparedLine, Recorded, label};
pub use journal_error::JournalError;
pub use last_checkpoint::{Abandoned, LastCheckpoint, LastCheckpointError, log_head, required_checkpoints};
pub use log_key::{LogKey, LogKeyError, LogPublicKey};
pub use log_version::newer_log;
pub use newer_log::NewerLog;
pub use reason::{NEXT_STEP, command_for, refused_for, served_for, trusted_by, unknown_ek, with_before, with_next_step};
pub use record::{
    DecidedBy, Decision, NotAttested, Record, RecordedLate, ShownEvidence, TicketTerms, VERSION as ENTRY_VERSION, Verdict, WAITED,
    decision_id,
};
pub use removal::{KeptLines, Removal, RetentionCause, Span};
pub use replica_name::{is_replica_name, replica_name};
pub use report::{NodeReport, ReportSource};
pub use retention::{
    KEPT_NAME, PendingDecisions, RetainedSegments, Retention, RetentionError, RetentionResult, RetentionRule, kept_file, newer_note,
};
pub use segment_name::SegmentName;
pub use segments::{SegmentLimits, closed_segments, next_file};
pub use signer::CheckpointSigner;
pub use store_link::{StoreFailure, StoreLink};
pub use store_position::{GatewayCommits, StorePosition, StoreReplacement};
pub use ticket_use::{TICKET_LATE_LIMIT_SECONDS, TicketUse};
pub use verification::{
    ChainReport, FileReport, LineLocation, LogVerifier, Note, VerificationContext, VerificationFinding, VerificationReport,
};
pub use would_refuse::WouldRefuse;
pub use writer_lock::{is_written, lock_file};
