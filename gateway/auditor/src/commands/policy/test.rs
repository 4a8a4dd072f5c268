//! The command `attest-audit policy test`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use attest::tpm::requirements::QuotedPcrs;
use attest::{AppraisalPolicy, Claims, Kind, Reject, UnixTime, appraise};
use attest_audit::replay::verify;
use attest_command_line::options::OutputOption;
use attest_command_line::{list, output, recorded};
use attest_log::Blobs;

use super::GatewayFiles;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: test a machine that was accepted\n  attest-audit policy test worker --record 0123456789abcdef0123456789abcdef\n\nVerifies the evidence at the time of its record, and appraises it by the pool's current rules, with the reference values that are valid now,\nor with --then at the time of the record. Exit code 1 if a rule refuses."
)]
pub(crate) struct Arguments {
    /// The pool against whose rules it is tested.
    pool: String,
    /// Id of a decision in the gateway's log, or at least its first 8 digits.
    #[arg(long, value_name = "ID", required_unless_present = "evidence")]
    record: Option<String>,
    /// File with one record: a line from `attest-gateway log export`.
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    evidence: Option<PathBuf>,
    /// Folder of the record's blobs [default: the gateway's own, state/evidence].
    #[arg(long, value_name = "FOLDER")]
    blobs: Option<PathBuf>,
    /// Use the reference values that were valid at the time of the record.
    #[arg(long)]
    then: bool,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let pool = files.pool(&arguments.pool)?;
    let policy = attest_pool::policy(&pool, &pool.join("pool.toml"), &[])?;
    let line = match (&arguments.evidence, &arguments.record) {
        (Some(file), _) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
        (None, Some(id)) => recorded::by_id(&files.attestation_log()?, id)?,
        (None, None) => anyhow::bail!("pass --record ID or --evidence FILE"),
    };
    let folder = match &arguments.blobs {
        Some(folder) => folder.clone(),
        None => files.evidence(&[])?,
    };
    let again = verify(&line, &Blobs::at(&folder))?;
    let now = if arguments.then {
        again.now
    } else {
        attest_system::clock::Clock::System.now()
    };
    // What a pool that observes would refuse is what is asked for.
    // A node is asked for no more PCRs than its pool speaks of; it was asked by the rules of then.
    let claims = again.claims.clone().without_further_pcrs(&policy);
    let further = further_pcrs(&again.claims, &claims);
    if !further.is_empty() {
        output::print_note(format_args!(
            "ignoring quoted PCRs that pool {} does not ask for: {}",
            arguments.pool,
            further.join(", ")
        ));
    }
    let (rows, is_accepted) = judged(&claims, &policy.strict(), now);
    if policy.observes() {
        output::print_note(format_args!(
            "{}: this pool observes: it only records the refusals about the boot that are listed here",
            arguments.pool
        ));
    }
    list(arguments.format, ["RULE", "HOLDS", "WHY"], &rows)?;
    Ok(if is_accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The PCRs that were left out, by the kinds that have quoted them.
fn further_pcrs(all: &Claims, left: &Claims) -> Vec<String> {
    let left = left.quotes();
    let further = |(kind, quoted): (Kind, QuotedPcrs<'_>)| {
        let left = left.iter().find(|(other, _)| *other == kind).map(|(_, left)| left.pcrs);
        let is_left = move |index: &u8| left.is_some_and(|left| left.contains_key(index));
        let further = quoted.pcrs.keys().copied().filter(move |index| !is_left(index));
        further.map(move |index| format!("{} {index}", kind.section())).collect::<Vec<_>>()
    };
    all.quotes().into_iter().flat_map(further).collect()
}

/// Returns every rule, whether it holds, and the reason if not; and whether the evidence as a whole is accepted.
fn judged(claims: &Claims, policy: &AppraisalPolicy, now: UnixTime) -> (Vec<[String; 3]>, bool) {
    let mut rows = Vec::new();
    for judged in policy.judged(claims, now) {
        let (holds, why) = outcome(&judged.holds);
        let requirement = format!("{}: {}", judged.kind.section(), judged.requirement);
        rows.push([requirement, holds.to_owned(), why]);
    }
    if let Some(condition) = policy.condition() {
        let (holds, why) = match condition.holds_of(claims) {
            Ok(true) => ("yes", String::new()),
            Ok(false) => ("NO", "it is false".to_owned()),
            Err(problem) => ("NO", problem),
        };
        rows.push([format!("condition: {}", condition.source()), holds.to_owned(), why]);
    }
    // What the rules of clouds say, and all together.
    let all = appraise(claims.clone(), policy, now);
    let (holds, why) = outcome(&all);
    rows.push(["whole policy".to_owned(), holds.to_owned(), why]);
    (rows, all.is_ok())
}

/// Returns whether it holds, as a word, and the reason if not.
fn outcome<T>(holds: &Result<T, Reject>) -> (&'static str, String) {
    match holds {
        Ok(_) => ("yes", String::new()),
        Err(reject) => ("NO", format!("{}: {}", reject.code(), reject.detail())),
    }
}
