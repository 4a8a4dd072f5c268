//! The attestation log: for each decision one line of JSON, durable before the answer leaves, from which the decision can be made
//! again.

#![deny(unreachable_pub)]

mod act;
pub mod admin;
mod basis;
mod blobs;
mod by_command;
mod chain;
mod checkpoint;
mod digests;
mod entry;
mod file_type;
mod grants;
mod journal;
mod journal_error;
mod kept;
mod likeness;
mod log_end;
mod log_file;
mod log_key;
pub mod past;
mod pending;
mod reach;
pub mod reading;
mod reason;
mod record;
mod removal;
mod replica_name;
mod retention;
mod segment_name;
mod segments;
mod signer;
mod ticket_use;
mod unfinished;
mod unsigned;
mod verification;
mod would_refuse;
mod writer_lock;

pub use basis::{Basis, CloudBasis, RecordedAnswer};
pub use blobs::{BlobError, Blobs};
pub use by_command::CommandLog;
pub use chain::{Before, Begins, Found, LineHash, Link, Point, Why, link_of};
pub use checkpoint::{Checkpoint, CheckpointLine};
pub use digests::{Digests, Part};
pub use entry::{Entry, Event, LineKind, What};
pub use grants::{ConfigSet, Earns, Grants};
pub use journal::{Durable, Journal, LargeParts, LogState, Observer, Prepared, Recorded, word};
pub use journal_error::JournalError;
pub use kept::{GivenUp, GivingUp, Keeping, Kept, Signs, give_up, keep, kept, last_chain, missing, of_other_keys, standing};
pub use likeness::{Difference, Likened, LikenessError, Likenesses, event_log};
pub use log_key::{LogKey, LogKeyError, LogPublicKey};
pub use pending::{Resolved, resolve_pending};
pub use reason::{NEXT_STEP, served_for, trusted_by, with_before};
pub use record::{DecidedBy, Decision, NotAttested, Record, Shown, TicketTerms, Verdict, WAITED, decision_id};
pub use removal::{KeptLines, Past, Removal, Span};
pub use replica_name::{is_replica_name, replica_name};
pub use retention::{Held, KEPT_NAME, Retention, RetentionError, Rule, Tended, kept_file};
pub use segment_name::SegmentName;
pub use segments::{SegmentLimits, closed_segments, next_file};
pub use signer::Signer;
pub use ticket_use::Use;
pub use verification::{ChainReport, FileReport, Finding, Note, Place, Report, Trust, Verifier};
pub use would_refuse::WouldRefuse;
pub use writer_lock::{is_written, lock_file};
