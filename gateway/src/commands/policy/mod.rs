//! `attest-gateway policy`.

mod explain;
mod test;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say in words what a pool requires of a node that attests.
    Explain(explain::Arguments),
    /// Hold recorded evidence against a pool's rules as they are now: each rule, and what comes of it.
    Test(test::Arguments),
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Explain(arguments) => explain::run(config, arguments),
        Command::Test(arguments) => test::run(config, arguments),
    }
}
