//! The command `attest-gateway reports`: failed first boots, as the nodes reported them. Their text is external.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use attest_command_line::records::{LogSource, RecordSelector, ReportFilter, UnreadFiles, record};
use attest_gateway::settings::Settings;
use attest_log::{Blobs, Entry, EventKind, LogEvent, NodeReport, ReportSource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::log::source_with_identities;
use super::output::{self, ReaderState};
use super::{OutputOption, objects, table, visible, visible_json};

/// Default number of reports that are listed: of verified ones, and of others.
const LAST: usize = 50;
/// Digits of an id, which are enough to ask for the report.
const ID: usize = 12;
/// Longest node in the table, in characters.
const NODE: usize = 28;
/// Longest error in the table, in characters.
const ERROR: usize = 100;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List reports of failed first boots.
    #[command(
        after_help = "Example: reports of the last day\n  attest-gateway reports list --since 1d\n\nExample: reports of one node\n  attest-gateway reports list --node worker-7 --all\n\nWithout --last, --since or --all the command lists the last 50 verified reports, and the last 50 others. A verified report proves the\nattestation of its node. Any client can send the others. The text of both is the sender's.\n\nThe exit code is 1 if a line of the log is not a record."
    )]
    List {
        #[command(flatten)]
        filter: ReportFilter,
        /// Only reports that prove an attestation.
        #[arg(long)]
        verified: bool,
        /// Only the last N reports: of verified ones, and of others.
        #[arg(long, value_name = "N")]
        last: Option<usize>,
        /// List all reports.
        #[arg(long, conflicts_with = "last")]
        all: bool,
        #[command(flatten)]
        format: OutputOption,
        /// Log files, or folders with a log; `.gz` too. Without it, the gateway's own log with its rotated files.
        #[arg(long, value_name = "FILE", num_args = 1..)]
        log: Vec<PathBuf>,
    },
    /// Print a report with the node's journal.
    #[command(
        after_help = "Example:\n  attest-gateway reports show 127e54f3ecdd\n\nThe journal is the last 64 KiB of the node's, without secrets as far as the node recognized them. It is kept on the gateway that got the\nreport."
    )]
    Show {
        /// Id of the report, at least 8 digits of it, as the node's console and `reports list` print it.
        #[arg(value_name = "ID", value_parser = record)]
        id: RecordSelector,
        #[command(flatten)]
        format: OutputOption,
    },
}

/// A report with its record.
struct ReportRecord {
    time: String,
    id: String,
    source: ReportSource,
    report: NodeReport,
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::List {
            filter,
            verified,
            last,
            all,
            format,
            log,
        } => {
            let source = LogSource {
                filter: filter.clone().into(),
                ..LogSource::all_of(log)
            };
            let last = last.or((!all && !source.filter.has_beginning()).then_some(LAST));
            list(&settings, source, (*verified, last.unwrap_or(usize::MAX)), *format)
        }
        Command::Show { id, format } => show(&settings, id, *format),
    }
}

/// Passes on the reports that the source selects, in the log's order.
fn each(settings: &Settings, source: &LogSource, mut take: impl FnMut(ReportRecord)) -> anyhow::Result<UnreadFiles> {
    source.open(&settings.attestation_log(), None)?.each(|read| {
        let selected = read.fields.as_ref().is_some_and(|fields| source.filter.takes(fields, read.line));
        if selected && let Ok(Entry::Event(event)) = Entry::<IgnoredAny, IgnoredAny>::read(read.line) {
            let LogEvent { time, id, what, .. } = *event;
            if let EventKind::Report { source, report } = what {
                take(ReportRecord { time, id, source, report });
            }
        }
        Ok(ReaderState::There)
    })
}

fn list(settings: &Settings, source: LogSource, (verified, last): (bool, usize), format: OutputOption) -> anyhow::Result<ExitCode> {
    let source = source_with_identities(settings, source)?;
    // Unverified reports push no verified one off the list.
    let (mut of_both, mut number) = ([VecDeque::new(), VecDeque::new()], 0_u64);
    let unread = each(settings, &source, |record| {
        let [proven, others] = &mut of_both;
        let rows = if record.report.verified { proven } else { others };
        number += 1;
        rows.push_back((number, row(&record)));
        if rows.len() > last {
            rows.pop_front();
        }
    })?;
    let [proven, others] = of_both;
    let mut rows: Vec<(u64, [String; 8])> = proven.into_iter().chain(others.into_iter().filter(|_| !verified)).collect();
    rows.sort_by_key(|(number, _)| *number);
    let rows: Vec<[String; 8]> = rows.into_iter().map(|(_, row)| row).collect();
    if rows.is_empty() {
        output::print_note("no report matches");
    }
    let head = ["TIME", "REPORT", "NODE", "POOL", "VERIFIED", "STAGE", "UNIT", "ERROR"];
    if format.is_json() {
        output::print(json_text(&objects(head, &rows))?)?;
    } else {
        let rows: Vec<[String; 8]> = rows.into_iter().map(shortened).collect();
        output::print(table(head, &rows))?;
    }
    Ok(ExitCode::from(u8::from(unread.report())))
}

fn row(record: &ReportRecord) -> [String; 8] {
    let ReportRecord { time, id, source, report } = record;
    [
        time.clone(),
        id.clone(),
        node(source),
        source.pool.clone(),
        if report.verified { "yes" } else { "no" }.to_owned(),
        report.stage.to_string(),
        report.unit.clone(),
        report.error.clone(),
    ]
}

/// Returns the row with a short id, node and error.
fn shortened([time, id, node, pool, verified, stage, unit, error]: [String; 8]) -> [String; 8] {
    let cut = |text: String, limit: usize| match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    };
    let id = id.chars().take(ID).collect();
    [time, id, cut(node, NODE), pool, verified, stage, unit, cut(error, ERROR)]
}

/// Returns the name, or else the identity, or else the address that it came from.
fn node(source: &ReportSource) -> String {
    source.name.as_ref().or(source.identity.as_ref()).unwrap_or(&source.peer).clone()
}

fn show(settings: &Settings, id: &RecordSelector, format: OutputOption) -> anyhow::Result<ExitCode> {
    let RecordSelector::Id(begin) = id else {
        bail!("expected at least the first 8 digits of a report's id");
    };
    let mut found = Vec::new();
    let source = LogSource {
        filter: ReportFilter::default().into(),
        ..LogSource::all_of(&[])
    };
    let unread = each(settings, &source, |record| {
        if record.id.starts_with(begin.as_str()) {
            found.push(record);
        }
    })?;
    let [record] = found.as_slice() else {
        match found.len() {
            0 => bail!("the log has no such report; to list all reports: `attest-gateway reports list --all`"),
            many => bail!("{many} reports begin with {begin}: pass more digits"),
        }
    };
    let name = record.report.journal_sha256.as_deref();
    let journal = match name.map(|name| Blobs::at(&settings.evidence()).get(name)).transpose() {
        Ok(journal) => String::from_utf8_lossy(&journal.unwrap_or_default()).into_owned(),
        Err(error) => bail!("cannot read the journal of report {}: {error}", record.id),
    };
    if format.is_json() {
        let ReportRecord { time, id, source, report } = record;
        let value = json!({ "time": time, "id": id, "source": source, "report": report, "journal": journal });
        output::print(json_text(&value)?)?;
    } else {
        output::print(text(record, &journal))?;
    }
    Ok(ExitCode::from(u8::from(unread.report())))
}

/// Returns JSON that commands no terminal. What ends its lines is JSON's own.
fn json_text(value: &Value) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(text.lines().map(|line| format!("{}\n", visible_json(line))).collect())
}

/// Returns a report for people.
fn text(record: &ReportRecord, journal: &str) -> String {
    let ReportRecord { time, id, source, report } = record;
    let attestation = match (report.verified, report.attestation.as_deref()) {
        (true, attestation) => format!("{} (verified)", attestation.unwrap_or_default()),
        (false, Some(claimed)) => format!("none proven; the sender names {claimed}"),
        (false, None) => "none".to_owned(),
    };
    let facts = [
        ("report", id.as_str()),
        ("time", time),
        ("node", &node(source)),
        ("identity", source.identity.as_deref().unwrap_or("-")),
        ("instance", source.instance.as_deref().unwrap_or("-")),
        ("address", &source.peer),
        ("pool", &source.pool),
        ("attestation", &attestation),
        ("boot ID", &report.boot),
        ("stage", report.stage.as_str()),
        ("unit", &report.unit),
        ("error", &report.error),
    ];
    let facts = facts.iter().map(|(name, value)| format!("{name:<12} {}\n", visible(value)));
    // Each line by itself: what ends a line is the journal's, never a terminal's command.
    let lines = journal.lines().map(|line| format!("{}\n", visible(&line.replace('\t', "    "))));
    facts.chain(["\n".to_owned()]).chain(lines).collect()
}
