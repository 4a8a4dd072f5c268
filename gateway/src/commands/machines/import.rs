use std::fmt::Write as _;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, ValueChange, Verb};
use attest_machines::enrolment::EkRecord;
use attest_machines::import::{self as imported, ImportPlan, RowChange};
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde::Serialize;
use serde_json::json;

use super::super::EVERY_POOL;
use super::super::acting::change_store_by;
use super::super::{OutputOption, now, output, visible, with_store};
use super::rows::{self, BadRow};

/// Longest file, in bytes: as many rows as are read, each with a certificate.
const FILE_LIMIT_BYTES: u64 = 256 * 1024 * 1024;
/// Maximum number of problems that are printed; more are counted.
const PROBLEMS_LIMIT: usize = 100;
/// The name of standard input.
const STDIN: &str = "-";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: show what an import would change, then import\n  attest-gateway machines import machines.csv --dry-run\n  attest-gateway machines import machines.csv\n\nExample: the EK certificates in a folder, which the TPMs do not carry themselves\n  (cd certificates && echo certificate && ls *.crt) > certificates/machines.csv\n  attest-gateway machines import certificates/machines.csv\n\nA CSV file (UTF-8, a header, one row a line) has some of these columns, in any order:\n  ek           digest of the EK (64 hexadecimal digits), or its public key: DER, TPM2B_PUBLIC or TPMT_PUBLIC in base64\n  certificate  EK certificate: DER in base64, or a PEM or DER file in the folder of this file or below\n  instance     instance of a cloud, as the log and `machines list` print it\n  name         name of the node; no other machine can use it then\n  pools        pools that the machine may join, with spaces between them; * for every pool\n  note         text for people\nA row names its machine by ek, certificate or instance. An empty cell leaves what is there; a new machine may then join every pool.\nOf JSON lines, each is an object with these members. The lists that `attest-node ek list --output json` prints are read, too.\n\nAn entry endorses an EK. An instance is accepted by the rules of its pool; its entry gives it the name, and restricts its pools. A machine\nthat attests by a TPM and a cloud together is named by its EK.\n\nExample: keys as clouds print them, one a line\n  aws ec2 get-instance-tpm-ek-pub --instance-id i-0123456789abcdef0 --key-type rsa-2048 --key-format der | jq -c '{ek: .KeyValue}'\n  gcloud compute instances get-shielded-identity worker-7 --format json | jq -c '{ek: .encryptionKey.ekPub}'\n\nNothing is changed if one row is bad, belongs to a removed machine, or has a name of another machine. At most 20,000 rows are read. The\nattestation log has one line with the file's SHA-256 and the number of changes.\n\nThe embedded store takes the whole import in one transaction. Other stores take some rows at a time, in their order: a command that is\nkilled leaves the first rows. Repeat it, and it imports the others."
)]
pub(crate) struct Arguments {
    /// File with the machines, or - for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the difference, and change nothing. Exit code 1 if the import would be refused.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: OutputOption,
}

/// Result of an import, for programs.
#[derive(Debug, Serialize)]
struct Report<'p> {
    file: String,
    sha256: &'p str,
    /// Set if nothing was changed.
    dry_run: bool,
    new: Vec<ImportChange<'p>>,
    changed: Vec<ImportChange<'p>>,
    unchanged: usize,
    /// Rows of revoked machines. They stay revoked.
    revoked: usize,
    problems: Vec<RowProblem>,
}

#[derive(Debug, Serialize)]
struct ImportChange<'p> {
    line: u64,
    identity: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<ListedEntry<'p>>,
    after: ListedEntry<'p>,
}

#[derive(Debug, Serialize)]
struct ListedEntry<'p> {
    name: Option<&'p str>,
    /// Empty for every pool.
    pools: &'p [String],
    note: Option<&'p str>,
}

#[derive(Debug, Clone, Serialize)]
struct RowProblem {
    line: u64,
    reason: String,
}

impl<'p> From<&'p EkRecord> for ListedEntry<'p> {
    fn from(record: &'p EkRecord) -> Self {
        Self {
            name: record.name.as_deref(),
            pools: &record.pools,
            note: record.note.as_deref(),
        }
    }
}

/// A file that was read, with its rows.
struct ReadFile {
    named: String,
    sha256: String,
    rows: rows::FileRows,
}

pub(super) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let mut file = read(&arguments.file)?;
    let problems = problems_of_rows(&settings, &mut file.rows)?;
    if arguments.dry_run {
        return dry_run(config, arguments, file, problems);
    }
    // Before this becomes the state's owner.
    let by = By::this_process();
    let (plan, named, sha256) = change_store_by(by, config, Verb::MachinesImport, |store, acting| async move {
        let ReadFile { named, sha256, rows } = file;
        let count = rows.rows.len();
        let plan = imported::plan(&store, rows.rows, now()).await?;
        let problems = all_problems(problems, &plan);
        if !problems.is_empty() {
            bail!("{named}: nothing was imported: {}", text_of(&problems));
        }
        let import = ValueChange {
            kind: "file".to_owned(),
            id: named.clone(),
            before: None,
            after: Some(json!({
                "sha256": sha256,
                "rows": count,
                "new": plan.new_count(),
                "changed": plan.changes.len() - plan.new_count(),
                "unchanged": plan.unchanged,
                "transactions": imported::transaction_count(&store, plan.changes.len()),
            })),
        };
        let recorded = acting.summarized(Arc::new(store.clone()), vec![import]);
        imported::apply(&store, &*recorded, &plan.changes).await?;
        Ok((plan, named, sha256))
    })?;
    if arguments.format.is_json() {
        output::json(&report(&named, &sha256, false, &plan, Vec::new()))?;
    } else {
        output::done(format_args!(
            "imported: {}; sha-256 of {}: {sha256}",
            summary(&plan),
            visible(&named)
        ))?;
    }
    note_revoked(&plan);
    Ok(ExitCode::SUCCESS)
}

fn dry_run(config: &Path, arguments: &Arguments, file: ReadFile, problems: Vec<RowProblem>) -> anyhow::Result<ExitCode> {
    let ReadFile { named, sha256, rows } = file;
    let plan = with_store(config, |store| async move { Ok(imported::plan(&store, rows.rows, now()).await?) })?;
    let problems = all_problems(problems, &plan);
    let failed = !problems.is_empty();
    if arguments.format.is_json() {
        output::json(&report(&named, &sha256, true, &plan, problems))?;
    } else {
        let mut text = String::new();
        for change in &plan.changes {
            text.push_str(&visible(&difference(change)));
            text.push('\n');
        }
        for RowProblem { line, reason } in &problems {
            let reason = visible(reason);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "! line {line}: {reason}");
        }
        let conflicts = format!("{} rows cannot be imported", problems.len());
        let end = if failed {
            format!(", {conflicts}: nothing would be changed")
        } else {
            String::new()
        };
        let _ = writeln!(text, "{}{end}", summary(&plan));
        output::print(attest_system::advised_commands::runnable(&text))?;
    }
    note_revoked(&plan);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn summary(plan: &ImportPlan) -> String {
    let new = plan.new_count();
    format!("{new} new, {} changed, {} unchanged", plan.changes.len() - new, plan.unchanged)
}

fn note_revoked(plan: &ImportPlan) {
    if plan.revoked > 0 {
        output::print_note(format_args!(
            "{} of the machines are revoked, and get no config; to list them: `attest-gateway machines list --state banned`",
            plan.revoked
        ));
    }
}

fn report<'p>(named: &str, sha256: &'p str, dry_run: bool, plan: &'p ImportPlan, problems: Vec<RowProblem>) -> Report<'p> {
    let (new, changed): (Vec<&RowChange>, Vec<&RowChange>) = plan.changes.iter().partition(|change| change.before.is_none());
    let list = |changes: Vec<&'p RowChange>| {
        let each = changes.into_iter().map(|change| ImportChange {
            line: change.line,
            identity: &change.identity,
            before: change.before.as_ref().map(ListedEntry::from),
            after: ListedEntry::from(&change.after),
        });
        each.collect()
    };
    Report {
        file: named.to_owned(),
        sha256,
        dry_run,
        new: list(new),
        changed: list(changed),
        unchanged: plan.unchanged,
        revoked: plan.revoked,
        problems,
    }
}

/// Describes a change in one line.
fn difference(change: &RowChange) -> String {
    let RowChange {
        line,
        identity,
        before,
        after,
    } = change;
    let Some(before) = before else {
        let name = after.name.as_deref().unwrap_or("-");
        let note = after.note.as_ref().map(|note| format!("  {note}")).unwrap_or_default();
        return format!("+ line {line}: {identity}  {name}  {}{note}", pools(&after.pools));
    };
    let cell = |cell: &Option<String>| cell.as_deref().unwrap_or("-").to_owned();
    let cells = [
        ("name", cell(&before.name), cell(&after.name)),
        ("pools", pools(&before.pools), pools(&after.pools)),
        ("note", cell(&before.note), cell(&after.note)),
    ];
    let changes: Vec<String> = cells
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(column, before, after)| format!("{column} {before} -> {after}"))
        .collect();
    let changes = match changes.is_empty() {
        // The entry had it, and the machine did not.
        true => format!("name {}", cell(&after.name)),
        false => changes.join(", "),
    };
    format!("~ line {line}: {identity}  {changes}")
}

fn pools(pools: &[String]) -> String {
    match pools {
        [] => EVERY_POOL.to_owned(),
        pools => pools.join(" "),
    }
}

/// Returns the problems of rows that cannot be read, or name pools that do not exist. Removes those rows.
fn problems_of_rows(settings: &Settings, file: &mut rows::FileRows) -> anyhow::Result<Vec<RowProblem>> {
    let known = attest_pool::folders(&settings.pools)?.pools;
    let bad = std::mem::take(&mut file.bad).into_iter();
    let mut problems: Vec<RowProblem> = bad.map(|BadRow { line, reason }| RowProblem { line, reason }).collect();
    file.rows.retain(|row| {
        let strange = row.pools.iter().flatten().find(|pool| !known.contains_key(*pool));
        problems.extend(strange.map(|pool| RowProblem {
            line: row.line,
            reason: format!("there is no pool {pool:?} in {}", settings.pools.display()),
        }));
        strange.is_none()
    });
    Ok(problems)
}

fn all_problems(mut problems: Vec<RowProblem>, plan: &ImportPlan) -> Vec<RowProblem> {
    problems.extend(plan.conflicts.iter().map(|conflict| RowProblem {
        line: conflict.line,
        reason: conflict.reason.clone(),
    }));
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Returns the first problems as lines of an error.
fn text_of(problems: &[RowProblem]) -> String {
    let mut text = format!("{} rows cannot be imported", problems.len());
    for RowProblem { line, reason } in problems.iter().take(PROBLEMS_LIMIT) {
        let reason = visible(reason);
        let _ = write!(text, "\n  line {line}: {reason}");
    }
    if let Some(more @ 1..) = problems.len().checked_sub(PROBLEMS_LIMIT) {
        let _ = write!(text, "\n  and {more} more");
    }
    text
}

fn read(path: &Path) -> anyhow::Result<ReadFile> {
    let is_stdin = path == Path::new(STDIN);
    let named = path.display().to_string();
    let bytes = if is_stdin {
        let mut bytes = Vec::new();
        std::io::stdin()
            .take(FILE_LIMIT_BYTES + 1)
            .read_to_end(&mut bytes)
            .context("standard input")?;
        ensure!(
            u64::try_from(bytes.len()).is_ok_and(|length| length <= FILE_LIMIT_BYTES),
            "standard input has more than {FILE_LIMIT_BYTES} bytes"
        );
        bytes
    } else {
        files::read(path, FILE_LIMIT_BYTES).with_context(|| named.clone())?
    };
    ensure!(!bytes.trim_ascii().is_empty(), "{named}: it is empty");
    let folder = if is_stdin { Path::new(".") } else { files::folder(path) };
    let certificate = |file: &str| {
        let file = Path::new(file);
        // A vendor's file names no other files of this machine.
        let is_below = file
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        ensure!(is_below, "the path leads out of the folder of {named}");
        Ok(files::read(&folder.join(file), SMALL_FILE_LIMIT_BYTES)?)
    };
    let rows = rows::read(&bytes, &certificate).map_err(|reason| anyhow::anyhow!("{named}: {}", visible(&reason)))?;
    let sha256 = HEXLOWER.encode(digest(&SHA256, &bytes).as_ref());
    Ok(ReadFile { named, sha256, rows })
}
