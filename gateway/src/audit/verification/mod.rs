//! Whether logs are what gateways have left: each chain from its beginning to its end, over any number of files in any order.
//!
//! Pure: it is given lines, and what is known from elsewhere, and says what is wrong.

mod finding;
mod followed;
mod keeping;
mod removed;
mod signers;
mod stitched;
mod strict;

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest;
pub use finding::{Finding, Note, Place};
use followed::Followed;
use removed::{Removed, Said};
use signers::Signers;
pub use stitched::ChainReport;
use stitched::Stitched;
use strict::Placed;

use super::chain::{Found, LineHash, Link, Point, Why};
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

/// Lines of a file that have no place in a chain, since the last one that has.
#[derive(Debug)]
struct Outside {
    first: u64,
    count: u64,
    why: String,
}

/// Lines of no chain, and the chain that has begun after them.
#[derive(Debug)]
struct Before {
    place: Place,
    lines: u64,
    chain: String,
}

/// A file, as far as it was read.
struct Reading {
    name: String,
    line: u64,
    bytes: u64,
    hash: digest::Context,
    outside: Option<Outside>,
    /// The chains that lines before this one were of.
    chains: BTreeSet<String>,
    run: Option<Run>,
    /// The highest number of the chain that the file is in.
    highest: u64,
    report: FileReport,
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
    /// Numbers whose lines cannot be read any more.
    unreadable: BTreeMap<String, BTreeSet<u64>>,
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
        }
    }

    /// The lines that follow are of this file.
    pub fn file(&mut self, name: &str) {
        self.end_of_file();
        self.reading = Some(Reading {
            name: name.to_owned(),
            line: 0,
            bytes: 0,
            hash: digest::Context::new(&digest::SHA256),
            outside: None,
            chains: BTreeSet::new(),
            run: None,
            highest: 0,
            report: FileReport {
                name: name.to_owned(),
                ..FileReport::default()
            },
        });
    }

    /// What comes next in the file cannot be read.
    pub fn unreadable(&mut self, why: String) {
        if let Some(Reading { name, line, .. }) = &self.reading {
            let (file, line) = (name.clone(), *line);
            let after = Place { file, line };
            self.findings.push(Finding::Unreadable { after, why });
        }
    }

    /// A file of which nothing can be read.
    pub fn unreadable_file(&mut self, file: String, why: String) {
        let after = Place { file, line: 0 };
        self.findings.push(Finding::Unreadable { after, why });
    }

    /// The file's next line, without its end.
    pub fn line(&mut self, line: &[u8]) {
        let Some(mut reading) = self.reading.take() else { return };
        reading.line += 1;
        match strict::read(line) {
            Ok(placed) => self.placed(&mut reading, placed, LineHash::of(line)),
            Err(why) => {
                let (first, count) = (reading.line, 0);
                let outside = reading.outside.get_or_insert(Outside { first, count, why });
                outside.count += 1;
            }
        }
        reading.hash.update(line);
        reading.hash.update(b"\n");
        reading.bytes += u64::try_from(line.len()).unwrap_or(0).saturating_add(1);
        self.reading = Some(reading);
    }

    /// What stands after the file's last line, without an end.
    pub fn torn(&mut self) {
        if let Some(Reading { name, line, .. }) = &self.reading {
            let place = Place {
                file: name.clone(),
                line: line + 1,
            };
            self.findings.push(Finding::Torn { place });
        }
    }

    fn placed(&mut self, reading: &mut Reading, placed: Placed, hash: LineHash) {
        let Placed {
            link,
            at,
            checkpoint,
            removed,
        } = placed;
        let place = Place {
            file: reading.name.clone(),
            line: reading.line,
        };
        let report = &mut reading.report;
        report.first.get_or_insert_with(|| (link.id.clone(), link.number));
        report.chains.insert(link.id.clone());
        let from = self.trust.from.get(&link.id).filter(|from| link.number <= from.number);
        // What verification begins after stands before the rest of its chain, and nowhere else.
        if let Some(from) = from.filter(|_| !reading.chains.contains(&link.id)) {
            // A cut archive may begin with it.
            if link.number == from.number {
                self.begun.insert(link.id.clone());
                if hash != from.sha256 {
                    self.findings.push(Finding::Replaced {
                        chain: link.id,
                        number: link.number,
                    });
                }
            }
            reading.report.skipped = reading.line;
            reading.outside = None;
            return;
        }
        let follows = reading.run.as_ref().is_some_and(|run| run.chain == link.id);
        match &link.begins {
            Some(begins) => {
                self.beginning(reading, begins.before.map(|before| (before.bytes, before.sha256)), &place, &link);
                self.lost.extend(begins.after.iter().cloned());
            }
            None => self.outside(reading, follows.then_some(link.number)),
        }
        if !follows && link.begins.is_none() && !reading.chains.is_empty() {
            self.spliced(reading, &link.id, link.number, &place);
        }
        if follows && link.number <= reading.highest {
            self.findings.push(Finding::OutOfOrder {
                chain: link.id.clone(),
                number: link.number,
                place: place.clone(),
            });
        }
        if let Some(checkpoint) = &checkpoint {
            self.checkpoint(&link, checkpoint, at);
        }
        if let Some(removal) = removed {
            let (chain, number) = (link.id.clone(), link.number);
            self.removed.said.push(Said { chain, number, removal });
        }
        reading.highest = if follows { reading.highest.max(link.number) } else { link.number };
        match &mut reading.run {
            Some(run) if follows && link.number == run.last().saturating_add(1) => {
                if run.hashes.last() != Some(&link.previous) {
                    run.breaks.push(link.number);
                }
                run.hashes.push(hash);
                run.last_at = at;
            }
            run => {
                reading.chains.insert(link.id.clone());
                let new = Run {
                    begins: link.begins.is_some(),
                    chain: link.id,
                    first: link.number,
                    previous: link.previous,
                    place,
                    hashes: vec![hash],
                    breaks: Vec::new(),
                    first_at: at,
                    last_at: at,
                };
                self.runs.extend(run.replace(new));
            }
        }
    }

    /// A chain's first line: it names what stands before it in its file.
    fn beginning(&mut self, reading: &mut Reading, before: Option<(u64, LineHash)>, place: &Place, link: &Link) {
        let found = (reading.bytes > 0).then(|| (reading.bytes, LineHash::from_digest(reading.hash.clone().finish())));
        let outside = reading.outside.take();
        let odd = link.begins.as_ref().is_some_and(|begins| match begins.why {
            // No gateway begins a new log after something, or misses nothing in one that it says is incomplete.
            Why::New => begins.before.is_some(),
            Why::Incomplete => begins.after.is_empty(),
            Why::Unchained => false,
        });
        if odd {
            self.spliced(reading, &link.id, link.number, place);
        } else if found == before {
            let covered = reading.chains.iter().map(|chain| (chain.clone(), link.id.clone()));
            self.covered.extend(covered);
            self.before.extend(outside.map(|outside| Before {
                place: Place {
                    file: place.file.clone(),
                    line: outside.first,
                },
                lines: outside.count,
                chain: link.id.clone(),
            }));
        } else if before.is_none() && !reading.chains.is_empty() {
            self.spliced(reading, &link.id, link.number, place);
        } else {
            self.findings.push(Finding::BeforeAltered {
                place: place.clone(),
                lines: reading.line.saturating_sub(1),
            });
        }
    }

    fn spliced(&mut self, reading: &Reading, chain: &str, number: u64, place: &Place) {
        let into = reading.run.as_ref().map_or_else(|| chain.to_owned(), |run| run.chain.clone());
        self.findings.push(Finding::Spliced {
            chain: chain.to_owned(),
            number,
            into,
            place: place.clone(),
        });
    }

    /// What is to be said of lines of no chain before a line, which may be the next of the same chain.
    fn outside(&mut self, reading: &mut Reading, next: Option<u64>) {
        let Some(Outside { first, count, why }) = reading.outside.take() else {
            return;
        };
        let after = reading.run.as_ref().map(|run| (run.chain.clone(), run.last()));
        let span = |last: u64| Some((last.checked_add(1)?, last.checked_add(count)?));
        let span = after.and_then(|(chain, last)| span(last).map(|(from, to)| (chain, from, to)));
        match (span, next) {
            (Some((chain, from, to)), Some(next)) if to.checked_add(1) == Some(next) => {
                self.unreadable.entry(chain.clone()).or_default().extend(from..=to);
                let why = Some(why);
                self.findings.push(Finding::Altered { chain, from, to, why });
            }
            _ => {
                let place = Place {
                    file: reading.name.clone(),
                    line: first,
                };
                self.findings.push(Finding::PutIn { place, lines: count, why });
            }
        }
    }

    fn checkpoint(&mut self, link: &Link, checkpoint: &Checkpoint, at: u64) {
        let finding = self.judge(link, checkpoint, at);
        if let Some(Found { first, last }) = checkpoint.found {
            self.notes.push(Note::Found {
                chain: link.id.clone(),
                from: first,
                to: last,
            });
        }
        let signed = Signed::of(link, checkpoint, at, finding.is_none());
        self.signed.entry(link.id.clone()).or_default().push(signed);
        self.say(finding, link, checkpoint);
    }

    /// What is wrong with a checkpoint. One that is good says what its gateway has found.
    fn judge(&mut self, link: &Link, checkpoint: &Checkpoint, at: u64) -> Option<Finding> {
        let (chain, number) = (link.id.clone(), link.number);
        let here = checkpoint.count.checked_add(1) == Some(number) && checkpoint.head == link.previous;
        let trusted = self.trust.keys.is_empty() || self.trust.keys.contains(&checkpoint.key);
        let signed = checkpoint.is_signed(&chain, at);
        let is_its = self
            .trust
            .names
            .get(&checkpoint.key)
            .is_none_or(|names| names.contains(&checkpoint.replica));
        match (signed, here, trusted) {
            (false, _, _) => Some(Finding::CheckpointFalse { chain, number }),
            (true, _, false) => Some(Finding::CheckpointUnknown {
                chain,
                number,
                key: checkpoint.key.to_string(),
            }),
            (true, false, true) => Some(Finding::CheckpointMoved {
                chain,
                number,
                count: checkpoint.count,
            }),
            (true, true, true) if !is_its => Some(Finding::CheckpointOfAnother {
                chain,
                number,
                replica: checkpoint.replica.clone(),
            }),
            (true, true, true) => {
                self.removed.found.entry(chain).or_default().extend(checkpoint.found);
                None
            }
        }
    }

    /// Of a key that is not known, that is said once for each chain.
    fn say(&mut self, finding: Option<Finding>, link: &Link, checkpoint: &Checkpoint) {
        if let Some(Finding::CheckpointUnknown { .. }) = &finding
            && !self.unknown.insert((link.id.clone(), checkpoint.key))
        {
            return;
        }
        self.findings.extend(finding);
    }

    fn end_of_file(&mut self) {
        let Some(mut reading) = self.reading.take() else { return };
        if reading.report.chains.is_empty()
            && let Some(outside) = reading.outside.take()
        {
            let (file, lines) = (reading.name.clone(), outside.count);
            if self.trust.unchained {
                let (to, held) = (lines, false);
                self.notes.push(Note::Unchained { file, to, held });
            } else {
                self.findings.push(Finding::Unchained { file, lines });
            }
        }
        self.outside(&mut reading, None);
        self.runs.extend(reading.run);
        self.files.push(reading.report);
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
