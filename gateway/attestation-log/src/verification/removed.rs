//! Lines whose removal their gateway has recorded. The record is believed if it is signed, and the lines that were to be kept are checked.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::super::chain::{LineHash, Point, UncoveredLines};
use super::super::log_key::LogPublicKey;
use super::super::removal::{KeptLines, Removal, Span};
use super::{ChainedRange, FoundCheckpoint, LineLocation, Note, VerificationFinding};

/// Record of a segment's removal, with its line.
#[derive(Debug, Clone)]
pub(super) struct RemovalStatement {
    pub(super) chain: String,
    pub(super) number: u64,
    pub(super) removal: Removal,
}

/// A line that was kept of a removed segment.
#[derive(Debug)]
pub(super) struct KeptLine {
    pub(super) place: LineLocation,
    pub(super) hash: LineHash,
    /// Removal of an earlier segment that the line records; `None` for a checkpoint.
    pub(super) removal: Option<Removal>,
}

/// All records of removals, and the kept lines.
#[derive(Debug, Default)]
pub(super) struct Removed {
    pub(super) statements: Vec<RemovalStatement>,
    /// Kept lines by chain and number, in the order in which they occur.
    pub(super) kept_lines: BTreeMap<(String, u64), Vec<KeptLine>>,
    /// Lines that were found unsigned at a start, by their chains.
    pub(super) found: BTreeMap<String, Vec<UncoveredLines>>,
}

/// Lines that were removed, and the line that records it.
#[derive(Debug, Clone)]
pub(super) struct RemovedRange {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) head: LineHash,
    pub(super) by: (String, u64),
}

/// Resolved removals: the removed lines of each chain, by the number of the first.
#[derive(Debug, Default)]
pub(super) struct RemovedLines {
    gone: BTreeMap<String, Vec<RemovedRange>>,
    /// Hashes of the kept lines, and their places.
    kept_lines: BTreeMap<(String, u64), (LineHash, LineLocation)>,
    pub(super) findings: Vec<VerificationFinding>,
    pub(super) notes: Vec<Note>,
}

impl Removed {
    /// Accepts the removals that are signed, and those that kept lines record. For another chain than that of the record, its gateway has
    /// to be the only signer. `signed_by` decides that for a chain and a key.
    pub(super) fn resolve(
        self,
        signed: &BTreeMap<String, Vec<FoundCheckpoint>>,
        signed_and_kept: &BTreeMap<String, Vec<FoundCheckpoint>>,
        signed_by: impl Fn(&str, LogPublicKey) -> bool,
    ) -> RemovedLines {
        let mut resolved = RemovedLines::default();
        // A gateway that has lost its key finds what it has signed itself, by the key before; and that may have been removed since.
        let is_held = |chain: &str, number: u64, last: u64| {
            let signed = [signed, signed_and_kept].into_iter().filter_map(|signed| signed.get(chain));
            signed
                .flatten()
                .filter(|signed| signed.good)
                .any(|signed| number < signed.number && signed.number <= last)
        };
        let was_found = |chain: &str, number: u64| {
            let mut found = self.found.get(chain).into_iter().flatten();
            found.any(|found| (found.first..=found.last).contains(&number) && !is_held(chain, number, found.last))
        };
        let mut believed = Vec::new();
        for said in &self.statements {
            match held_by_key(signed, &said.chain, said.number).filter(|_| !was_found(&said.chain, said.number)) {
                Some(key) => believed.push((said.clone(), key)),
                None => resolved.notes.push(Note::RemovalNotBelieved {
                    chain: said.chain.clone(),
                    number: said.number,
                }),
            }
        }
        let mut looked = BTreeSet::new();
        while let Some((said, key)) = believed.pop() {
            let is_its = |chain: &str| chain == said.chain || signed_by(chain, key);
            resolved.is_gone(&said, is_its);
            for place in self.compare(&said, &mut resolved).into_iter().filter(|(chain, _)| is_its(chain)) {
                let Some(KeptLine {
                    removal: Some(removal), ..
                }) = self.kept_lines.get(&place).and_then(|lines| lines.first())
                else {
                    continue;
                };
                if looked.insert(place.clone()) && !was_found(&place.0, place.1) {
                    let (chain, number) = place;
                    let removal = removal.clone();
                    believed.push((RemovalStatement { chain, number, removal }, key));
                }
            }
        }
        for gone in resolved.gone.values_mut() {
            gone.sort_by_key(|gone| (gone.first, gone.last));
        }
        let first = |lines: Vec<KeptLine>| lines.into_iter().next().map(|line| (line.hash, line.place));
        let kept = self.kept_lines.into_iter().filter_map(|(key, lines)| Some((key, first(lines)?)));
        resolved.kept_lines = kept.collect();
        resolved
    }

    /// Compares the kept lines with those that were to be kept; returns the lines that are unaltered.
    fn compare(&self, said: &RemovalStatement, resolved: &mut RemovedLines) -> Vec<(String, u64)> {
        let Removal { chains, kept, .. } = &said.removal;
        let mut keys = Vec::new();
        // Whoever writes such a line can write anything.
        for Span { id, first, last, head } in chains.iter().filter(|span| span.first <= span.last) {
            let range = (id.clone(), *first)..=(id.clone(), *last);
            for (key, lines) in self.kept_lines.range(range) {
                if let [_, again, ..] = lines.as_slice() {
                    resolved.findings.push(VerificationFinding::KeptTwice {
                        place: again.place.clone(),
                        chain: id.clone(),
                        number: key.1,
                    });
                }
                if key.1 == *last && lines.first().is_some_and(|line| line.hash != *head) {
                    resolved.findings.push(VerificationFinding::RemovedOtherwise {
                        chain: id.clone(),
                        number: *last,
                    });
                }
                keys.push(key.clone());
            }
        }
        let lines = keys.iter().filter_map(|key| self.kept_lines.get(key)?.first());
        let there = KeptLines::from_hashes(lines.map(|line| line.hash));
        if there == *kept {
            return keys;
        }
        // Of which of its chains nobody knows.
        for Span { id, first, last, .. } in chains {
            let (chain, first, last) = (id.clone(), *first, *last);
            resolved.findings.push(if there.lines == kept.lines {
                VerificationFinding::KeptAltered { chain, first, last }
            } else {
                VerificationFinding::NotKept {
                    chain,
                    first,
                    last,
                    there: there.lines,
                    kept: kept.lines,
                }
            });
        }
        Vec::new()
    }
}

/// Returns the key by which a line is signed: that of the next checkpoint after it.
pub(super) fn held_by_key(signed: &BTreeMap<String, Vec<FoundCheckpoint>>, chain: &str, number: u64) -> Option<LogPublicKey> {
    let after = signed.get(chain)?.iter().filter(|signed| signed.good && signed.number > number);
    after.min_by_key(|signed| signed.number).map(|signed| signed.key)
}

impl RemovedLines {
    fn is_gone(&mut self, said: &RemovalStatement, is_its: impl Fn(&str) -> bool) {
        for Span { id, first, last, head } in &said.removal.chains {
            if !is_its(id) {
                self.findings.push(VerificationFinding::RemovedByAnother {
                    chain: id.clone(),
                    first: *first,
                    last: *last,
                    by: (said.chain.clone(), said.number),
                });
                continue;
            }
            self.gone.entry(id.clone()).or_default().push(RemovedRange {
                first: *first,
                last: *last,
                head: *head,
                by: (said.chain.clone(), said.number),
            });
        }
    }

    /// Returns the removed lines of a chain.
    pub(super) fn get(&self, chain: &str) -> &[RemovedRange] {
        self.gone.get(chain).map_or(&[], Vec::as_slice)
    }

    /// Returns whether that line was removed.
    fn has(&self, chain: &str, number: u64) -> bool {
        self.get(chain).iter().any(|gone| (gone.first..=gone.last).contains(&number))
    }

    /// Returns whether a signed line was removed, and was kept with the right hash.
    pub(super) fn holds(&self, point: &Point) -> bool {
        self.has(&point.chain, point.number) && self.hash(&point.chain, point.number) == Some(point.sha256)
    }

    /// Returns the hash of a line that was kept.
    pub(super) fn hash(&self, chain: &str, number: u64) -> Option<LineHash> {
        self.kept_lines.get(&(chain.to_owned(), number)).map(|(hash, _)| *hash)
    }

    /// Reports removals of whole chains, and kept lines that belong to no removed and no existing line.
    pub(super) fn hold_against(&mut self, chains: &BTreeMap<String, Vec<ChainedRange>>) {
        for (chain, gone) in self.gone.iter().filter(|(chain, _)| !chains.contains_key(*chain)) {
            let (first, last) = (gone.iter().map(|gone| gone.first).min(), gone.iter().map(|gone| gone.last).max());
            let (Some(first), Some(last)) = (first, last) else { continue };
            for part in parts(gone, first, last) {
                let (chain, from, to) = (chain.clone(), part.from, part.to);
                let Some(by) = part.gone.map(|gone| gone.by.clone()) else {
                    continue;
                };
                self.notes.push(Note::Removed { chain, from, to, by });
            }
        }
        for ((chain, number), (hash, place)) in &self.kept_lines {
            // It was kept, and its segment is not removed yet; or what says so is not at hand.
            let stands = chains.get(chain).is_some_and(|runs| {
                let before = runs.iter().map(|run| run.first).min().is_some_and(|first| *number < first);
                before || runs.iter().any(|run| run.hash(*number) == Some(*hash))
            });
            if !stands && !self.has(chain, *number) {
                self.findings.push(VerificationFinding::KeptOfNothing {
                    place: place.clone(),
                    chain: chain.clone(),
                    number: *number,
                });
            }
        }
    }
}

/// Lines of a chain, from one number to another, which were all removed, or are all missing.
pub(super) struct LineRange<'g> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) gone: Option<&'g RemovedRange>,
}

/// Splits lines that do not exist into removed and missing ones, in their order.
pub(super) fn parts(gone: &[RemovedRange], from: u64, to: u64) -> Vec<LineRange<'_>> {
    let (mut parts, mut next) = (Vec::<LineRange<'_>>::new(), from);
    while next <= to {
        let here = gone.iter().filter(|gone| (gone.first..=gone.last).contains(&next));
        let here = here.max_by_key(|gone| gone.last);
        let end = match here {
            Some(gone) => gone.last.min(to),
            None => gone
                .iter()
                .map(|gone| gone.first)
                .filter(|first| *first > next)
                .min()
                .map_or(to, |first| (first - 1).min(to)),
        };
        match parts.last_mut() {
            Some(last) if last.gone.is_some() && here.is_some() => (last.to, last.gone) = (end, here),
            _ => parts.push(LineRange {
                from: next,
                to: end,
                gone: here,
            }),
        }
        let Some(after) = end.checked_add(1) else { break };
        next = after;
    }
    parts
}
