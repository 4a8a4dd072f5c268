use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::machine_status::columns::{COLUMNS, Column};
use attest_gateway::machine_status::status::AttestedNodeState;
use attest_gateway::settings::Settings;
use attest_machines::waiting;
use serde_json::Value;

use super::super::{OutputOption, now, output, pool_folder, table, visible};
use super::state::{self, ListedMachine, LogPart, MachineRow};

/// Number of columns that a list has without `--wide`.
const NARROW: usize = 9;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: machines whose last attestation was refused, with the code\n  attest-gateway machines list --state refused\n\nExample: the machines of a pool that still have an old config\n  attest-gateway machines list --pool worker --output json | jq -r '.[] | select(.config != null and .config.sha256 != \"NEW\") | .name'\n\nExample: a page of a long list, and the next one\n  attest-gateway machines list --limit 100\n  attest-gateway machines list --limit 100 --after worker-100\n\nThe columns are those of `kubectl get attestednodes`. STATE is Banned, else Refused or Trusted by the last attestation. A machine without\none is Expected if it is on the allowlist, else Known. WAITING is the question that the machine waits for.\n\nA refused machine without a row has proven no identity that the store knows: `attest-gateway log show --verdict refused`.\n\nNames, allowlist and revocations come from the store, attestations and configs from the log. Without the right to write the store, the\ncommand reads it all the same."
)]
pub(crate) struct Arguments {
    /// Only machines of this pool: by their last attestation, or else by the allowlist.
    #[arg(long)]
    pool: Option<String>,
    /// Only machines in this state.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only machines that wait for an administrator's answer.
    #[arg(long)]
    waiting: bool,
    /// At most N machines.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Only machines that are listed after this one: its identity or name, with any filter.
    #[arg(long, value_name = "MACHINE")]
    after: Option<String>,
    /// Show the record and the config's SHA-256, too.
    #[arg(long)]
    wide: bool,
    #[command(flatten)]
    log: LogPart,
    #[command(flatten)]
    format: OutputOption,
}

/// State of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    /// The last attestation was accepted.
    Trusted,
    /// The last attestation was refused.
    Refused,
    /// Revoked.
    Banned,
    /// On the allowlist, and has not attested.
    Expected,
    /// In the store, without an attestation in the log that was read.
    Known,
}

impl State {
    const fn of_machine(self) -> AttestedNodeState {
        match self {
            Self::Trusted => AttestedNodeState::Trusted,
            Self::Refused => AttestedNodeState::Refused,
            Self::Banned => AttestedNodeState::Banned,
            Self::Expected => AttestedNodeState::Expected,
            Self::Known => AttestedNodeState::Known,
        }
    }
}

pub(super) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments {
        pool,
        state,
        waiting,
        limit,
        after,
        wide,
        log,
        format,
    } = arguments;
    // A machine that waits may be unknown otherwise: its question names the pool.
    let (machines, asked) = state::read(config, log, async |store| {
        let Some(pool) = pool.as_ref().filter(|_| *waiting) else {
            return Ok(Vec::new());
        };
        let questions = waiting::questions(store, Some(pool), now()).await?;
        Ok(questions.into_iter().map(|row| row.id).collect())
    })?;
    let waits_for = |machine: &ListedMachine| machine.status.waiting.as_ref().is_some_and(|question| asked.contains(question));
    let attested_for = |pool: &str| {
        let mut attestations = machines.all.iter().filter_map(|machine| machine.status.attestation.as_ref());
        attestations.any(|attestation| attestation.pool == pool)
    };
    // Of a pool that is gone there may be machines still.
    if let Some(pool) = pool.as_ref().filter(|pool| !attested_for(pool)) {
        pool_folder(&Settings::load(config)?, pool)?;
    }
    let is_wanted = |machine: &&ListedMachine| {
        pool.as_ref().is_none_or(|pool| machine.is_of(pool) || waits_for(machine))
            && state.is_none_or(|state| machine.is(state.of_machine()))
            && (!waiting || machine.status.waiting.is_some())
    };
    let first = after.as_ref().map_or(Ok(0), |after| position_after(&machines.all, after))?;
    let mut shown: Vec<&ListedMachine> = machines.all.iter().skip(first).filter(is_wanted).collect();
    let found = shown.len();
    shown.truncate(limit.unwrap_or(found));
    if format.is_json() {
        output::json(&shown.iter().map(|machine| machine.row()).collect::<Vec<MachineRow<'_>>>())?;
    } else if *wide {
        output::print(text::<{ COLUMNS.len() }>(&COLUMNS.iter().collect::<Vec<_>>(), &shown))?;
    } else {
        let narrow: Vec<&Column> = COLUMNS
            .iter()
            .filter(|column| !column.is_wide || column.path == "identity")
            .collect();
        output::print(text::<NARROW>(&narrow, &shown))?;
    }
    if shown.len() < found {
        let last = shown.last().and_then(|machine| machine.identity().or_else(|| machine.name()));
        let next = last.map(|last| format!("; for the next ones: --after {}", visible(last)));
        output::print_note(format_args!(
            "{} of {found} machines are shown{}",
            shown.len(),
            next.unwrap_or_default()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the position after a machine. Of several machines that had one name, the last one counts.
fn position_after(all: &[ListedMachine], after: &str) -> anyhow::Result<usize> {
    let by_identity = all.iter().rposition(|machine| machine.identity() == Some(after));
    let found = by_identity.or_else(|| all.iter().rposition(|machine| machine.name() == Some(after)));
    let Some(found) = found else {
        bail!(
            "--after: no machine is listed as {:?}; to list from the beginning, leave --after out",
            visible(after)
        );
    };
    Ok(found + 1)
}

fn text<const N: usize>(columns: &[&Column], machines: &[&ListedMachine]) -> String {
    let heads: [String; N] = std::array::from_fn(|at| columns.get(at).map(|column| column.name.to_uppercase()).unwrap_or_default());
    let rows: Vec<[String; N]> = machines
        .iter()
        .map(|machine| {
            let status = serde_json::to_value(&machine.status).unwrap_or_default();
            std::array::from_fn(|at| columns.get(at).map(|column| cell(&status, column)).unwrap_or_default())
        })
        .collect();
    table(heads.each_ref().map(String::as_str), &rows)
}

/// Returns the value of a column.
fn cell(status: &Value, column: &Column) -> String {
    let value = column.path.split('.').try_fold(status, |value, member| value.get(member));
    match value {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        _ => "-".to_owned(),
    }
}
