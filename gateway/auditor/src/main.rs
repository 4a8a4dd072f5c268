//! `attest-audit`: the program. Arguments, files, run.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see attest_command_line::output"
)]

mod commands;

use std::process::ExitCode;
use std::sync::LazyLock;

use attest::release::version_text;
use attest_command_line::{failure, output, usage};
use attest_manual::ManualArguments;
use clap::{Parser, Subcommand};
use commands::gateway_files::GatewayFiles;

/// Release and commit, and versions of the formats that this program reads and writes.
static VERSION: LazyLock<String> = LazyLock::new(|| version_text(&[("log entry", &attest_log::ENTRY_VERSION)]));

/// Verifies a gateway's attestation log, and tests policies with recorded evidence.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = VERSION.as_str(),
    after_help = "Example: the log of a gateway, on its own host\n  attest-gateway log list-checkpoints > signed.jsonl\n  attest-audit log audit --checkpoints signed.jsonl\n\nExample: elsewhere, with copies\n  attest-audit --state gateway-1 log audit --log-key gateway-1.pub --checkpoints signed.jsonl\n\nReads files only, and needs no running gateway."
)]
struct Arguments {
    #[command(flatten)]
    files: GatewayFiles,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Test recorded evidence against a pool's rules, and propose rules.
    #[command(subcommand)]
    Policy(commands::policy::Command),
    /// Verify the attestation log, print served configs, compare boots.
    #[command(subcommand)]
    Log(commands::log::Command),
    /// Predict reference values from files, or record a node's.
    #[command(subcommand)]
    ReferenceValues(commands::reference_values::Command),
    #[command(hide = true)]
    Manual(ManualArguments),
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
        Command::Manual(arguments) => arguments.write::<Arguments>().map(|()| ExitCode::SUCCESS).map_err(Into::into),
    };
    result.unwrap_or_else(|error| failure(&error))
}
