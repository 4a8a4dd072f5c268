//! Entry point of the program `attest-controller`.

#![deny(unreachable_pub)]

use std::alloc::System;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use attest::release::version_text;
use attest_alloc::ZeroOnFree;
use attest_command_line::options::{self, OutputOption};
use attest_command_line::{NEWER_FORMAT, failure, output, usage};
use attest_controller::check::{CheckResult, check};
use attest_controller::pointers::report::report;
use attest_controller::run;
use attest_controller::settings::{ControllerLogFormat, ControllerSettings};
use attest_manual::ManualArguments;
use attest_system::clock::Clock;
use clap::{Parser, Subcommand};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Release and commit, and versions of the formats that this program reads and writes.
static VERSION: LazyLock<String> = LazyLock::new(|| version_text(&[("store", &attest_store::SCHEMA)]));

/// Zeroes freed memory, as in the gateway: the client of the API has a token.
#[global_allocator]
static ALLOCATOR: ZeroOnFree<System> = ZeroOnFree(System);

/// Approves CSRs of attested machines, renews pointers, and maintains second-stage MachineConfigs.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = VERSION.as_str(),
    after_help = "Example: check the settings, then run\n  attest-controller check\n  attest-controller serve\n\nReads the machines' attestations from the store that it shares with attest-gateway."
)]
struct Arguments {
    /// Settings file; paths in it are relative to its folder [env: ATTEST_CONTROLLER_CONFIG] [default:
    /// /etc/attest-gateway/controller.toml].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print results and errors, but no notes.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run until SIGTERM or Ctrl-C.
    Serve,
    /// Check settings, pools, store, and rights at the API.
    #[command(after_help = "Example:\n  attest-controller check\n\nExit code 1 if `attest-controller serve` would not start.")]
    Check {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Show the pointers of machine sets.
    #[command(subcommand)]
    Pointer(PointerCommand),
    #[command(hide = true)]
    Manual(ManualArguments),
}

#[derive(Debug, Subcommand)]
enum PointerCommand {
    /// List the pointers of machine sets, with the CAs in them.
    #[command(
        after_help = "Example:\n  attest-controller pointer list\n\nExit code 1 if a pointer lacks the newest CA: `attest-gateway ca switch` would lock its machines out."
    )]
    List {
        #[command(flatten)]
        format: OutputOption,
    },
}

fn main() -> ExitCode {
    output::set_program("attest-controller");
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if arguments.quiet {
        output::be_quiet();
    }
    let config = options::config(
        arguments.config.as_deref(),
        "ATTEST_CONTROLLER_CONFIG",
        "/etc/attest-gateway/controller.toml",
    );
    let done = match arguments.command {
        Command::Serve => serve(&config),
        Command::Check { format } => print_check(&config, format),
        Command::Pointer(PointerCommand::List { format }) => print_pointers(&config, format),
        Command::Manual(arguments) => arguments.write::<Arguments>().map(|()| ExitCode::SUCCESS).map_err(Into::into),
    };
    done.unwrap_or_else(|error| failure(&error))
}

fn serve(config: &Path) -> anyhow::Result<ExitCode> {
    let settings = ControllerSettings::load(config)?;
    // prctl(2) has no reason to fail.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // The API's client logs answers that it cannot read whole, with secrets.
    let filter = EnvFilter::try_new(&settings.log_filter)?.add_directive("kube_client=off".parse()?);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .log_internal_errors(false);
    match settings.log_format {
        ControllerLogFormat::Text => log.with_target(false).with_ansi(output::is_coloured()).init(),
        ControllerLogFormat::Json => log.json().init(),
    }
    runtime()?.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        run(settings, Clock::System, stop).await?;
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    })
}

fn print_check(config: &Path, format: OutputOption) -> anyhow::Result<ExitCode> {
    let settings = ControllerSettings::load(config)?;
    let findings = runtime()?.block_on(check(&settings, Clock::System));
    let each = findings.iter().map(|finding| match finding {
        CheckResult::Good(text) => ("ok", text),
        CheckResult::Degraded(text) => ("DEGRADED", text),
        CheckResult::Error(text) | CheckResult::Newer(text) => ("ERROR", text),
    });
    if format.is_json() {
        output::json(
            &each
                .map(|(level, text)| json!({ "level": level.to_lowercase(), "text": text }))
                .collect::<Vec<_>>(),
        )?;
    } else {
        for (level, text) in each {
            output::line(format_args!("{level:<8} {text}"))?;
        }
    }
    let any = |is_one: fn(&CheckResult) -> bool| findings.iter().any(is_one);
    Ok(if any(|finding| matches!(finding, CheckResult::Newer(_))) {
        ExitCode::from(NEWER_FORMAT)
    } else if any(|finding| matches!(finding, CheckResult::Error(_))) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn print_pointers(config: &Path, format: OutputOption) -> anyhow::Result<ExitCode> {
    let settings = ControllerSettings::load(config)?;
    let report = runtime()?.block_on(report(&settings, Clock::System))?;
    match format.is_json() {
        true => output::json(&report.json())?,
        false => output::print(&report)?,
    }
    anyhow::ensure!(
        !report.is_empty(),
        "namespace {} has no machine sets; it is cluster.machine_namespace in controller.toml",
        settings.machine_namespace
    );
    let lacking = report.lacking();
    if lacking.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::bail!(
        "pointers of machine sets lack the CA {}: {}; their machines refuse a certificate that only this CA has signed",
        report.newest(),
        lacking.join(", ")
    )
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
