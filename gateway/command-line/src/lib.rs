//! Code shared by the commands of `attest-gateway` and `attest-audit`: output, errors, durations, and the selection of records of an
//! attestation log.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see output"
)]

pub mod durations;
mod errors;
mod lists;
mod new_file;
pub mod options;
pub mod output;
pub mod recorded;
pub mod records;
pub mod reference_set_file;
mod text;

use attest_system::clock::Clock;
pub use errors::{NEWER_FORMAT, failure, in_full, usage};
pub use lists::{list, objects};
pub use new_file::into_file;
pub use text::{clean, is_command, table, visible, visible_json};

/// Returns the time, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    Clock::System.now().as_secs()
}
