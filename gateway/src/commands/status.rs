//! The command `attest-gateway status`: the state of a gateway on one screen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use attest::UnixTime;
use attest_command_line::output::ReaderState;
use attest_command_line::records::{Filter, LogSource, RecordFields};
use attest_gateway::inspection::{Depth, Inspection};
use attest_gateway::metrics::Metrics;
use attest_gateway::settings::Settings;
use attest_log::{LastCheckpoint, log_head};
use attest_machines::waiting;
use attest_recording::last_checkpoints;
use attest_store::AnyStore;
use attest_system::advised_commands::runnable;
use attest_system::clock::{Clock, rfc3339};
use serde::Serialize;

use super::certificate::list::{CertificateSummary, left, summaries};
use super::{OutputOption, now, output, reading_store, table, visible};

const SECONDS_OF_A_DAY: u64 = 24 * 3600;
/// Maximum number of findings, and of codes of a pool, that are printed; more are counted.
const LINES_LIMIT: usize = 8;
const CODES_LIMIT: usize = 3;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: in a script or a monitoring system\n  attest-gateway status --output json | jq '.stops'\n\nStops are the lines that `attest-gateway check` prints as ERROR or DEGRADED, and a gateway that does not serve. TODAY counts decisions of\nthe log since midnight UTC. Each gateway's log has the decisions of that gateway only: with --log, name the logs of all."
)]
pub(crate) struct Arguments {
    /// Log files, or folders with a log, to count the decisions of today [default: the gateway's own log].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    #[command(flatten)]
    format: OutputOption,
}

/// State of a gateway.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    /// Set if a gateway serves with this state folder.
    serves: bool,
    /// Problems that stop a boot, or may stop some.
    pub(super) stops: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// Absent if the store cannot be read.
    waiting: Option<Waiting>,
    today: DecisionsToday,
    pub(super) log: SignedLog,
    pub(super) certificates: Vec<CertificateSummary>,
    /// Hosts of the gateways that serve with the store. Absent for an embedded store, or if it cannot be read.
    pub(super) replicas: Option<Vec<String>>,
    pub(super) store: StoreStatus,
}

/// Machines that wait for an administrator.
#[derive(Debug, Serialize)]
struct Waiting {
    /// Open questions.
    questions: usize,
    machines: usize,
}

/// Decisions of the current day in UTC.
#[derive(Debug, Serialize)]
struct DecisionsToday {
    since: String,
    pools: BTreeMap<String, PoolDecisions>,
    /// Decisions about pools that are gone since.
    unknown_pools: u64,
    /// Decisions about unauthenticated clients in aggregated records, of all pools.
    aggregated: u64,
}

#[derive(Debug, Default, Serialize)]
struct PoolDecisions {
    trusted: u64,
    refused: u64,
    served_full: u64,
    served_pre_approved: u64,
    /// Refusals by their codes.
    codes: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct SignedLog {
    pub(super) chain: Option<String>,
    /// Number of the last line in its chain.
    pub(super) lines: Option<u64>,
    /// Number of the last line that a checkpoint of the store signs, and the checkpoint's time.
    pub(super) signed: Option<u64>,
    pub(super) signed_at: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct StoreStatus {
    pub(super) place: String,
    /// Reason why the store cannot be read.
    pub(super) error: Option<String>,
    pub(super) health: Vec<String>,
}

/// What the store says.
struct StoreFacts {
    waiting: Waiting,
    checkpoints: Vec<LastCheckpoint>,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = super::owner::settings(config)?;
    let status = gather(&settings, &arguments.log)?;
    let failed = !status.stops.is_empty();
    if arguments.format.is_json() {
        output::json(&status)?;
    } else {
        output::print(runnable(&text(&status, now())))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Inspects the gateway, and counts the decisions of today in its own log or in these.
pub(super) fn gather(settings: &Settings, logs: &[PathBuf]) -> anyhow::Result<Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inspection = runtime.block_on(Inspection::run(
        settings,
        Clock::System,
        &Arc::new(Metrics::default()),
        Depth::Thorough,
    ));
    drop(runtime);
    status(settings, logs, &inspection, Clock::System.now())
}

fn status(settings: &Settings, logs: &[PathBuf], inspection: &Inspection, now: UnixTime) -> anyhow::Result<Status> {
    let (facts, error) = match facts(settings) {
        Ok(facts) => (facts, None),
        Err(error) => (None, Some(attest_command_line::in_full(&error))),
    };
    let replicas = attest_store::replicas(&settings.store).ok().flatten();
    let health = AnyStore::health(&settings.store).unwrap_or_default();
    let mut stops: Vec<String> = inspection.stops().map(|text| runnable(text).into_owned()).collect();
    let (serves, others) = (inspection.is_served, replicas.as_ref().is_some_and(|hosts| !hosts.is_empty()));
    let mut warnings: Vec<String> = inspection.warnings().map(|text| runnable(text).into_owned()).collect();
    if !serves {
        let text = format!("no gateway serves with {}", settings.state.display());
        if others { warnings.push(text) } else { stops.push(text) }
    }
    let (waiting, checkpoints) = facts.map_or((None, Vec::new()), |facts| (Some(facts.waiting), facts.checkpoints));
    Ok(Status {
        serves,
        stops,
        warnings,
        waiting,
        today: today(settings, logs, now.as_secs())?,
        log: signed(&settings.attestation_log(), &checkpoints),
        certificates: summaries(settings, now),
        replicas,
        store: StoreStatus {
            place: attest_store::place(&settings.store),
            error,
            health: health.good.into_iter().chain(health.warnings).collect(),
        },
    })
}

/// Returns what the store says; `None` if there is no store yet.
fn facts(settings: &Settings) -> anyhow::Result<Option<StoreFacts>> {
    // None is made.
    if !settings.state.exists() || !AnyStore::exists(&settings.store)? {
        return Ok(None);
    }
    reading_store(settings, async |store| {
        let questions = waiting::questions(store, None, now()).await?;
        Ok(Some(StoreFacts {
            waiting: Waiting {
                questions: questions.iter().filter(|row| row.answered.is_none()).count(),
                machines: waiting::waiting(store, now()).await?.len(),
            },
            checkpoints: last_checkpoints(store).await?,
        }))
    })
}

fn today(settings: &Settings, logs: &[PathBuf], now: u64) -> anyhow::Result<DecisionsToday> {
    let own = &settings.attestation_log();
    let pools = attest_pool::folders(&settings.pools)
        .map(|folders| folders.pools)
        .unwrap_or_default();
    let midnight = now - now % SECONDS_OF_A_DAY;
    let mut today = DecisionsToday {
        since: rfc3339(midnight),
        pools: pools.into_keys().map(|pool| (pool, PoolDecisions::default())).collect(),
        unknown_pools: 0,
        aggregated: 0,
    };
    if logs.is_empty() && !own.exists() {
        return Ok(today);
    }
    let source = LogSource {
        log: logs.to_vec(),
        filter: Filter::since(midnight),
        last: None,
    };
    let unread = source.open(own, None)?.each(|read| {
        if let Some(fields) = read.fields.as_ref().filter(|fields| source.filter.takes(fields, read.line)) {
            today.add(fields);
        }
        Ok(ReaderState::There)
    })?;
    unread.report();
    if unread.lacks_files() && !logs.is_empty() {
        bail!("not all of the logs could be read: name readable ones with --log");
    }
    Ok(today)
}

impl DecisionsToday {
    fn add(&mut self, fields: &RecordFields) {
        self.aggregated += fields.counted.unwrap_or(0);
        if !fields.is_of_a_boot() {
            return;
        }
        let Some(pool) = self.pools.get_mut(&fields.pool) else {
            self.unknown_pools += 1;
            return;
        };
        match (fields.verdict.as_str(), fields.grant.as_deref()) {
            ("trusted", _) => pool.trusted += 1,
            ("served", Some("full")) => pool.served_full += 1,
            ("served", _) => pool.served_pre_approved += 1,
            _ => {
                pool.refused += 1;
                *pool.codes.entry(fields.code.clone().unwrap_or_default()).or_default() += 1;
            }
        }
    }
}

/// Returns how far the log is signed, by the checkpoints of the store.
fn signed(log: &Path, checkpoints: &[LastCheckpoint]) -> SignedLog {
    let Ok(Some(head)) = log_head(log) else {
        return SignedLog::default();
    };
    let of_chain = checkpoints.iter().filter(|kept| kept.line.chain.id == head.chain);
    let last = of_chain.max_by_key(|kept| kept.line.chain.number);
    SignedLog {
        lines: Some(head.number),
        signed: last.map(|kept| kept.line.chain.number),
        signed_at: last.map(|kept| rfc3339(kept.line.at)),
        chain: Some(head.chain),
    }
}

fn text(status: &Status, now: u64) -> String {
    let mut text = String::new();
    let mut line = |what: &str, said: &str| {
        for (index, part) in said.split('\n').enumerate() {
            let what = if index == 0 { what } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{what:<13} {}", visible(part));
        }
    };
    match status.stops.as_slice() {
        [] => line("boots", "nothing stops a boot"),
        stops if status.serves => line("boots", &format!("STOPPED now, or after a restart; problems: {}", stops.len())),
        stops => line("boots", &format!("STOPPED; problems: {}", stops.len())),
    }
    for (index, stop) in status.stops.iter().enumerate() {
        match index {
            0..LINES_LIMIT => line("", stop),
            LINES_LIMIT => line("", "more are printed by `attest-gateway check`"),
            _ => {}
        }
    }
    let serves = if status.serves { "serves" } else { "does not serve" };
    let warnings = match status.warnings.len() {
        0 => "no warnings".to_owned(),
        1 => "1 warning of `attest-gateway check`".to_owned(),
        number => format!("{number} warnings of `attest-gateway check`"),
    };
    line("gateway", &format!("{serves}; {warnings}"));
    line(
        "waiting",
        &match &status.waiting {
            None => "not known".to_owned(),
            Some(Waiting { questions: 0, .. }) => "no machine".to_owned(),
            Some(Waiting { questions, machines }) => {
                format!("machines: {machines}, open questions: {questions}; to answer: `attest-gateway waiting list`")
            }
        },
    );
    line(
        "log",
        &match (&status.log.lines, &status.log.signed, &status.log.signed_at) {
            (Some(lines), Some(signed), Some(at)) => format!("signed until {at}, up to line {signed} of {lines}"),
            (Some(lines), ..) => format!("{lines} lines, none signed"),
            _ => "no log yet".to_owned(),
        },
    );
    line("certificates", &certificates(&status.certificates, now));
    line(
        "replicas",
        &match &status.replicas {
            None => "one gateway".to_owned(),
            Some(hosts) if hosts.is_empty() => "none serves".to_owned(),
            Some(hosts) => hosts.join(", "),
        },
    );
    let error = status.store.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    line("store", &format!("{}{error}", status.store.place));
    for health in &status.store.health {
        line("", health);
    }
    text.push_str(&today_table(&status.today));
    text
}

fn certificates(all: &[CertificateSummary], now: u64) -> String {
    let expiring = all.iter().filter_map(|one| Some((one.expires?, one)));
    let next = expiring.filter(|(expires, _)| *expires >= now).min_by_key(|(expires, _)| *expires);
    let bad = all
        .iter()
        .filter(|one| !one.is_good)
        .map(|one| format!("{} {}", one.name, one.state));
    let next = next.map(|(expires, one)| format!("next to expire: {} in {}", one.name, left(expires, now)));
    let said: Vec<String> = bad.chain(next).collect();
    said.join("; ")
}

fn today_table(today: &DecisionsToday) -> String {
    let rows: Vec<[String; 6]> = today
        .pools
        .iter()
        .map(|(pool, decisions)| {
            let mut codes: Vec<(&String, &u64)> = decisions.codes.iter().collect();
            codes.sort_by_key(|(code, count)| (std::cmp::Reverse(**count), *code));
            let codes: Vec<String> = codes
                .into_iter()
                .take(CODES_LIMIT)
                .map(|(code, count)| format!("{code} {count}"))
                .collect();
            [
                pool.clone(),
                decisions.trusted.to_string(),
                decisions.refused.to_string(),
                decisions.served_full.to_string(),
                decisions.served_pre_approved.to_string(),
                codes.join(", "),
            ]
        })
        .collect();
    let head = ["TODAY", "TRUSTED", "REFUSED", "FULL", "PRE-APPROVED", "CODES"];
    let others = match today.aggregated + today.unknown_pools {
        0 => String::new(),
        number => format!("{number} more decisions: about unauthenticated clients, or about pools that are gone\n"),
    };
    format!("\n{}{others}", table(head, &rows))
}
