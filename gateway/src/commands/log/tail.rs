//! The command `attest-gateway log tail`: prints decisions as they come.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use attest_command_line::options::OutputFormat;
use attest_command_line::records::{Filter, RecordFields, report_aggregated};
use attest_gateway::settings::Settings;
use attest_log::reading::{FollowedLine, LogFile, LogFiles, LogFollower, LogReadError, last_of, log_files};
use attest_system::files;

use super::changes::FileChanges;
use super::export::put_as_it_is;
use super::node_identities::with_identities;
use super::row::{head, row, visible};
use crate::commands::output::{self, Output, ReaderState, stdout};

/// Default number of records that come first.
const LAST: usize = 10;
/// Least time between two looks for a file that does not exist yet: each looks at all files.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: refusals of one pool, as they come\n  attest-gateway log tail --pool worker --verdict refused\n\nExample: each new record for a program\n  attest-gateway log tail --last 0 --output json | jq -c .code\n\nThe command follows rotated logs and restarts of the gateway, until Ctrl-C."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    filter: Filter,
    /// Begin with the last N decisions.
    #[arg(long, short = 'n', value_name = "N", default_value_t = LAST)]
    last: usize,
    /// Print all columns at full length.
    #[arg(long)]
    wide: bool,
    /// Output format; `json` prints the records unchanged, one on a line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

pub(crate) fn run(settings: &Settings, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let log = settings.attestation_log();
    let filter = &with_identities(settings, arguments.filter.clone(), &[])?;
    if let Some(doubts) = filter.doubts() {
        output::print_note(format_args!("attest-gateway: {doubts}"));
    }
    // Before anything is read: what comes after that is told of.
    let mut changes = FileChanges::read(files::folder(&log));
    let mut follower = begin(&log, filter, arguments.last)?;
    let (mut output, terminal) = stdout()?;
    if arguments.output == OutputFormat::Text {
        output.put(head().as_bytes())?;
    }
    let mut left_out = false;
    loop {
        let next = match follower.follow() {
            // It is being replaced.
            Err(error) if error.path == files::folder(&log) && error.source.kind() == ErrorKind::NotFound => FollowedLine::Nothing,
            Err(error) if error.path != log && error.path != files::folder(&log) => {
                skip_file(&mut follower, &error);
                left_out = true;
                continue;
            }
            next => next?,
        };
        let reader = match next {
            FollowedLine::Line(line, _) => print(&mut output, filter, arguments, &line, terminal)?,
            FollowedLine::TooLong(length) => {
                output::print_note(format_args!(
                    "attest-gateway: skipping a line of {length} bytes, which no gateway writes; for details: `attest-audit log audit`"
                ));
                ReaderState::There
            }
            FollowedLine::SetBack => {
                output.flush()?;
                output::print_note(
                    "attest-gateway: the log was truncated or replaced; continuing with the last lines of the present file. For details: `attest-audit log audit`",
                );
                follower = begin(&log, filter, arguments.last)?;
                continue;
            }
            FollowedLine::Nothing => {
                let reader = output.flush()?;
                // While the log is moved and no new one is begun, whatever is written is told of.
                let at_least = if follower.is_at_the_end() { Duration::ZERO } else { LOOK_AGAIN };
                match reader {
                    ReaderState::There => changes.wait(&std::io::stdout(), at_least),
                    ReaderState::Gone => ReaderState::Gone,
                }
            }
        };
        if reader == ReaderState::Gone {
            return Ok(ExitCode::from(u8::from(left_out)));
        }
    }
}

fn skip_file(follower: &mut LogFollower, error: &LogReadError) {
    output::print_note(format_args!("attest-gateway: {}; skipping this file", visible(&error.to_string())));
    follower.skip_file(&error.path);
}

fn begin(log: &Path, filter: &Filter, last: usize) -> anyhow::Result<LogFollower> {
    let LogFiles { mut files, unreadable } = log_files(log)?;
    filter.drop_older(&mut files);
    let wanted = |line: &[u8]| RecordFields::parse(line).is_some_and(|fields| filter.takes(&fields, line));
    let mut follower = match last_of(&files, last, wanted) {
        (place, offset) if place < files.len() => follower(log, &files, place, offset)?,
        // None of what is there: from the last line's end on.
        _ => {
            let (place, offset) = last_of(&files, 1, |_| true);
            let mut follower = follower(log, &files, place, offset)?;
            follower.follow()?;
            follower
        }
    };
    unreadable.iter().for_each(|error| skip_file(&mut follower, error));
    Ok(follower)
}

fn follower(log: &Path, files: &[LogFile], place: usize, offset: u64) -> Result<LogFollower, LogReadError> {
    match files.get(place) {
        Some(file) => LogFollower::from(log, file, offset),
        None => Ok(LogFollower::from_beginning(log)),
    }
}

fn print<W: std::io::Write>(
    output: &mut Output<W>,
    filter: &Filter,
    arguments: &Arguments,
    line: &[u8],
    terminal: bool,
) -> anyhow::Result<ReaderState> {
    let Some(fields) = RecordFields::parse(line) else {
        output::print_note("attest-gateway: skipping a line that is not a record; for details: `attest-audit log audit`");
        return Ok(ReaderState::There);
    };
    if !filter.takes(&fields, line) {
        match filter.passes_over(&fields, line) {
            0 => {}
            counted => report_aggregated(counted),
        }
        return Ok(ReaderState::There);
    }
    match arguments.output {
        OutputFormat::Json => put_as_it_is(output, line, terminal),
        OutputFormat::Text => output.put(row(&filter.labelled(&fields), arguments.wide).as_bytes()),
    }
}
