//! Whether logs are what gateways have left: each chain from its beginning to its end, over any number of files in any order.
//!
//! Pure: it is given lines, and what is known from elsewhere, and says what is wrong.

mod checkpoints;
mod finding;
mod followed;
mod keeping;
mod lines;
mod removed;
mod signers;
mod stitched;
mod strict;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

pub use finding::{Finding, Note, Place};
use followed::Followed;
use lines::Reading;
use removed::Removed;
use signers::Signers;
pub use stitched::ChainReport;
use stitched::Stitched;

use super::chain::{LineHash, Link, Point};
use super::checkpoint::Checkpoint;
use super::log_key::LogPublicKey;

/// What is known beside the lines.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Whose checkpoints are believed. None: signatures are looked at, and whose they are is not.
    pub keys: BTreeSet<LogPublicKey>,
    /// Of these, the names of the gateways whose they are, as far as they were said. One without a name is believed whatever its gateway calls itself.
    pub names: BTreeMap<LogPublicKey, BTreeSet<String>>,
    /// Lines that are known to have been signed, such as those that the store keeps.
    pub known: Vec<Point>,
    /// Of these also the chain has to be there.
    pub required: Vec<Point>,
    /// Of chains that are known from elsewhere, what their gateways call themselves.
    pub whose: BTreeMap<String, String>,
    /// Where verification begins, by chain: what comes before is not looked at.
    pub from: BTreeMap<String, Point>,
    /// That what comes before the first line is elsewhere.
    pub continued: bool,
    /// That an older release has written lines of no chain, also after those of one.
    pub unchained: bool,
}

impl Trust {
    /// Whether two keys are one gateway's: it is the same one, or both are said to be.
    fn are_of_one(&self, a: LogPublicKey, b: LogPublicKey) -> bool {
        let names = |key| self.names.get(&key).into_iter().flatten();
        a == b || names(a).any(|name| names(b).any(|other| other == name))
    }
}

/// Lines of one chain that follow one another in one file.
#[derive(Debug)]
struct Run {
    chain: String,
    first: u64,
    place: Place,
    /// What its first line says of the one before it.
    previous: LineHash,
    begins: bool,
    hashes: Vec<LineHash>,
    /// Numbers of lines that say of the one before them what it is not.
    breaks: Vec<u64>,
    first_at: u64,
    last_at: u64,
}

impl Run {
    fn last(&self) -> u64 {
        let more = u64::try_from(self.hashes.len()).unwrap_or(u64::MAX).saturating_sub(1);
        self.first.saturating_add(more)
    }

    fn hash(&self, number: u64) -> Option<LineHash> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.hashes.get(index).copied()
    }
}

/// Lines of no chain, and the chain that has begun after them.
#[derive(Debug)]
struct Before {
    place: Place,
    lines: u64,
    chain: String,
}

/// A checkpoint that was found in its chain.
#[derive(Debug)]
struct Signed {
    number: u64,
    at: u64,
    replica: String,
    key: LogPublicKey,
    good: bool,
}

impl Signed {
    fn of(link: &Link, checkpoint: &Checkpoint, at: u64, good: bool) -> Self {
        Self {
            number: link.number,
            at,
            replica: checkpoint.replica.clone(),
            key: checkpoint.key,
            good,
        }
    }
}

/// Verifies lines, file by file.
pub struct Verifier {
    trust: Trust,
    reading: Option<Reading>,
    runs: Vec<Run>,
    signed: BTreeMap<String, Vec<Signed>>,
    /// As these, of what was kept of lines that were removed.
    signed_and_kept: BTreeMap<String, Vec<Signed>>,
    /// Spans of numbers whose lines cannot be read any more.
    unreadable: BTreeMap<String, Vec<RangeInclusive<u64>>>,
    lost: Vec<Point>,
    /// Chains in which verification begins, where that very line was found.
    begun: BTreeSet<String>,
    /// Chains that another one names as what stands before it in its file, and that one.
    covered: BTreeMap<String, String>,
    /// Lines of no chain that one has begun after, which it names.
    before: Vec<Before>,
    /// Keys that were said to be unknown, by chain: once is enough.
    unknown: BTreeSet<(String, LogPublicKey)>,
    findings: Vec<Finding>,
    notes: Vec<Note>,
    files: Vec<FileReport>,
    removed: Removed,
    /// The file of what was kept that is read, and its line.
    keeping: Place,
    /// Lines of such files that are none that are kept.
    kept_unreadable: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub chains: Vec<ChainReport>,
    pub findings: Vec<Finding>,
    pub notes: Vec<Note>,
    /// In the order of the files, the chains that each holds lines of, and of the first of them the first line's number.
    pub files: Vec<FileReport>,
}

impl Report {
    /// Whether lines were removed by the rule that others may speak of.
    #[must_use]
    pub fn is_shorter(&self) -> bool {
        self.notes.iter().any(|note| matches!(note, Note::Removed { .. }))
    }
}

/// What a file holds.
#[derive(Debug, Clone, Default)]
pub struct FileReport {
    pub name: String,
    pub first: Option<(String, u64)>,
    pub chains: BTreeSet<String>,
    /// Up to which line it is not to be judged, because verification begins after it.
    pub skipped: u64,
}

impl Verifier {
    #[must_use]
    pub fn new(trust: Trust) -> Self {
        Self {
            trust,
            reading: None,
            runs: Vec::new(),
            signed: BTreeMap::new(),
            signed_and_kept: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            lost: Vec::new(),
            begun: BTreeSet::new(),
            covered: BTreeMap::new(),
            before: Vec::new(),
            unknown: BTreeSet::new(),
            findings: Vec::new(),
            notes: Vec::new(),
            files: Vec::new(),
            removed: Removed::default(),
            keeping: Place {
                file: String::new(),
                line: 0,
            },
            kept_unreadable: 0,
        }
    }

    /// What came of all lines.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.end_of_file();
        let Self {
            trust,
            runs,
            mut signed,
            signed_and_kept,
            unreadable,
            mut lost,
            begun,
            covered,
            before,
            mut findings,
            mut notes,
            files,
            removed,
            ..
        } = self;
        let followed = Followed::of(&runs, &signed, &covered);
        followed.unsigned(&signed, &mut notes);
        signers::replaced(&signed, &signed_and_kept, &trust, &mut findings, &mut notes);
        signers::named(&signed, &trust, &mut notes);
        followed.unchained(before, trust.unchained, &mut findings, &mut notes);
        let signers = Signers::of(signed.iter().chain(&signed_and_kept));
        let mut removed = removed.resolve(&signed, &signed_and_kept, |chain, key| signers.are(chain, key, &trust));
        findings.extend(never_signed(&trust, &runs, &signed, &covered));
        lost.extend(trust.required.iter().cloned());
        lost.extend(trust.from.values().filter(|from| !begun.contains(&from.chain)).cloned());
        let mut chains: BTreeMap<String, Vec<Run>> = BTreeMap::new();
        for run in runs {
            chains.entry(run.chain.clone()).or_default().push(run);
        }
        removed.hold_against(&chains);
        findings.append(&mut removed.findings);
        notes.append(&mut removed.notes);
        let mut reports = Vec::new();
        for (chain, runs) in chains {
            let mut stitched = Stitched::of(&chain, removed.of(&chain), runs, &trust, unreadable.get(&chain));
            let known = trust.known.iter().chain(&lost).chain(trust.from.values());
            stitched.end(known.filter(|point| !removed.holds(point)), |number| removed.hash(&chain, number));
            let report = stitched.report(signed.remove(&chain).unwrap_or_default(), &findings, &files);
            findings.append(&mut stitched.findings);
            notes.append(&mut stitched.notes);
            reports.push(report);
        }
        let there: BTreeSet<&str> = reports.iter().map(|report| report.chain.as_str()).collect();
        let is_lost = |point: &&Point| !there.contains(point.chain.as_str()) && !removed.holds(point);
        for point in lost.iter().filter(is_lost) {
            findings.push(Finding::Lost {
                chain: point.chain.clone(),
                number: point.number,
                replica: trust.whose.get(&point.chain).cloned(),
            });
        }
        reports.sort_by_key(|report| report.first_at);
        Report {
            chains: reports,
            findings,
            notes,
            files,
        }
    }
}

/// Chains that nothing holds: none of the trusted keys has signed one of their lines, or what stands after them in their file. Every gateway signs its
/// chain when it begins.
fn never_signed(trust: &Trust, runs: &[Run], signed: &BTreeMap<String, Vec<Signed>>, covered: &BTreeMap<String, String>) -> Vec<Finding> {
    if trust.keys.is_empty() {
        return Vec::new();
    }
    let is_signed = |chain: &str| signed.get(chain).is_some_and(|signed| signed.iter().any(|signed| signed.good));
    let chains: BTreeSet<&str> = runs.iter().map(|run| run.chain.as_str()).collect();
    let is_held = |chain: &str| is_signed(chain) || trust.from.contains_key(chain) || covered.get(chain).is_some_and(|by| is_signed(by));
    let never = chains.into_iter().filter(|chain| !is_held(chain));
    never.map(|chain| Finding::NeverSigned { chain: chain.to_owned() }).collect()
}
