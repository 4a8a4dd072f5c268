//! The command `attest-gateway config`: configs of pools.

mod diff;
mod render;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print a pool's config as a node would get it.
    Render(render::Arguments),
    /// List the part of a pool's config that a node gets only after it is approved.
    Diff(diff::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Render(arguments) => render::run(config, arguments),
        Command::Diff(arguments) => diff::run(config, arguments),
    }
}
