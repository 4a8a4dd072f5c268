//! The program, given files.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod command;
mod dependencies;
#[path = "../../../attest/tests/prediction/image.rs"]
mod image;
mod predictions;

use std::process::Command;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_attest-audit"))
}
