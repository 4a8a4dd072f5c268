//! The command `attest-audit policy propose`.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_audit::proposal::{Proposal, ProposalRequest, RuleRequest, propose, unified};
use attest_command_line::{output, recorded, table};
use attest_log::Blobs;
use attest_system::clock::Clock;
use attest_system::files;

use super::{GatewayFiles, progress_reporter, since};

/// Rows of values that few machines have; the rest is in the file.
const RARE_LIMIT: usize = 100;
/// Mode of the written files: digests of what is booted are not secret.
const MODE: u32 = 0o644;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: propose rules from two weeks of boots, then test them\n  attest-audit policy propose worker --days 14 --out proposed\n  attest-audit policy simulate worker proposed/pool.toml --with proposed/*.json\n\nPrints the omitted rules with reasons, values that few machines have, and a diff of pool.toml and of a new file of reference values for\n`patch -p0`. Changes no file of the pool.\n\nUses trusted evidence, the last 16 pieces of each machine, also evidence that an observing pool would have refused."
)]
pub(crate) struct Arguments {
    /// Name of the pool.
    pool: String,
    /// Only evidence of the last N days.
    #[arg(long, value_name = "N")]
    days: Option<u64>,
    /// Omit values that fewer than N machines share: the rules would refuse these machines.
    #[arg(long, value_name = "N", default_value = "1")]
    least: NonZero<usize>,
    /// Omit a machine: its name, its identity or its instance.
    #[arg(long, value_name = "NODE")]
    without: Vec<String>,
    /// Add rules for whole PCRs even if a check covers all of their events.
    #[arg(long)]
    pcrs: bool,
    /// Also write the files into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = files.pool(&arguments.pool)?;
    let now = Clock::System.now();
    let by = attest_command_line::reference_set_file::who();
    let asked = ProposalRequest {
        pool: &arguments.pool,
        folder: &folder,
        since: since(arguments.days, now),
        without: &arguments.without,
        wanted: RuleRequest {
            least: arguments.least.get(),
            pcrs: arguments.pcrs,
        },
        now,
        by: &by,
    };
    let log = recorded::files(&files.attestation_log()?)?;
    let blobs = Blobs::at(&files.evidence(&[])?).remembering();
    let proposal = propose(&log, &blobs, &asked, progress_reporter("attestations"))?;
    if let Some(out) = &arguments.out {
        write(out, &proposal)?;
    }
    output::print(describe(&proposal))?;
    Ok(ExitCode::SUCCESS)
}

/// A folder that is not there yet, or has no such files.
fn write(out: &Path, proposal: &Proposal) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let set = proposal.set.as_ref().and_then(|(path, text)| Some((path.file_name()?, text)));
    let all = [("pool.toml".as_ref(), &proposal.after)].into_iter().chain(set);
    for (name, text) in all {
        let path = out.join(name);
        if path.exists() {
            bail!("{} exists already", path.display());
        }
        files::replace(&path, MODE, text)?;
    }
    Ok(())
}

fn describe(proposal: &Proposal) -> String {
    let Proposal { path, before, after, .. } = proposal;
    let mut text = format!("From the boots of {} machines.\n", proposal.machines);
    if proposal.older > 0 {
        text.push_str(&format!("Ignored: {} older attestations of these machines.\n", proposal.older));
    }
    if proposal.policy.observes() {
        text.push_str("The file still observes: it refuses nothing until observe = true is removed.\n");
    }
    let rows: Vec<[String; 4]> = proposal
        .not_generalised
        .iter()
        .map(|row| [row.rule.clone(), row.machines.to_string(), row.why.clone(), row.named.clone()])
        .collect();
    if !rows.is_empty() {
        let head = ["NOT GENERALISED", "MACHINES", "WHY", "AMONG THEM"];
        text.push_str(&format!("\n{}", table(head, &rows)));
    }
    let mut rare: Vec<_> = proposal.rare.iter().collect();
    rare.sort_by_key(|rare| rare.machines);
    let more = rare.len().saturating_sub(RARE_LIMIT);
    let rows: Vec<[String; 4]> = rare
        .into_iter()
        .take(RARE_LIMIT)
        .map(|rare| {
            let machines = format!("{} of {}", rare.machines, rare.of);
            [rare.rule.clone(), machines, rare.value.clone(), rare.named.clone()]
        })
        .collect();
    if !rows.is_empty() {
        let head = ["ACCEPTED, BUT RARE", "MACHINES", "VALUE", "AMONG THEM"];
        text.push_str(&format!("\n{}", table(head, &rows)));
    }
    if more > 0 {
        text.push_str(&format!("and {more} more values\n"));
    }
    text.push('\n');
    let name = path.display().to_string();
    let diff = unified([&name, &name], before, after);
    if diff.is_empty() {
        text.push_str("No rule of pool.toml would change.\n");
    }
    text.push_str(&diff);
    if let Some((path, set)) = &proposal.set {
        text.push_str(&unified(["/dev/null", &path.display().to_string()], "", set));
    }
    text
}
