//! The command `attest-audit policy simulate`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use attest_audit::replay::simulation::{MachineGroup, RefusalCause, Simulation, SimulationRequest, simulate};
use attest_command_line::options::OutputOption;
use attest_command_line::{objects, output, recorded, table};
use attest_log::Blobs;
use attest_system::clock::Clock;
use serde_json::json;

use super::{GatewayFiles, progress_reporter, since};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: list the machines that a stricter pool.toml would refuse\n  attest-audit policy simulate worker stricter.toml --days 90\n\nTests each machine's last verifiable evidence of this pool. For a file with observe = true, refusals that it would only record count as\nrefusals. Ignores inventory, names and revocations.\n\nExit code 1 if a trusted machine would be refused, its evidence cannot be verified again, or there is no machine."
)]
pub(crate) struct Arguments {
    /// The pool whose machines are looked at.
    pool: String,
    /// A file in the place of its pool.toml; paths in it are relative to the pool's folder [default: the pool's own].
    file: Option<PathBuf>,
    /// Files of reference values in addition to those of the pool's folder.
    #[arg(long, value_name = "SET", num_args = 1..)]
    with: Vec<PathBuf>,
    /// Only evidence of the last N days.
    #[arg(long, value_name = "N")]
    days: Option<u64>,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = files.pool(&arguments.pool)?;
    let file = arguments.file.clone().unwrap_or_else(|| folder.join("pool.toml"));
    let policy = attest_pool::policy(&folder, &file, &arguments.with)?;
    let now = Clock::System.now();
    let asked = SimulationRequest {
        pool: &arguments.pool,
        since: since(arguments.days, now),
        policy: &policy,
        now,
    };
    let log = recorded::files(&files.attestation_log()?)?;
    let blobs = Blobs::at(&files.evidence(&[])?).remembering();
    let found = simulate(&log, &blobs, &asked, progress_reporter("machines"))?;
    if policy.observes() {
        output::print_note("the file observes: it would only record the refusals about the boot that are listed here");
    }
    if arguments.format.is_json() {
        output::json(&json!({
            "machines": found.machines(),
            "accepted": found.accepted,
            "accepted_refused_before": found.let_in,
            "refused": objects(GROUP_COLUMNS, &rows(&found.refused)),
            "refused_trusted_before": found.shut_out(),
            "not_verified": objects(GROUP_COLUMNS, &rows(&found.not_judged)),
        }))?;
    } else {
        output::print(describe(&found))?;
    }
    if found.machines() == 0 {
        output::print_note("no evidence of this pool's machines was recorded in that time");
    }
    let sound = found.machines() > 0 && found.shut_out() == 0 && found.not_judged.is_empty();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const GROUP_COLUMNS: [&str; 5] = ["MACHINES", "TRUSTED BEFORE", "CODE", "COMMON REASON", "AMONG THEM"];

fn describe(found: &Simulation) -> String {
    let mut rows = rows(&found.refused);
    rows.extend(self::rows(&found.not_judged));
    let groups = if rows.is_empty() {
        String::new()
    } else {
        table(GROUP_COLUMNS, &rows)
    };
    format!(
        "{groups}{} machines: {} would be accepted ({} of them were refused), {} refused ({} of them were trusted)\n",
        found.machines(),
        found.accepted,
        found.let_in,
        found.refused.values().map(|machines| machines.count).sum::<usize>(),
        found.shut_out(),
    )
}

/// The largest group first.
fn rows(groups: &BTreeMap<RefusalCause, MachineGroup>) -> Vec<[String; 5]> {
    let mut groups: Vec<_> = groups.iter().collect();
    groups.sort_by_key(|(_, machines)| std::cmp::Reverse(machines.count));
    let row = |(cause, machines): (&RefusalCause, &MachineGroup)| {
        let named: Vec<&str> = machines.named.iter().map(String::as_str).collect();
        [
            machines.count.to_string(),
            machines.trusted.to_string(),
            cause.code.clone(),
            cause.value.clone(),
            named.join(", "),
        ]
    };
    groups.into_iter().map(row).collect()
}
