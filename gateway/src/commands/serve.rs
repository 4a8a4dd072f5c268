//! The command `attest-gateway serve`: runs the gateway.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::server::{Server, service_manager, stop_signal};
use attest_gateway::settings::LogFormat;
use attest_system::clock::Clock;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tracing_subscriber::EnvFilter;

use super::console_fields::{ConsoleFields, JsonConsole};
use super::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway serve\n\nThe console shows one line for each decision. The attestation log in the state folder has the whole record of each decision, as a\nJSON line.\n\nAfter SIGTERM or Ctrl-C the gateway accepts no new connections, and finishes the requests in progress."
)]
pub(crate) struct Arguments {
    /// Format of the console's lines [default: log.format of gateway.toml].
    #[arg(long, value_enum)]
    log_format: Option<ConsoleFormat>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ConsoleFormat {
    Text,
    Json,
}

/// Keeps all users but root from this process's memory, and keeps it out of core files: there are keys and tokens in it. A process that
/// becomes another user loses that again, so it comes after. prctl(2) knows no reason to fail.
fn keep_from_dumps() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = super::owner::settings(config)?;
    keep_from_dumps();
    let format = match arguments.log_format {
        Some(ConsoleFormat::Text) => LogFormat::Text,
        Some(ConsoleFormat::Json) => LogFormat::Json,
        None => settings.log_format,
    };
    let mut filter = EnvFilter::try_new(&settings.log_filter)?;
    // The client of the cluster's API logs answers that it cannot read, whole, with the secrets in them. What failed is said by who asked.
    filter = filter.add_directive("kube_client=off".parse()?);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would say so where it could not write, and panic over that.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(output::is_coloured())
            .fmt_fields(ConsoleFields)
            .init(),
        LogFormat::Json => log.json().with_writer(|| JsonConsole(std::io::stderr())).init(),
    }
    // The first call costs tens of milliseconds: not the first node's.
    let _ = aws_lc_rs::rand::fill(&mut [0; 1]);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let stop = stop_signal()?;
        let mut stop = std::pin::pin!(stop);
        // It may wait for its store.
        let server = tokio::select! {
            server = Server::bind(settings, Clock::System) => server?,
            () = &mut stop => {
                service_manager::stopping();
                return Ok(ExitCode::SUCCESS);
            }
        };
        server.serve(stop).await;
        Ok(ExitCode::SUCCESS)
    })
}
