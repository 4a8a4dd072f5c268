//! `attest-gateway`: the program. Arguments, settings, run.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see commands::output"
)]

mod commands;

use std::alloc::System;
use std::path::PathBuf;
use std::process::ExitCode;

use attest_alloc::ZeroOnFree;
use attest_command_line::{in_full, usage};
use clap::{Parser, Subcommand};

use commands::output;

/// Allocator that wipes all freed memory. Tokens and tickets pass through buffers of TLS and HTTP that nothing else wipes.
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
    /// Serve configs to nodes, until SIGTERM or Ctrl-C.
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
    /// Print the part of a pool's config that a node gets only after it is approved.
    Diff(commands::diff::Arguments),
    /// The MCS CA: make one, see where its rotation stands, take the next step.
    #[command(subcommand)]
    Ca(commands::ca::Command),
    /// Replace the MCS certificate and its key.
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
    /// Print a pool's requirements in words.
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
    /// Show and export the attestation log, and list its chains and checkpoints.
    #[command(subcommand)]
    Log(commands::log::Command),
    /// Every certificate and key in play: what it is for, where it lies, when it expires, how it rotates. Exit code 1 if one is broken.
    Certificates(commands::certificates::Arguments),
    /// Validate settings, certificates, pools, EK roots, state and addresses. Exit code 1 if serve would not start.
    Check(commands::check::Arguments),
}

fn main() -> ExitCode {
    output::set_program("attest-gateway");
    let Arguments { config, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(said) => return usage(&said),
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
        Command::Check(arguments) => commands::check::run(&config, &arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::warn(in_full(&error));
            ExitCode::FAILURE
        }
    }
}
