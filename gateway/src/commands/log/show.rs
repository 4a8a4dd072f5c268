//! The command `attest-gateway log show`: lists decisions, or prints one.

use std::process::ExitCode;

use anyhow::bail;
use attest_command_line::options::OutputFormat;
use attest_command_line::records::{LogSource, RecordFields, RecordSelector, record};
use attest_gateway::settings::Settings;
use attest_log::{accept_command, with_before};
use serde_json::Value;

use super::export::put_as_it_is;
use super::node_identities::source_with_identities;
use super::row::{head, row, visible, visible_json};
use crate::commands::output::{Output, ReaderState, print_note, stdout};

/// Default number of records that are listed: a screen or two.
const LAST: usize = 50;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: refusals of the last two hours\n  attest-gateway log show --verdict refused --since 2h\n\nExample: all decisions about a node\n  attest-gateway log show --node worker-7 --all\n\nExample: one whole record\n  attest-gateway log show --record 127e54f3ecdd\n\nWithout --last, --since or --all the command lists the last 50 decisions. Times are UTC. --wide prints the columns at full length.\n\nNAME (claimed) is not proven: a refused client asked for the name, or showed the node's identity without proof. A code in parentheses is\na refusal that the node itself reports.\n\nThe exit code is 1 if a line is not a record."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: LogSource,
    /// List all decisions.
    #[arg(long, conflicts_with = "last")]
    all: bool,
    /// Print all columns at full length.
    #[arg(long)]
    wide: bool,
    /// Print one whole record: by its id, at least 8 digits of it, or its number in its chain.
    #[arg(long, value_name = "ID|N", value_parser = record, conflicts_with_all = ["all", "last", "wide"])]
    record: Option<RecordSelector>,
    /// Output format; `json` prints the records unchanged, one on a line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

pub(crate) fn run(settings: &Settings, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let source = source_with_identities(settings, arguments.source.clone())?;
    match &arguments.record {
        Some(record) => show_record(settings, &source, record, arguments.output),
        None => list(settings, &source, arguments),
    }
}

fn list(
    settings: &Settings,
    source: &LogSource,
    Arguments {
        all, wide, output: format, ..
    }: &Arguments,
) -> anyhow::Result<ExitCode> {
    let last = source.last.or((!all && !source.filter.has_beginning()).then_some(LAST));
    let opened = source.open(&settings.attestation_log(), last)?;
    let (mut output, terminal) = stdout()?;
    if *format == OutputFormat::Text {
        output.put(head().as_bytes())?;
    }
    let mut found = 0_usize;
    let unread = opened.each(|read| match &read.fields {
        Some(fields) if source.filter.takes(fields, read.line) => {
            found = found.saturating_add(1);
            match format {
                OutputFormat::Text => output.put(row(&source.filter.labelled(fields), *wide).as_bytes()),
                OutputFormat::Json => put_as_it_is(&mut output, read.line, terminal),
            }
        }
        _ => Ok(ReaderState::There),
    })?;
    output.flush()?;
    if found == 0 {
        print_note("no record of the log matches");
    }
    Ok(ExitCode::from(u8::from(unread.report())))
}

fn show_record(settings: &Settings, source: &LogSource, record: &RecordSelector, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let opened = source.open(&settings.attestation_log(), None)?;
    let (mut output, terminal) = stdout()?;
    let mut found = 0;
    let unread = opened.each(|read| match &read.fields {
        Some(fields) if record.is(fields) && source.filter.takes(fields, read.line) => {
            found += 1;
            match format {
                OutputFormat::Text => print_whole(&mut output, read.line, fields),
                OutputFormat::Json => put_as_it_is(&mut output, read.line, terminal),
            }
        }
        _ => Ok(ReaderState::There),
    })?;
    output.flush()?;
    let is_unread = unread.report();
    if found == 0 {
        bail!("the log has no such record; to list all records: `attest-gateway log show --all`");
    }
    Ok(ExitCode::from(u8::from(is_unread)))
}

/// Prints the summary of a record first, and then all of it.
fn print_whole<W: std::io::Write>(output: &mut Output<W>, line: &[u8], fields: &RecordFields) -> anyhow::Result<ReaderState> {
    output.put(row(fields, true).as_bytes())?;
    if !fields.reason.is_empty() {
        let reason = with_before(&fields.reason, fields.booted_before.as_deref());
        output.put(format!("{}\n", visible(&reason)).as_bytes())?;
    }
    if fields.acceptable.is_some() {
        output.put(format!("to accept it: `{}`\n", accept_command(&visible(&fields.id))).as_bytes())?;
    }
    for alert in &fields.alerts {
        output.put(format!("ALERT: {}\n", visible(alert)).as_bytes())?;
    }
    for one in &fields.would_refuse {
        output.put(format!("WOULD REFUSE {}: {}\n", visible(&one.code), visible(&one.reason)).as_bytes())?;
    }
    let value: Value = serde_json::from_slice(line)?;
    let lines = serde_json::to_string_pretty(&value)?;
    // Each line of it by itself: what ends a line is JSON's own, never a record's.
    for line in lines.lines() {
        output.put(format!("{}\n", visible_json(line)).as_bytes())?;
    }
    Ok(ReaderState::There)
}
