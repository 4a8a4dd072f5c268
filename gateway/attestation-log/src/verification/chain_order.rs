//! Chains after which the same gateway has begun another one: lines at their end, and between the two.

use std::collections::BTreeMap;

use super::super::log_key::LogPublicKey;
use super::finding::short;
use super::{ChainedRange, FoundCheckpoint, Note, UnchainedLines, VerificationFinding};

/// Order of the chains of each gateway.
pub(super) struct ChainOrder<'v> {
    /// For each key, the chains that it has signed, with the times of their beginning. With the same second, either may be the first.
    of_keys: Vec<Vec<(u64, &'v str)>>,
    /// By a chain, the one that names it in the contents before it in its file.
    covered: &'v BTreeMap<String, String>,
    /// Number of the last line of each chain.
    last: BTreeMap<&'v str, u64>,
}

impl<'v> ChainOrder<'v> {
    pub(super) fn new(
        runs: &'v [ChainedRange],
        signed: &'v BTreeMap<String, Vec<FoundCheckpoint>>,
        covered: &'v BTreeMap<String, String>,
    ) -> Self {
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        let mut began: BTreeMap<&str, u64> = BTreeMap::new();
        for run in runs {
            let to = last.entry(&run.chain).or_default();
            *to = run.last().max(*to);
            let at = began.entry(&run.chain).or_insert(run.first_at);
            *at = run.first_at.min(*at);
        }
        let mut of_keys: BTreeMap<LogPublicKey, Vec<(u64, &str)>> = BTreeMap::new();
        for (chain, signed) in signed {
            if let (Some(signed), Some(at)) = (signed.iter().find(|signed| signed.good), began.get(chain.as_str())) {
                of_keys.entry(signed.key).or_default().push((*at, chain));
            }
        }
        let of_keys = of_keys.into_values().collect();
        Self { of_keys, covered, last }
    }

    /// Returns whether another chain of the same gateway begins after it.
    fn is_followed(&self, chain: &str) -> bool {
        self.covered.contains_key(chain) || self.other_chains(chain).any(|(own, other, _)| other >= own)
    }

    /// Returns a chain of the same gateway that began before it.
    fn earlier(&self, chain: &str) -> Option<&str> {
        let covered = self.covered.iter().find(|(_, by)| *by == chain).map(|(before, _)| before.as_str());
        covered.or_else(|| {
            self.other_chains(chain)
                .find(|(own, other, _)| other <= own)
                .map(|(.., other)| other)
        })
    }

    /// Returns the other chains by its key: the time of its own beginning, the time of theirs, and their names.
    fn other_chains(&self, chain: &str) -> impl Iterator<Item = (u64, u64, &'v str)> {
        let own = |chains: &&Vec<(u64, &str)>| chains.iter().any(|(_, other)| *other == chain);
        let chains = self.of_keys.iter().find(own).cloned().unwrap_or_default();
        let began = chains.iter().find(|(_, other)| *other == chain).map_or(0, |(at, _)| *at);
        let chain = chain.to_owned();
        chains
            .into_iter()
            .filter(move |(_, other)| *other != chain)
            .map(move |(at, other)| (began, at, other))
    }

    /// Notes lines at the ends of such chains that their gateway has never signed. The gateway was killed, and wrote no more to that chain,
    /// or another program has written them.
    pub(super) fn unsigned(&self, signed: &BTreeMap<String, Vec<FoundCheckpoint>>, notes: &mut Vec<Note>) {
        for chain in self.last.keys().filter(|chain| self.is_followed(chain)) {
            let good = signed.get(*chain).into_iter().flatten().filter(|signed| signed.good);
            if let (Some(from), Some(to)) = (good.map(|signed| signed.number).max(), self.last.get(chain))
                && from < *to
            {
                notes.push(Note::Found {
                    chain: (*chain).to_owned(),
                    from: from.saturating_add(1),
                    to: *to,
                });
            }
        }
    }

    /// Reports lines without a chain before the beginning of a chain. A gateway that has written a chain does not write such lines, unless
    /// an older release ran for a while.
    pub(super) fn unchained(
        &self,
        before: Vec<UnchainedLines>,
        allowed: bool,
        findings: &mut Vec<VerificationFinding>,
        notes: &mut Vec<Note>,
    ) {
        for UnchainedLines { place, lines, chain } in before {
            match self.earlier(&chain).filter(|_| !allowed) {
                Some(earlier) => findings.push(VerificationFinding::PutIn {
                    place,
                    lines,
                    why: format!(
                        "they came after chain {}: if an older release has written them, say --unchained",
                        short(earlier)
                    ),
                }),
                None => notes.push(Note::Unchained {
                    file: place.file,
                    to: place.line.saturating_add(lines).saturating_sub(1),
                    held: true,
                }),
            }
        }
    }
}
