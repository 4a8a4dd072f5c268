//! The command `attest-audit log audit`.

mod bounded;
mod logs;
mod review;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_command_line::options::OutputOption;
use attest_command_line::records::{RecordSelector, record};
use attest_command_line::{NEWER_FORMAT, in_full, objects, output, table, visible};
use attest_log::reading::LogFile;
use attest_log::{
    Abandoned, Blobs, ChainReport, CheckpointLine, LastCheckpoint, LineHash, LogKey, LogPublicKey, LogVerifier, Point, VerificationContext,
    VerificationReport, is_replica_name, required_checkpoints,
};
use attest_system::clock::rfc3339;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use bounded::{Bounded, NOTES_LIMIT, ROWS_LIMIT};
use logs::Ordered;
use review::{Elsewhere, Review, ReviewStatus, Reviewer};
use serde_json::{Value, json};

use super::GatewayFiles;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: on the gateway's host; export the checkpoints first, because the gateway continues to sign\n  attest-gateway log list-checkpoints > signed.jsonl\n  attest-audit log audit --checkpoints signed.jsonl\n\nVerifies the log's chains and checkpoints: no line is missing, altered, inserted or out of order up to the last signed checkpoint, and the\nlog contains every line that --checkpoints covers.\n\nThen verifies and appraises each recorded evidence again, with the recorded endorsements, reference values, keys and time; and each client\ncertificate of a kubelet with the recorded CAs, names and time. Compares the result with the record, and each use of a ticket with the\nattestation that earned it. Merges the logs of several gateways by time.\n\nExit code 1 if a log is damaged, a result differs from its record, or a line cannot be read; also without signed checkpoints and their key.\nExit code 2 if a newer release wrote some lines, and no chain is damaged."
)]
pub(crate) struct Arguments {
    /// Only decisions whose id begins with these 8 or more digits.
    #[arg(long, value_name = "ID", value_parser = decision_id)]
    decision: Option<String>,
    /// File of an attestation log, also a rotated one (.gz), or a folder with such files; repeatable, for several gateways, in any order
    /// [default: the gateway's own log, with its rotated files].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    /// The beginning of the log is not available: tickets used at its beginning may have been earned earlier.
    #[arg(long)]
    continued: bool,
    /// Accept lines without a chain, from an older release [default: only before the beginning of a gateway's first chain].
    #[arg(long)]
    unchained: bool,
    /// Trusted public keys for checkpoints, PEM, from `attest-gateway log show-key` [default: those of log.key]. With a gateway's name, only
    /// for that gateway.
    #[arg(long, value_name = "[NAME=]FILE", num_args = 1..)]
    log_key: Vec<String>,
    /// Begin after this checkpoint (a file with this line of a log): earlier lines were verified before.
    #[arg(long, value_name = "CHECKPOINT")]
    from: Vec<PathBuf>,
    /// Checkpoint from another place (a file with this line of a log) that the log must contain.
    #[arg(long, value_name = "CHECKPOINT")]
    holds: Vec<PathBuf>,
    /// Checkpoints of all gateways, from `attest-gateway log list-checkpoints`. All their logs must be given, be complete up to these, and
    /// contain them.
    #[arg(long, value_name = "FILE", conflicts_with = "without_checkpoints")]
    checkpoints: Option<PathBuf>,
    /// Names of the gateways in --checkpoints whose logs are required; the others are optional.
    #[arg(long, value_name = "NAME")]
    replica: Vec<String>,
    /// Run without --checkpoints and --log: does not detect a log that was truncated, or restarted with another key.
    #[arg(long)]
    without_checkpoints: bool,
    #[command(flatten)]
    format: OutputOption,
}

/// Most bytes of a file of checkpoints: a store keeps some thousand.
const CHECKPOINTS_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// Numbers of lines, by their result.
#[derive(Default)]
struct Counts {
    same: usize,
    different: usize,
    by_digest: usize,
    unread: usize,
    late: usize,
    unreadable: usize,
    /// Lines that there are, and those that were asked for.
    lines: usize,
    wanted: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            same,
            different,
            by_digest,
            unread,
            late,
            unreadable,
            lines: _,
            wanted: _,
        } = self;
        write!(
            f,
            "{same} as recorded, {different} different; {by_digest} recorded by digest, {unread} unread, {unreadable} unreadable lines"
        )?;
        match late {
            0 => Ok(()),
            late => write!(f, "; {late} recorded late, without evidence"),
        }
    }
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut notes = Vec::new();
    let CheckpointKeys { believed, names } = keys(files, &arguments.log_key, &mut notes)?;
    let believes = !believed.is_empty();
    let mut trust = VerificationContext {
        keys: believed,
        names,
        continued: arguments.continued,
        unchained: arguments.unchained,
        ..VerificationContext::default()
    };
    for file in &arguments.holds {
        trust.required.push(checkpoint(file, &trust.keys)?);
    }
    for file in &arguments.from {
        let point = checkpoint(file, &trust.keys)?;
        trust.from.insert(point.chain.clone(), point);
    }
    let paths = match arguments.log.as_slice() {
        [] => vec![own_folder(files)?],
        paths => paths.to_vec(),
    };
    // What was signed is read before the logs are.
    let (mut asked, mut known) = (true, None);
    if let Some(file) = &arguments.checkpoints {
        known = Some(read_checkpoints(file, &arguments.replica, &mut trust, &mut notes)?);
    } else if arguments.without_checkpoints {
        notes.push("no signed checkpoints were given".to_owned());
    } else if arguments.log.is_empty() {
        asked = false;
        notes.push(
            "without signed checkpoints, completeness cannot be verified: pass --checkpoints FILE, as `attest-gateway log list-checkpoints` prints it at \
             the gateway, or --without-checkpoints"
                .to_owned(),
        );
    }
    let evidence = files.evidence(&arguments.log)?;
    let continued = arguments.continued || !trust.from.is_empty();
    let (report, newer, reviewed) = logs::settled(&paths, |listed| {
        let (report, newer) = logs::verify(listed, &paths, LogVerifier::new(trust.clone()))?;
        // What was earned in lines that were removed is used in those that are there.
        let elsewhere = Elsewhere {
            continued: continued || report.is_shorter(),
            several: false,
            has_other_logs: known
                .as_deref()
                .map_or(!arguments.replica.is_empty(), |known| has_other_checkpoints(known, &report)),
            // What was abandoned may be what a decision of a late line was recorded in.
            lost: known
                .as_deref()
                .is_none_or(|known| known.iter().any(|kept| kept.abandoned.is_some())),
        };
        let reviewed = review_all(&evidence, &listed.files, &report, arguments.decision.as_deref(), elsewhere)?;
        Ok((report, newer, reviewed))
    })?;
    // A line may also say so because it was altered: the lines are verified all the same.
    notes.extend(newer.iter().map(ToString::to_string));
    // A log without checkpoints is not said to be signed by anybody.
    if !believes && report.chains.iter().any(|chain| chain.signed.is_some()) {
        asked = false;
    }
    for chain in known.iter().flat_map(|known| not_among(known, &report)) {
        asked = false;
        notes.push(format!(
            "--checkpoints has no checkpoint of gateway {}: cannot determine whether chain {} was truncated",
            chain.replica.as_deref().unwrap_or_default(),
            chain.chain
        ));
    }
    let counts = &reviewed.counts;
    let is_empty = counts.lines == 0 && !continued;
    let sound = asked
        && !is_empty
        && (arguments.decision.is_none() || counts.wanted > 0)
        && counts.different == 0
        && counts.unreadable == 0
        && report.findings.is_empty();
    let code = match newer {
        _ if sound => ExitCode::SUCCESS,
        Some(_) if report.findings.is_empty() => ExitCode::from(NEWER_FORMAT),
        _ => ExitCode::FAILURE,
    };
    if arguments.format.is_json() {
        output::json(&json(&reviewed, &report, &notes, asked, sound))?;
        return Ok(code);
    }
    reviewed.show()?;
    show(&report, &notes, asked)?;
    output::line(counts)?;
    if is_empty {
        output::line("the log has no record, but a gateway's log is never empty")?;
    }
    if let Some(decision) = arguments.decision.as_ref().filter(|_| counts.wanted == 0) {
        print_line(format_args!("decision {decision} is not in the log"))?;
    }
    Ok(code)
}

const DECISION_COLUMNS: [&str; 6] = ["TIME", "DECISION", "IDENTITY", "RECORDED", "AGAIN", "RESULT"];
const ACT_COLUMNS: [&str; 3] = ["TIME", "DONE", "BY AND SUBJECT"];
const CHAIN_COLUMNS: [&str; 7] = ["CHAIN", "GATEWAY", "LINES", "FROM", "TO", "SIGNED UP TO", "STATE"];

/// Returns the whole report for programs.
fn json(reviewed: &Reviewed, report: &VerificationReport, notes: &[String], asked: bool, sound: bool) -> Value {
    let Reviewed {
        rows,
        acts,
        notes: lines,
        counts,
    } = reviewed;
    let chains: Vec<_> = report.chains.iter().map(|chain| row(chain, asked)).collect();
    let lines: Vec<&String> = lines.rows().iter().map(|[line]| line).collect();
    let notes: Vec<String> = notes.iter().cloned().chain(report.notes.iter().map(ToString::to_string)).collect();
    json!({
        "sound": sound,
        "decisions": objects(DECISION_COLUMNS, rows.rows()),
        "acts": objects(["TIME", "DONE", "TEXT"], acts.rows()),
        "chains": objects(CHAIN_COLUMNS, &chains),
        "lines": lines,
        "notes": notes,
        "findings": report.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "counts": {
            "same": counts.same,
            "different": counts.different,
            "by_digest": counts.by_digest,
            "unread": counts.unread,
            "late": counts.late,
            "unreadable": counts.unreadable,
            "not_shown": rows.more() + acts.more(),
        },
    })
}

fn decision_id(text: &str) -> Result<String, String> {
    match record(text)? {
        RecordSelector::Id(id) => Ok(id),
        RecordSelector::Number(_) => Err("expected a decision's id, 8 hexadecimal digits or more".to_owned()),
    }
}

/// Returns the folder with the gateway's own log and its rotated files.
fn own_folder(files: &GatewayFiles) -> anyhow::Result<PathBuf> {
    let log = files.attestation_log()?;
    Ok(log.parent().map_or_else(|| log.clone(), Path::to_owned))
}

/// Trusted keys of checkpoints, and the gateways to which they are attributed.
#[derive(Default)]
struct CheckpointKeys {
    believed: BTreeSet<LogPublicKey>,
    names: BTreeMap<LogPublicKey, BTreeSet<String>>,
}

fn keys(files: &GatewayFiles, given: &[String], notes: &mut Vec<String>) -> anyhow::Result<CheckpointKeys> {
    let mut keys = CheckpointKeys::default();
    if given.is_empty() {
        match files.log_key().and_then(|file| Ok(LogKey::read(&file)?)) {
            Ok(key) => drop(keys.believed.insert(key.public())),
            Err(error) => notes.push(format!(
                "the signer of these checkpoints is unknown, so completeness cannot be verified: pass --log-key FILE with the output of `attest-gateway log show-key` ({})",
                in_full(&error)
            )),
        }
    }
    let mut of_all = BTreeSet::new();
    for given in given {
        let (name, file) = match given.split_once('=') {
            Some((name, file)) if is_replica_name(name) => (Some(name), file),
            _ => (None, given.as_str()),
        };
        let pem = files::read(Path::new(file), SMALL_FILE_LIMIT_BYTES).with_context(|| file.to_owned())?;
        let Some(found) = LogPublicKey::all_of_pem(&pem) else {
            bail!("{file}: no public keys in the form of `attest-gateway log show-key`");
        };
        for key in found {
            keys.believed.insert(key);
            match name {
                Some(name) => drop(keys.names.entry(key).or_default().insert(name.to_owned())),
                None => drop(of_all.insert(key)),
            }
        }
    }
    // Given without a name, too, it is anybody's.
    keys.names.retain(|key, _| !of_all.contains(key));
    Ok(keys)
}

/// A checkpoint in a file of its own, by a key that is believed.
fn checkpoint(file: &Path, keys: &BTreeSet<LogPublicKey>) -> anyhow::Result<Point> {
    let text = files::read_text(file, SMALL_FILE_LIMIT_BYTES).with_context(|| file.display().to_string())?;
    let text = text.trim_end_matches('\n');
    let Ok(line) = serde_json::from_str::<CheckpointLine>(text) else {
        bail!(
            "{}: not a checkpoint, which is one line of a log; pass the output of `attest-gateway log list-checkpoints` with --checkpoints",
            file.display()
        );
    };
    if !line.checkpoint.is_signed(&line.chain.id, line.at) {
        bail!(
            "{}: invalid checkpoint: its signature does not verify under its key",
            file.display()
        );
    }
    if !keys.contains(&line.checkpoint.key) {
        bail!(
            "{}: a checkpoint by an unknown key, {}: pass the key with --log-key",
            file.display(),
            line.checkpoint.key
        );
    }
    Ok(Point {
        chain: line.chain.id,
        number: line.chain.number,
        sha256: LineHash::of(text.as_bytes()),
    })
}

/// Reads the checkpoints, and requires the lines that they sign, by whichever key: a gateway whose key was replaced with its log is another
/// one. Returns all checkpoints.
fn read_checkpoints(
    file: &Path,
    replicas: &[String],
    trust: &mut VerificationContext,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<LastCheckpoint>> {
    let named = || file.display().to_string();
    let text = files::read_text(file, CHECKPOINTS_LIMIT_BYTES).with_context(named)?;
    let read = |(number, line): (usize, &str)| {
        let line = LastCheckpoint::read(line);
        line.with_context(|| {
            format!(
                "{}, line {}: not a checkpoint in the form of `attest-gateway log list-checkpoints`",
                file.display(),
                number + 1
            )
        })
    };
    let all = text.lines().enumerate().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    if all.is_empty() {
        bail!(
            "{}: no checkpoints found: export them again on the gateway with `attest-gateway log list-checkpoints`",
            file.display()
        );
    }
    let known: BTreeSet<&str> = all.iter().map(|kept| kept.line.checkpoint.replica.as_str()).collect();
    if let Some(unknown) = replicas.iter().find(|name| !known.contains(name.as_str())) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "{}: no checkpoint of gateway {unknown}; the file has checkpoints of: {known}",
            file.display()
        );
    }
    notes.extend(notes_of(&all));
    let named = |kept: &&LastCheckpoint| replicas.is_empty() || replicas.contains(&kept.line.checkpoint.replica);
    let required: Vec<Point> = required_checkpoints(&all).filter(named).map(LastCheckpoint::point).collect();
    let name = |kept: &LastCheckpoint| (kept.line.chain.id.clone(), kept.line.checkpoint.replica.clone());
    trust.chain_owners.extend(all.iter().map(name));
    trust
        .known_points
        .extend(all.iter().map(LastCheckpoint::point).filter(|point| !required.contains(point)));
    trust.required.extend(required);
    Ok(all)
}

/// Reports checkpoints that no log has to hold because a command has given them up, and chains that a second key has signed. The report is
/// the same for any choice of logs: nothing else shows a log that is gone.
fn notes_of(all: &[LastCheckpoint]) -> Vec<String> {
    let mut said = Vec::new();
    for kept in all {
        let (chain, at) = (&kept.line.chain, rfc3339(kept.line.at));
        let (id, replica) = (&chain.id, &kept.line.checkpoint.replica);
        if let Some(Abandoned { at: when, by }) = &kept.abandoned {
            let number = chain.number;
            said.push(format!(
                "chain {id} of gateway {replica}, signed up to line {number} ({at}), was abandoned on {} by {by}: no log is required to contain it",
                rfc3339(*when)
            ));
        }
    }
    for kept in required_checkpoints(all) {
        let id = &kept.line.chain.id;
        let newer =
            required_checkpoints(all).find(|other| other.line.chain.id == *id && other.is_later_than(kept) && other.key() != kept.key());
        if let Some(newer) = newer {
            said.push(format!(
                "chain {id} of gateway {}: log.key was replaced: signed up to line {} by {}, and up to line {} by {}; to accept that, run `attest-gateway log abandon {id}` on its host",
                newer.line.checkpoint.replica,
                kept.line.chain.number,
                kept.key(),
                newer.line.chain.number,
                newer.key()
            ));
        }
    }
    said
}

/// Returns whether there are checkpoints of gateways other than those whose logs were read.
fn has_other_checkpoints(known: &[LastCheckpoint], report: &VerificationReport) -> bool {
    let read: BTreeSet<&str> = report.chains.iter().map(|chain| chain.chain.as_str()).collect();
    let is_read = |kept: &&LastCheckpoint| read.contains(kept.line.chain.id.as_str());
    let keys: BTreeSet<LogPublicKey> = known.iter().filter(is_read).map(|kept| kept.line.checkpoint.key).collect();
    // Of lines of no chain nobody knows whose they are.
    !keys.is_empty() && required_checkpoints(known).any(|kept| !keys.contains(&kept.line.checkpoint.key))
}

/// Returns the chains of gateways without a checkpoint.
fn not_among<'r>(known: &[LastCheckpoint], report: &'r VerificationReport) -> Vec<&'r ChainReport> {
    let is_known = |name: &String| known.iter().any(|kept| kept.line.checkpoint.replica == *name);
    let mut chains: Vec<&ChainReport> = report.chains.iter().collect();
    chains.retain(|chain| chain.replica.as_ref().is_some_and(|name| !is_known(name)));
    chains
}

/// Results for all decisions, as they are shown.
struct Reviewed {
    rows: Bounded<6>,
    acts: Bounded<3>,
    notes: Bounded<1>,
    counts: Counts,
}

impl Reviewed {
    fn show(&self) -> anyhow::Result<()> {
        let Self {
            rows,
            acts,
            notes,
            counts: _,
        } = self;
        output::print(table(DECISION_COLUMNS, rows.rows()))?;
        print_more(rows.more(), "decisions")?;
        if !acts.rows().is_empty() {
            output::print(format_args!("\n{}\n", table(ACT_COLUMNS, acts.rows())))?;
            print_more(acts.more(), "acts")?;
        }
        for [note] in notes.rows() {
            print_line(note)?;
        }
        print_more(notes.more(), "such lines")
    }
}

/// Says how many there were that are not shown.
fn print_more(more: u64, what: &str) -> anyhow::Result<()> {
    match more {
        0 => Ok(()),
        more => output::line(format_args!("and {more} more {what} (not shown)")),
    }
}

/// Repeats and reviews all decisions.
fn review_all(
    evidence: &Path,
    files: &[LogFile],
    report: &VerificationReport,
    decision: Option<&str>,
    elsewhere: Elsewhere,
) -> anyhow::Result<Reviewed> {
    let blobs = Blobs::at(evidence);
    let mut lines = Ordered::new(files, report);
    let several = lines.are_several();
    let elsewhere = Elsewhere { several, ..elsewhere };
    let mut reviewer = Reviewer::new(&blobs, elsewhere);
    if several {
        // Of a ticket that was used elsewhere in the second in which it was earned, or where a clock is behind, the use may be read first.
        while let Some(line) = lines.next() {
            reviewer.foresee(&String::from_utf8_lossy(&line.text));
        }
        lines = Ordered::new(files, report);
    }
    let mut reviewed = Reviewed {
        rows: Bounded::new(ROWS_LIMIT),
        acts: Bounded::new(ROWS_LIMIT),
        notes: Bounded::new(NOTES_LIMIT),
        counts: Counts::default(),
    };
    let Reviewed { rows, acts, notes, counts } = &mut reviewed;
    while let Some(line) = lines.next() {
        let at = line.at;
        counts.lines += 1;
        match reviewer.review(&String::from_utf8_lossy(&line.text)) {
            Ok(review) if decision.is_some_and(|wanted| !review.id.starts_with(wanted)) => {}
            Ok(mut review) => {
                counts.wanted += 1;
                if let Some(act) = review.act.take() {
                    acts.push([rfc3339(act.at), act.verb.to_string(), act.to_string()]);
                }
                note(review, &at, rows, notes, counts);
            }
            Err(error) => {
                counts.unreadable += 1;
                notes.push([format!("{at}: cannot be read: {error}")]);
            }
        }
    }
    Ok(reviewed)
}

/// Prints a row for each chain, and the notes. No chain is called complete while it is unknown what was signed, and by which gateway.
fn show(report: &VerificationReport, notes: &[String], asked: bool) -> anyhow::Result<()> {
    if !report.chains.is_empty() {
        let rows: Vec<_> = report.chains.iter().map(|chain| row(chain, asked)).collect();
        output::print(table(CHAIN_COLUMNS, &rows))?;
    }
    for note in notes {
        print_line(note)?;
    }
    for note in &report.notes {
        print_line(note)?;
    }
    for finding in &report.findings {
        print_line(finding)?;
    }
    Ok(())
}

/// Prints a line of which parts may be foreign: of a log, or of names of files.
fn print_line(line: impl ToString) -> anyhow::Result<()> {
    output::line(visible(&line.to_string()))
}

fn row(report: &ChainReport, asked: bool) -> [String; 7] {
    [
        report.chain.clone(),
        report.replica.clone().unwrap_or_default(),
        format!("{} to {}", report.first, report.last),
        rfc3339(report.first_at),
        rfc3339(report.last_at),
        report.signed.map(|number| number.to_string()).unwrap_or_default(),
        match (report.whole, asked) {
            (true, true) => "whole",
            (true, false) => "NOT KNOWN",
            (false, _) => "NOT WHOLE",
        }
        .to_owned(),
    ]
}

fn note(review: Review, at: &str, rows: &mut Bounded<6>, notes: &mut Bounded<1>, counts: &mut Counts) {
    let (count, said) = match (review.differences.is_empty(), review.judged) {
        (false, _) => (&mut counts.different, "DIFFERENT"),
        (true, ReviewStatus::Whole) => (&mut counts.same, "same"),
        (true, ReviewStatus::ByDigest) => (&mut counts.by_digest, "recorded by digest"),
        (true, ReviewStatus::Unread) => (&mut counts.unread, "unread"),
        (true, ReviewStatus::Late) => (&mut counts.late, "recorded late"),
        (true, ReviewStatus::OfLog | ReviewStatus::Admin) => return,
    };
    *count += 1;
    for what in &review.differences {
        notes.push([format!("{at}: {what}")]);
    }
    for what in &review.warnings {
        notes.push([format!("{at}: warning: {what}")]);
    }
    if review.of_proof || !review.differences.is_empty() {
        rows.push([
            review.time,
            review.id,
            shortened(&review.identity),
            review.recorded,
            review.again,
            said.to_owned(),
        ]);
    }
}

/// Characters of an identity in the table: of a TPM's digest, the beginning says enough; an instance's identity is whole.
const TPM_LIMIT_CHARACTERS: usize = 20;
const INSTANCE_LIMIT_CHARACTERS: usize = 96;

fn shortened(identity: &str) -> String {
    let limit = if identity.starts_with("tpm:") {
        TPM_LIMIT_CHARACTERS
    } else {
        INSTANCE_LIMIT_CHARACTERS
    };
    shortened_to(identity, limit)
}

fn shortened_to(text: &str, limit: usize) -> String {
    text.chars().take(limit).collect()
}
