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
use std::sync::LazyLock;

use attest::release::{PROTOCOL_VERSION, version_text};
use attest_alloc::ZeroOnFree;
use attest_command_line::options::GlobalOptions;
use attest_command_line::{failure, usage};
use attest_gateway::credentials::seal::SEAL_VERSION;
use attest_manual::ManualArguments;
use clap::{Parser, Subcommand};

use commands::output;

/// Release and commit, and versions of the formats that this program reads and writes.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    version_text(&[
        ("store", &attest_store::SCHEMA),
        ("log entry", &attest_log::ENTRY_VERSION),
        ("seal", &SEAL_VERSION),
        ("protocol", &PROTOCOL_VERSION),
        #[cfg(feature = "cluster")]
        ("AttestedNode", &attest_gateway::cluster::attested_nodes::VERSION),
    ])
});

/// Allocator that wipes all freed memory. Tokens and tickets pass through buffers of TLS and HTTP that nothing else wipes.
#[global_allocator]
static ALLOCATOR: ZeroOnFree<System> = ZeroOnFree(System);

/// Serves Ignition configs to booting nodes, and the full config only to attested nodes.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = VERSION.as_str(),
    after_help = "Example: a first gateway\n  attest-gateway init gw --host api-int.example.com\n  attest-gateway --config gw/gateway.toml serve\n  attest-gateway --config gw/gateway.toml pointer create --pool worker > worker.ign"
)]
struct Arguments {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a gateway's folder: MCS CA, certificate, gateway.toml and a sample pool.
    Init(commands::init::Arguments),
    /// Serve configs to nodes, until SIGTERM or Ctrl-C.
    Serve(commands::serve::Arguments),
    /// Create and inspect pointer configs, the first Ignition config of a node.
    #[command(subcommand)]
    Pointer(commands::pointer::Command),
    /// Print and compare the configs of pools, as nodes get them.
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Print the objects that run gateways on a cluster's control-plane hosts.
    #[command(subcommand)]
    Manifests(commands::manifests::Command),
    /// Print the MachineConfigs by which machine-config-daemon takes over pre-approved nodes.
    #[command(subcommand)]
    SecondStage(commands::second_stage::Command),
    /// Prepare the gateway's state folder.
    #[command(subcommand)]
    State(commands::state::Command),
    /// Create and rotate the MCS CA.
    #[command(subcommand)]
    Ca(commands::ca::Command),
    /// Renew the MCS certificate, and list all certificates and keys.
    #[command(subcommand)]
    Certificate(commands::certificate::Command),
    /// Manage provisioning tokens for machines that cannot attest.
    #[command(subcommand)]
    Token(commands::token::Command),
    /// List machines with their state; import and export the allowlist.
    #[command(subcommand)]
    Machines(commands::machines::Command),
    /// Edit the EK allowlist: TPMs by the digest of their EK.
    #[command(subcommand)]
    Ek(commands::ek::Command),
    /// Import and list the CAs of TPM manufacturers that endorse TPMs.
    #[command(subcommand)]
    EkRoots(commands::ek_roots::Command),
    /// Revoke machines, and free their names and claims.
    #[command(subcommand)]
    Node(commands::node::Command),
    /// Describe the requirements of a pool.
    #[command(subcommand)]
    Policy(commands::policy::Command),
    /// Answer for machines that wait: new boot values, unknown machines, taken names, histories.
    #[command(subcommand)]
    Waiting(commands::waiting::Command),
    /// Edit reference values: the measurements that machines may boot.
    #[command(subcommand)]
    ReferenceValues(commands::reference_values::Command),
    /// Rotate the seal, which encrypts challenges and tickets.
    #[command(subcommand)]
    Seal(commands::seal::Command),
    /// Back up the store and the log's key into one file; the gateway may serve.
    Backup(commands::backup::Arguments),
    /// Restore a backup, and print the acts to repeat. Stop the gateways first.
    Restore(commands::restore::Arguments),
    /// Show the store's schema, and raise it after an upgrade.
    Upgrade(commands::upgrade::Arguments),
    /// Accept and migrate the store, and create its key.
    #[command(subcommand)]
    Store(commands::store::Command),
    /// Read the attestation log, and manage its chains and checkpoints.
    #[command(subcommand)]
    Log(commands::log::Command),
    /// List and print reports of failed first boots, which nodes send.
    #[command(subcommand)]
    Reports(commands::reports::Command),
    /// Write the gateway's state as one page for a browser.
    Report(commands::report::Arguments),
    /// Show the gateway's state on one screen. Exit code 1 if something would stop a boot now.
    Status(commands::status::Arguments),
    /// Validate settings, certificates, pools, roots and state. Exit code 1 on errors.
    Check(commands::check::Arguments),
    #[command(hide = true)]
    Manual(ManualArguments),
}

fn main() -> ExitCode {
    output::set_program("attest-gateway");
    let Arguments { global, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    global.apply();
    let config = global.config();
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
        Command::Machines(command) => commands::machines::run(&config, &command),
        Command::Ek(command) => commands::ek::run(&config, &command),
        Command::EkRoots(command) => commands::ek_roots::run(&config, &command),
        Command::Node(command) => commands::node::run(&config, &command),
        Command::Policy(command) => commands::policy::run(&config, &command),
        Command::Waiting(command) => commands::waiting::run(&config, &command),
        Command::ReferenceValues(command) => commands::reference_values::run(&config, &command),
        Command::Seal(command) => commands::seal::run(&config, &command),
        Command::Backup(arguments) => commands::backup::run(&config, &arguments),
        Command::Restore(arguments) => commands::restore::run(&config, &arguments),
        Command::Upgrade(arguments) => commands::upgrade::run(&config, &arguments),
        Command::Store(command) => commands::store::run(&config, &command),
        Command::Log(command) => commands::log::run(&config, &command),
        Command::Reports(command) => commands::reports::run(&config, &command),
        Command::Report(arguments) => commands::report::run(&config, &arguments),
        Command::Status(arguments) => commands::status::run(&config, &arguments),
        Command::Check(arguments) => commands::check::run(&config, &arguments),
        Command::Manual(arguments) => arguments.write::<Arguments>().map(|()| ExitCode::SUCCESS).map_err(Into::into),
    };
    result.unwrap_or_else(|error| failure(&error))
}
