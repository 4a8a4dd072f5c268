//! `attest-gateway policy`.

mod explain;
mod propose;
mod simulate;
mod test;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say in words what a pool requires of a node that attests.
    Explain(explain::Arguments),
    /// Hold recorded evidence against a pool's rules as they are now: each rule, and what comes of it.
    Test(test::Arguments),
    /// Hold the last evidence of each machine against a changed pool.toml: which would be refused, by what they share.
    Simulate(simulate::Arguments),
    /// Write the strictest rules that fit what machines have booted, as a diff of pool.toml to review, and say what no rule was made of.
    Propose(propose::Arguments),
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Explain(arguments) => explain::run(config, arguments),
        Command::Test(arguments) => test::run(config, arguments),
        Command::Simulate(arguments) => simulate::run(config, arguments),
        Command::Propose(arguments) => propose::run(config, arguments),
    }
}
