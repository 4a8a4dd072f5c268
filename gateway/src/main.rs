//! `attest-gateway`: the program. Arguments, settings, run.

#![deny(unreachable_pub)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nothing can be written; see commands::output"
)]

mod commands;

use std::alloc::System;
use std::process::ExitCode;

use attest_alloc::ZeroOnFree;
use attest_command_line::options::GlobalOptions;
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
    after_help = "A first gateway, in three commands:\n  attest-gateway init gw --host api-int.example.com\n  attest-gateway --config gw/gateway.toml serve\n  attest-gateway --config gw/gateway.toml pointer create --pool worker > worker.ign"
)]
struct Arguments {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a gateway's folder: MCS CA, certificate, gateway.toml, a pool to begin with.
    Init(commands::init::Arguments),
    /// Serve configs to nodes, until SIGTERM or Ctrl-C.
    Serve(commands::serve::Arguments),
    /// Pointer configs: the first Ignition config of a node, with the gateway's URL and CA.
    #[command(subcommand)]
    Pointer(commands::pointer::Command),
    /// Configs of pools, as nodes get them.
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Objects of a cluster in which gateways take the Machine Config Server's place on the control-plane hosts.
    #[command(subcommand)]
    Manifests(commands::manifests::Command),
    /// MachineConfigs by which machine-config-daemon takes over nodes that have the pre-approved config.
    #[command(subcommand)]
    SecondStage(commands::second_stage::Command),
    /// The gateway's state folder.
    #[command(subcommand)]
    State(commands::state::Command),
    /// The MCS CA: make one, see where its rotation stands, take the next step.
    #[command(subcommand)]
    Ca(commands::ca::Command),
    /// The MCS certificate, and all other certificates and keys in use.
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
    /// Validate settings, certificates, pools, EK roots, state and addresses. Exit code 1 if serve would not start.
    Check(commands::check::Arguments),
}

fn main() -> ExitCode {
    output::set_program("attest-gateway");
    let Arguments { global, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    global.apply();
    let config = global.config;
    let result = match command {
        Command::Init(arguments) => commands::init::run(&arguments),
        Command::Serve(arguments) => commands::serve::run(&config, &arguments),
        Command::Pointer(command) => commands::pointer::run(&config, &command),
        Command::Config(command) => commands::config::run(&config, &command),
        Command::Manifests(commands::manifests::Command::Render(arguments)) => commands::manifests::run(&arguments),
        Command::SecondStage(commands::second_stage::Command::Render(arguments)) => commands::second_stage::run(&config, &arguments),
        Command::State(commands::state::Command::Create(arguments)) => commands::state::run(&arguments),
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
