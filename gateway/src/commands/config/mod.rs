//! The command `attest-gateway config`: configs of pools.

mod diff;
mod render;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print a pool's config as nodes get it.
    Render(render::Arguments),
    /// Compare a pool's pre-approved config with its full config.
    Diff(diff::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Render(arguments) => render::run(config, arguments),
        Command::Diff(arguments) => diff::run(config, arguments),
    }
}
