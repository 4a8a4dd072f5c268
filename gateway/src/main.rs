//! `attest-gateway`: the program. Arguments, settings, run.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see commands::output"
)]

mod commands;

use std::alloc::System;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use attest_alloc::ZeroOnFree;
use clap::{Parser, Subcommand};

use commands::output;

/// Whatever is freed is wiped. Tokens and tickets pass through buffers of TLS and HTTP that nobody else wipes.
#[global_allocator]
static ALLOCATOR: ZeroOnFree<System> = ZeroOnFree(System);

/// Serves Ignition configs to booting nodes: the full one only to a node that has proven what it is.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "A first gateway, in three commands:\n  attest-gateway init gw --host api-int.example.com\n  attest-gateway --config gw/gateway.toml serve\n  attest-gateway --config gw/gateway.toml pointer --pool worker > worker.ign"
)]
struct Arguments {
    /// The gateway's settings; paths in it are relative to it.
    #[arg(long, global = true, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a gateway's folder: MCS CA, certificate, gateway.toml, a pool to begin with.
    Init(commands::init::Arguments),
    /// Serve.
    Serve(commands::serve::Arguments),
    /// Print a pointer config: what a node's first Ignition config says.
    Pointer(commands::pointer::Arguments),
    /// Print a pool's config as a node would get it.
    Render(commands::render::Arguments),
    /// Print what a cluster needs so that the gateway takes its Machine Config Server's place on the control-plane hosts.
    Manifests(commands::manifests::Arguments),
    /// Print the MachineConfigs by which machine-config-daemon takes over nodes that have the pre-approved config.
    SecondStage(commands::second_stage::Arguments),
    /// Make the folder of a gateway's state for its user, as root.
    StateFolder(commands::state_folder::Arguments),
    /// What a node of a pool gets only after it is approved.
    Diff(commands::diff::Arguments),
    /// The MCS CA: make one, see where its rotation stands, take the next step.
    #[command(subcommand)]
    Ca(commands::ca::Command),
    /// The MCS certificate.
    #[command(subcommand)]
    Certificate(commands::certificate::Command),
    /// Provisioning tokens, for machines that cannot attest.
    #[command(subcommand)]
    Token(commands::token::Command),
    /// The allowlist of TPMs, by the digest of their EK.
    #[command(subcommand)]
    Ek(commands::ek::Command),
    /// The names of nodes, and the machines they belong to.
    #[command(subcommand)]
    Node(commands::node::Command),
    /// What a pool requires, in words; and recorded evidence held against it.
    #[command(subcommand)]
    Policy(commands::policy::Command),
    /// Reference values: what nodes may boot, in files with a history.
    #[command(subcommand)]
    ReferenceValues(commands::reference_values::Command),
    /// The seal of challenges and tickets.
    #[command(subcommand)]
    Seal(commands::seal::Command),
    /// The store of what is spent, revoked and enrolled.
    #[command(subcommand)]
    Store(commands::store::Command),
    /// The attestation log.
    #[command(subcommand)]
    Log(commands::log::Command),
    /// Every certificate and key in play: what it is for, where it lies, when it expires, how it rotates. Exit code 1 if one is broken.
    Certificates(commands::certificates::Arguments),
    /// Make recorded decisions again: whether the attestation log's evidence still gives the recorded verdicts.
    Audit(commands::audit::Arguments),
    /// Validate settings, certificates, pools, EK roots, state and addresses. Exit code 1 if serve would not start.
    Check(commands::check::Arguments),
}

fn main() -> ExitCode {
    let Arguments { config, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(said) => return say(&said),
    };
    let result = match command {
        Command::Init(arguments) => commands::init::run(&arguments),
        Command::Serve(arguments) => commands::serve::run(&config, &arguments),
        Command::Pointer(arguments) => commands::pointer::run(&config, &arguments),
        Command::Render(arguments) => commands::render::run(&config, &arguments),
        Command::Manifests(arguments) => commands::manifests::run(&arguments),
        Command::StateFolder(arguments) => commands::state_folder::run(&arguments),
        Command::Diff(arguments) => commands::diff::run(&config, &arguments),
        Command::SecondStage(arguments) => commands::second_stage::run(&config, &arguments),
        Command::Ca(command) => commands::ca::run(&config, &command),
        Command::Certificate(command) => commands::certificate::run(&config, &command),
        Command::Token(command) => commands::token::run(&config, &command),
        Command::Ek(command) => commands::ek::run(&config, &command),
        Command::Node(command) => commands::node::run(&config, &command),
        Command::Policy(command) => commands::policy::run(&config, &command),
        Command::ReferenceValues(command) => commands::reference_values::run(&config, &command),
        Command::Seal(command) => commands::seal::run(&config, &command),
        Command::Store(command) => commands::store::run(&config, &command),
        Command::Log(command) => commands::log::run(&config, &command),
        Command::Certificates(arguments) => commands::certificates::run(&config, &arguments),
        Command::Audit(arguments) => commands::audit::run(&config, &arguments),
        Command::Check(arguments) => commands::check::run(&config, &arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::tell(format_args!("attest-gateway: {}", in_full(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Help, the version, or what is wrong with the arguments.
fn say(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(error) if !said.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            output::tell(format_args!("attest-gateway: standard output: {error}"));
            ExitCode::FAILURE
        }
        // Nothing is left to be told by.
        _ => u8::try_from(said.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// The error with its causes; many of them already say what caused them.
fn in_full(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(cause.trim_end()) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let missing = || std::io::Error::other("no such file");
        let said = |error: anyhow::Error| in_full(&error);
        assert_eq!(
            said(anyhow::Error::from(missing()).context("a.toml: no such file")),
            "a.toml: no such file"
        );
        assert_eq!(said(anyhow::Error::from(missing()).context("a.toml")), "a.toml: no such file");
    }
}
