//! A chain that is assembled from the files that hold parts of it.

use std::ops::RangeInclusive;

use super::super::chain::{LineHash, Point};
use super::removed::{RemovedRange, parts};
use super::{ChainedRange, FileReport, FoundCheckpoint, Note, VerificationContext, VerificationFinding};

/// Report on a chain as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainReport {
    pub chain: String,
    /// Name of its gateway in its last checkpoint.
    pub replica: Option<String>,
    pub first: u64,
    pub last: u64,
    /// Time of its first line, and in `last_at` of its last one, in seconds since 1970.
    pub first_at: u64,
    pub last_at: u64,
    /// Number of the last line that a good checkpoint covers: the one before it.
    pub signed: Option<u64>,
    /// Set if the chain has no faults.
    pub whole: bool,
}

/// A chain that is assembled from its parts.
pub(super) struct AssembledChain<'c> {
    chain: &'c str,
    /// Lines of it that were removed.
    gone: &'c [RemovedRange],
    runs: Vec<ChainedRange>,
    pub(super) findings: Vec<VerificationFinding>,
    pub(super) notes: Vec<Note>,
}

impl<'c> AssembledChain<'c> {
    /// Assembles the parts of a chain.
    pub(super) fn assemble(
        chain: &'c str,
        gone: &'c [RemovedRange],
        mut runs: Vec<ChainedRange>,
        trust: &VerificationContext,
        unreadable: Option<&Vec<RangeInclusive<u64>>>,
    ) -> Self {
        runs.sort_by(|a, b| (a.first, &a.place).cmp(&(b.first, &b.place)));
        let mut this = Self {
            chain,
            gone,
            runs: Vec::new(),
            findings: Vec::new(),
            notes: Vec::new(),
        };
        let mut breaks = Vec::new();
        for run in runs {
            this.join(&run, trust, unreadable, &mut breaks);
            breaks.extend(&run.breaks);
            this.runs.push(run);
        }
        let last = this.last();
        this.altered(breaks, last);
        this.check_undeleted();
        this
    }

    fn name(&self) -> String {
        self.chain.to_owned()
    }

    fn last(&self) -> u64 {
        self.runs.iter().map(ChainedRange::last).max().unwrap_or(0)
    }

    pub(super) fn hash(&self, number: u64) -> Option<LineHash> {
        self.runs.iter().find_map(|run| run.hash(number))
    }

    /// Checks that a part follows those before it.
    fn join(
        &mut self,
        run: &ChainedRange,
        trust: &VerificationContext,
        unreadable: Option<&Vec<RangeInclusive<u64>>>,
        breaks: &mut Vec<u64>,
    ) {
        let (next, head) = match (self.runs.is_empty(), trust.from.get(self.chain)) {
            (true, Some(from)) => (from.number.saturating_add(1), Some(from.sha256)),
            (true, None) => (1, Some(LineHash::NONE)),
            (false, _) => (self.last().saturating_add(1), self.hash(self.last())),
        };
        if run.first < next {
            return self.overlaps(run);
        }
        if run.first > next {
            self.gap(next, run, trust, unreadable);
        } else if head != Some(run.previous) || run.begins != (run.first == 1) {
            breaks.push(run.first);
        }
    }

    /// Reports lines that are missing before a part: removed by their gateway, or lost.
    fn gap(&mut self, next: u64, run: &ChainedRange, trust: &VerificationContext, unreadable: Option<&Vec<RangeInclusive<u64>>>) {
        let begins = self.runs.is_empty() && !trust.from.contains_key(self.chain);
        let parts = parts(self.gone, next, run.first - 1);
        if let Some(gone) = parts.last().and_then(|part| part.gone)
            && gone.last.checked_add(1) == Some(run.first)
            && gone.head != run.previous
        {
            let (chain, number) = (self.name(), gone.last);
            self.findings.push(VerificationFinding::RemovedOtherwise { chain, number });
        }
        for part in parts {
            let (chain, from, to, first) = (self.name(), part.from, part.to, part.to.saturating_add(1));
            if let Some(gone) = part.gone {
                let by = gone.by.clone();
                self.notes.push(Note::Removed { chain, from, to, by });
            } else if begins && from == next {
                if trust.continued {
                    self.notes.push(Note::Continued { chain, first });
                } else {
                    self.findings.push(VerificationFinding::NoBeginning { chain, first });
                }
            } else if !unreadable.is_some_and(|spans| spans.iter().any(|span| span.contains(&from) && span.contains(&to))) {
                self.findings.push(VerificationFinding::Missing { chain, from, to });
            }
        }
    }

    /// Checks lines whose removal is recorded, but that still exist: they have to be the recorded ones.
    fn check_undeleted(&mut self) {
        for gone in self.gone {
            let Some(hash) = self.hash(gone.last) else { continue };
            let chain = self.name();
            if hash != gone.head {
                let number = gone.last;
                self.findings.push(VerificationFinding::RemovedOtherwise { chain, number });
                continue;
            }
            let (from, to) = (gone.first, gone.last);
            self.notes.push(Note::StillThere { chain, from, to });
        }
    }

    /// Reports a part that exists already, or another one in its place.
    fn overlaps(&mut self, run: &ChainedRange) {
        let to = run.last().min(self.last());
        let other = (run.first..=to).find(|number| self.hash(*number).is_some_and(|hash| Some(hash) != run.hash(*number)));
        let (chain, place) = (self.name(), run.place.clone());
        self.findings.push(match other {
            Some(number) => VerificationFinding::Forked { chain, number, place },
            None => VerificationFinding::Doubled {
                chain,
                from: run.first,
                to,
                place,
            },
        });
    }

    /// Reports lines that the hashes after them do not match. If two consecutive hashes do not match, either line may be the altered one.
    fn altered(&mut self, mut breaks: Vec<u64>, last: u64) {
        breaks.sort_unstable();
        breaks.dedup();
        let mut breaks = breaks.into_iter().peekable();
        while let Some(first) = breaks.next() {
            let mut end = first;
            while let Some(next) = breaks.next_if(|next| *next == end + 1) {
                end = next;
            }
            let from = first.saturating_sub(1).max(1);
            let to = if end == last { end } else { end.saturating_sub(1).max(1) };
            self.findings.push(VerificationFinding::Altered {
                chain: self.name(),
                from,
                to,
                why: None,
            });
        }
    }

    /// Checks the chain against the lines that are known from elsewhere.
    pub(super) fn end<'p>(&mut self, known: impl Iterator<Item = &'p Point>, kept: impl Fn(u64) -> Option<LineHash>) {
        let last = self.last();
        let mut furthest = None;
        for point in known.filter(|point| point.chain == self.chain) {
            if point.number > last {
                furthest = furthest.max(Some(point.number));
            } else if self
                .hash(point.number)
                .or_else(|| kept(point.number))
                .is_some_and(|hash| hash != point.sha256)
            {
                self.findings.push(VerificationFinding::Replaced {
                    chain: self.name(),
                    number: point.number,
                });
            }
        }
        if let Some(known) = furthest {
            self.findings.push(VerificationFinding::Shortened {
                chain: self.name(),
                after: last,
                at: self.last_at(),
                known,
            });
        }
    }

    fn last_at(&self) -> u64 {
        self.runs.iter().max_by_key(|run| run.last()).map_or(0, |run| run.last_at)
    }

    pub(super) fn report(&mut self, mut signed: Vec<FoundCheckpoint>, others: &[VerificationFinding], files: &[FileReport]) -> ChainReport {
        signed.sort_by_key(|signed| signed.number);
        for (before, after) in signed.iter().zip(signed.iter().skip(1)) {
            if after.at < before.at {
                self.notes.push(Note::TimeBack {
                    chain: self.name(),
                    number: after.number,
                });
            }
        }
        let first = self.runs.first();
        ChainReport {
            chain: self.name(),
            replica: signed.last().map(|signed| signed.replica.clone()),
            first: first.map_or(0, |run| run.first),
            last: self.last(),
            first_at: first.map_or(0, |run| run.first_at),
            last_at: self.last_at(),
            signed: signed
                .iter()
                .rev()
                .find(|signed| signed.good)
                .map(|signed| signed.number.saturating_sub(1)),
            whole: self.findings.is_empty() && !others.iter().any(|finding| finding.is_of(self.chain, files)),
        }
    }
}
