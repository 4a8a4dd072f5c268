//! `attest-gateway audit`.

mod review;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::audit::Blobs;
use attest_gateway::settings::Settings;
use review::{Judged, Review, Reviewer};

use super::table;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each recorded evidence is verified and appraised again with the recorded endorsements, reference values, keys and time, and each\nclient certificate of a kubelet with the recorded CAs, names and time. What the record says of it is compared with what comes out,\nand each use of a ticket with what earned it. Several logs are read as one, in the order given.\nExit code 1 if anything is otherwise than recorded, or a line cannot be read."
)]
pub struct Arguments {
    /// Only the decision with this id.
    #[arg(long, value_name = "ID")]
    decision: Option<String>,
    /// The attestation log; for one that was rotated, each of its files, the oldest first [default: the gateway's own].
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// The log continues one that is not at hand: what is used at its beginning may have been earned before it.
    #[arg(long)]
    continued: bool,
}

/// What came of all lines.
#[derive(Default)]
struct Counts {
    same: usize,
    different: usize,
    by_digest: usize,
    unread: usize,
    no_longer: usize,
    unreadable: usize,
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let logs = match arguments.log.as_slice() {
        [] => vec![settings.attestation_log()],
        logs => logs.to_vec(),
    };
    let blobs = Blobs::open(&settings.state.join("evidence"))?;
    let mut reviewer = Reviewer::new(&blobs, arguments.continued);
    let (mut rows, mut notes, mut counts) = (Vec::new(), Vec::new(), Counts::default());
    for log in &logs {
        let file = BufReader::new(File::open(log).with_context(|| log.display().to_string())?);
        for (number, line) in file.split(b'\n').enumerate() {
            let at = format!("{} line {}", log.display(), number + 1);
            let line = line.with_context(|| at.clone())?;
            match reviewer.review(&String::from_utf8_lossy(&line)) {
                Ok(review) if arguments.decision.as_ref().is_some_and(|wanted| *wanted != review.id) => {}
                Ok(review) => note(review, &at, &mut rows, &mut notes, &mut counts),
                Err(error) => {
                    counts.unreadable += 1;
                    notes.push(format!("{at}: cannot be read: {error}"));
                }
            }
        }
    }
    print!("{}", table(["TIME", "DECISION", "IDENTITY", "RECORDED", "AGAIN", ""], &rows));
    for note in notes {
        println!("{note}");
    }
    let Counts {
        same,
        different,
        by_digest,
        unread,
        no_longer,
        unreadable,
    } = counts;
    let no_longer = if no_longer == 0 {
        String::new()
    } else {
        format!("{no_longer} no longer judged, ")
    };
    println!(
        "{same} as recorded, {different} different; {by_digest} recorded by digest, {unread} unread, {no_longer}{unreadable} lines that cannot be read"
    );
    let sound = different == 0 && unreadable == 0;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn note(review: Review, at: &str, rows: &mut Vec<[String; 6]>, notes: &mut Vec<String>, counts: &mut Counts) {
    let (count, said) = match (review.differences.is_empty(), review.judged) {
        (false, _) => (&mut counts.different, "DIFFERENT"),
        (true, Judged::Whole) => (&mut counts.same, "same"),
        (true, Judged::ByDigest) => (&mut counts.by_digest, "recorded by digest"),
        (true, Judged::Unread) => (&mut counts.unread, "unread"),
        (true, Judged::Checkpoint) => return,
        (true, Judged::NoLonger) => (&mut counts.no_longer, "no longer judged"),
    };
    *count += 1;
    notes.extend(review.differences.iter().map(|what| format!("{at}: {what}")));
    notes.extend(review.warnings.iter().map(|what| format!("{at}: warning: {what}")));
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
    identity.chars().take(limit).collect()
}
