//! The commands `attest-audit policy`.

mod propose;
mod simulate;
mod test;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use attest::UnixTime;
use attest_command_line::output;

use super::gateway_files::GatewayFiles;

/// Interval of progress messages at a terminal.
const TOLD_EACH: Duration = Duration::from_secs(2);
const SECONDS_PER_DAY: u64 = 24 * 3600;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Test one recorded evidence against each of a pool's current rules.
    Test(test::Arguments),
    /// Test each machine's last evidence against a changed pool.toml.
    Simulate(simulate::Arguments),
    /// Propose the strictest rules that the machines' recorded boots satisfy.
    Propose(propose::Arguments),
}

pub(crate) fn run(files: &GatewayFiles, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Test(arguments) => test::run(files, arguments),
        Command::Simulate(arguments) => simulate::run(files, arguments),
        Command::Propose(arguments) => propose::run(files, arguments),
    }
}

/// Returns the time at which the last N days began, in seconds since 1970; 0 without a number.
fn since(days: Option<u64>, now: UnixTime) -> u64 {
    days.map_or(0, |days| now.as_secs().saturating_sub(days.saturating_mul(SECONDS_PER_DAY)))
}

/// Says now and then how much is done of how much.
fn progress_reporter(of_what: &'static str) -> impl FnMut(usize, usize) {
    let mut told = Instant::now();
    move |of, done| {
        if told.elapsed() >= TOLD_EACH {
            told = Instant::now();
            output::print_note(format_args!("{done} of {of} {of_what}"));
        }
    }
}
