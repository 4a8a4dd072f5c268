//! The command `attest-gateway log export`: writes records as JSON lines.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use attest_command_line::records::{LogSource, OpenedSource, UnreadFiles};
use attest_gateway::settings::Settings;

use super::chains::Chains;
use super::node_identities::source_with_identities;
use super::row::visible_json;
use crate::commands::output::{Output, ReaderState, stdout};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: November, for an archive\n  attest-gateway log export --since 2026-11-01T00:00:00Z --until 2026-11-30T23:59:59Z --out november.jsonl\n\nExample: refusals, as a table\n  attest-gateway log export --verdict refused | jq -r '[.time, .pool, .name // .identity // .peer, .code, .reason] | @csv' > refused.csv\n\nThe lines are those of the log, byte for byte; on a terminal control characters are JSON escapes. Without filters\n`attest-audit log audit --log FILE` verifies them (with --continued, if the beginning is missing). If they belong to several chains,\nstandard error says where to cut the file.\n\nThe exit code is 1 if a line is not a record. Without filters such a line is written, too, unless it is torn or longer than 16 MiB."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: LogSource,
    /// New file, which appears when it is complete [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(settings: &Settings, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let source = source_with_identities(settings, arguments.source.clone())?;
    let opened = source.open(&settings.attestation_log(), source.last)?;
    let unread = match &arguments.out {
        Some(path) => attest_command_line::into_file(path, |output| write(&opened, &source, output, false))?,
        None => {
            let (mut output, terminal) = stdout()?;
            write(&opened, &source, &mut output, terminal)?
        }
    };
    Ok(ExitCode::from(u8::from(unread.report())))
}

fn write<W: Write>(opened: &OpenedSource, source: &LogSource, output: &mut Output<W>, terminal: bool) -> anyhow::Result<UnreadFiles> {
    let mut chains = Chains::default();
    let unread = opened.each(|read| {
        chains.line(read);
        match &read.fields {
            Some(fields) if !source.filter.takes(fields, read.line) => Ok(ReaderState::There),
            None if !source.filter.is_empty() => Ok(ReaderState::There),
            _ => put_as_it_is(output, read.line, terminal),
        }
    })?;
    output.flush()?;
    if source.filter.is_empty() {
        chains.print();
    }
    Ok(unread)
}

/// Writes a line of the log; for a terminal, with control characters as JSON escapes.
pub(crate) fn put_as_it_is<W: Write>(output: &mut Output<W>, line: &[u8], terminal: bool) -> anyhow::Result<ReaderState> {
    let mut bytes = match terminal {
        true => visible_json(&String::from_utf8_lossy(line)).into_bytes(),
        false => line.to_owned(),
    };
    bytes.push(b'\n');
    output.put(&bytes)
}
