//! Verification that logs are as gateways have written them: each chain from its beginning to its end, over any number of files in any
//! order.
//!
//! It does no I/O: it gets lines and facts that are known from elsewhere, and reports faults.

mod chain_order;
mod chain_parts;
mod checkpoints;
mod finding;
mod keeping;
mod lines;
mod removed;
mod signers;
mod strict;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use chain_order::ChainOrder;
use chain_parts::AssembledChain;
pub use chain_parts::ChainReport;
pub use finding::{LineLocation, Note, VerificationFinding};
use lines::LineReader;
use removed::Removed;
use signers::Signers;

use super::chain::{LineHash, Link, Point};
use super::checkpoint::Checkpoint;
use super::log_key::LogPublicKey;

/// Facts that are known apart from the lines.
#[derive(Debug, Clone, Default)]
pub struct VerificationContext {
    /// Keys whose checkpoints are believed. Empty: signatures are verified, but with any key.
    pub keys: BTreeSet<LogPublicKey>,
    /// Names of the gateways that these keys belong to, as far as they were given. A key without a name is believed for any gateway's name.
    pub names: BTreeMap<LogPublicKey, BTreeSet<String>>,
    /// Lines that are known to have been signed, such as those that the store keeps.
    pub known_points: Vec<Point>,
    /// Lines that are known to have been signed, and whose chains have to exist.
    pub required: Vec<Point>,
    /// Names of the gateways of chains that are known from elsewhere.
    pub chain_owners: BTreeMap<String, String>,
    /// Lines at which verification begins, by chain: earlier lines are not verified.
    pub from: BTreeMap<String, Point>,
    /// Set if the lines before the first one are elsewhere.
    pub continued: bool,
    /// Set if an older release has written lines without a chain, even after those of a chain.
    pub unchained: bool,
}

impl VerificationContext {
    /// Returns whether two keys belong to one gateway: they are the same, or both were given its name.
    fn are_of_one(&self, a: LogPublicKey, b: LogPublicKey) -> bool {
        let names = |key| self.names.get(&key).into_iter().flatten();
        a == b || names(a).any(|name| names(b).any(|other| other == name))
    }
}

/// Lines of one chain that follow one another in one file.
#[derive(Debug)]
struct ChainedRange {
    chain: String,
    first: u64,
    place: LineLocation,
    /// Hash of the line before its first line, according to that line.
    previous: LineHash,
    begins: bool,
    hashes: Vec<LineHash>,
    /// Numbers of lines whose hash of the previous line does not match that line.
    breaks: Vec<u64>,
    first_at: u64,
    last_at: u64,
}

impl ChainedRange {
    fn last(&self) -> u64 {
        let more = u64::try_from(self.hashes.len()).unwrap_or(u64::MAX).saturating_sub(1);
        self.first.saturating_add(more)
    }

    fn hash(&self, number: u64) -> Option<LineHash> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.hashes.get(index).copied()
    }
}

/// Lines without a chain, and the chain that has begun after them.
#[derive(Debug)]
struct UnchainedLines {
    place: LineLocation,
    lines: u64,
    chain: String,
}

/// A checkpoint that was found in its chain.
#[derive(Debug)]
struct FoundCheckpoint {
    number: u64,
    at: u64,
    replica: String,
    key: LogPublicKey,
    good: bool,
}

impl FoundCheckpoint {
    fn new(link: &Link, checkpoint: &Checkpoint, at: u64, good: bool) -> Self {
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
pub struct LogVerifier {
    trust: VerificationContext,
    reading: Option<LineReader>,
    runs: Vec<ChainedRange>,
    signed: BTreeMap<String, Vec<FoundCheckpoint>>,
    /// Checkpoints among the lines that were kept of removed ones.
    signed_and_kept: BTreeMap<String, Vec<FoundCheckpoint>>,
    /// Spans of numbers whose lines are unreadable.
    unreadable: BTreeMap<String, Vec<RangeInclusive<u64>>>,
    lost: Vec<Point>,
    /// Chains in which verification begins, and whose first line for it was found.
    begun: BTreeSet<String>,
    /// Chains that another chain names in the contents before it in its file, with that other chain.
    covered: BTreeMap<String, String>,
    /// Lines without a chain that a chain names as the contents before it.
    before: Vec<UnchainedLines>,
    /// Unknown keys that were reported already, by chain.
    unknown: BTreeSet<(String, LogPublicKey)>,
    findings: Vec<VerificationFinding>,
    notes: Vec<Note>,
    files: Vec<FileReport>,
    removed: Removed,
    /// File of kept lines that is read, and the current line in it.
    keeping: LineLocation,
    /// Number of malformed lines in such files.
    kept_unreadable: usize,
}

/// Result of the verification.
#[derive(Debug, Default)]
pub struct VerificationReport {
    pub chains: Vec<ChainReport>,
    pub findings: Vec<VerificationFinding>,
    pub notes: Vec<Note>,
    /// Files in their order, each with the chains of its lines, and the chain and number of its first line.
    pub files: Vec<FileReport>,
}

impl VerificationReport {
    /// Returns whether lines were removed by the rule that other records may refer to.
    #[must_use]
    pub fn is_shorter(&self) -> bool {
        self.notes.iter().any(|note| matches!(note, Note::Removed { .. }))
    }
}

/// Chains and lines of a file.
#[derive(Debug, Clone, Default)]
pub struct FileReport {
    pub name: String,
    pub first: Option<(String, u64)>,
    pub chains: BTreeSet<String>,
    /// Number of the line up to which it is not verified, because verification begins after it.
    pub skipped: u64,
}

impl LogVerifier {
    #[must_use]
    pub fn new(trust: VerificationContext) -> Self {
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
            keeping: LineLocation {
                file: String::new(),
                line: 0,
            },
            kept_unreadable: 0,
        }
    }

    /// Completes the verification of all lines.
    #[must_use]
    pub fn finish(mut self) -> VerificationReport {
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
        let followed = ChainOrder::new(&runs, &signed, &covered);
        followed.unsigned(&signed, &mut notes);
        signers::replaced(&signed, &signed_and_kept, &trust, &mut findings, &mut notes);
        signers::named(&signed, &trust, &mut notes);
        followed.unchained(before, trust.unchained, &mut findings, &mut notes);
        let signers = Signers::from_chains(signed.iter().chain(&signed_and_kept));
        let mut removed = removed.resolve(&signed, &signed_and_kept, |chain, key| signers.are(chain, key, &trust));
        findings.extend(never_signed(&trust, &runs, &signed, &covered));
        lost.extend(trust.required.iter().cloned());
        lost.extend(trust.from.values().filter(|from| !begun.contains(&from.chain)).cloned());
        let mut chains: BTreeMap<String, Vec<ChainedRange>> = BTreeMap::new();
        for run in runs {
            chains.entry(run.chain.clone()).or_default().push(run);
        }
        removed.hold_against(&chains);
        findings.append(&mut removed.findings);
        notes.append(&mut removed.notes);
        let mut reports = Vec::new();
        for (chain, runs) in chains {
            let mut stitched = AssembledChain::assemble(&chain, removed.get(&chain), runs, &trust, unreadable.get(&chain));
            let known = trust.known_points.iter().chain(&lost).chain(trust.from.values());
            stitched.end(known.filter(|point| !removed.holds(point)), |number| removed.hash(&chain, number));
            let report = stitched.report(signed.remove(&chain).unwrap_or_default(), &findings, &files);
            findings.append(&mut stitched.findings);
            notes.append(&mut stitched.notes);
            reports.push(report);
        }
        let there: BTreeSet<&str> = reports.iter().map(|report| report.chain.as_str()).collect();
        let is_lost = |point: &&Point| !there.contains(point.chain.as_str()) && !removed.holds(point);
        for point in lost.iter().filter(is_lost) {
            findings.push(VerificationFinding::Lost {
                chain: point.chain.clone(),
                number: point.number,
                replica: trust.chain_owners.get(&point.chain).cloned(),
            });
        }
        reports.sort_by_key(|report| report.first_at);
        VerificationReport {
            chains: reports,
            findings,
            notes,
            files,
        }
    }
}

/// Returns findings about chains that no trusted key has signed: neither one of their lines, nor the contents after them in their file.
/// Every gateway signs its chain when it begins.
fn never_signed(
    trust: &VerificationContext,
    runs: &[ChainedRange],
    signed: &BTreeMap<String, Vec<FoundCheckpoint>>,
    covered: &BTreeMap<String, String>,
) -> Vec<VerificationFinding> {
    if trust.keys.is_empty() {
        return Vec::new();
    }
    let is_signed = |chain: &str| signed.get(chain).is_some_and(|signed| signed.iter().any(|signed| signed.good));
    let chains: BTreeSet<&str> = runs.iter().map(|run| run.chain.as_str()).collect();
    let is_held = |chain: &str| is_signed(chain) || trust.from.contains_key(chain) || covered.get(chain).is_some_and(|by| is_signed(by));
    let never = chains.into_iter().filter(|chain| !is_held(chain));
    never
        .map(|chain| VerificationFinding::NeverSigned { chain: chain.to_owned() })
        .collect()
}
