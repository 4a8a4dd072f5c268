//! `attest-audit`: the program. Arguments, files, run.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see attest_command_line::output"
)]

mod commands;

use std::process::ExitCode;

use attest_command_line::{in_full, output, usage};
use clap::{Parser, Subcommand};
use commands::gateway_files::GatewayFiles;

/// Verifies what an attestation gateway has recorded, and tries policies on it. It needs files only: no gateway has to run.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example: the log of a gateway, on its own host\n  attest-gateway log list-checkpoints > signed.jsonl\n  attest-audit log audit --checkpoints signed.jsonl\n\nExample: elsewhere, with copies\n  attest-audit --state gateway-1 log audit --log-key gateway-1.pub --checkpoints signed.jsonl"
)]
struct Arguments {
    #[command(flatten)]
    files: GatewayFiles,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Test recorded evidence against a pool's rules, and make rules from it.
    #[command(subcommand)]
    Policy(commands::policy::Command),
    /// The attestation log: verify it with its decisions, print a config that was served, compare boots.
    #[command(subcommand)]
    Log(commands::log::Command),
    /// Reference values: computed of files that machines will boot, or taken from what they have booted.
    #[command(subcommand)]
    ReferenceValues(commands::reference_values::Command),
}

fn main() -> ExitCode {
    output::set_program("attest-audit");
    let Arguments { files, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    files.global.apply();
    let result = match command {
        Command::Policy(command) => commands::policy::run(&files, &command),
        Command::Log(command) => commands::log::run(&files, &command),
        Command::ReferenceValues(command) => commands::reference_values::run(&files, &command),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::warn(in_full(&error));
            ExitCode::FAILURE
        }
    }
}
