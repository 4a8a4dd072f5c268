//! Chains after which the same gateway has begun another one: what stands at their end, and between the two.

use std::collections::BTreeMap;

use super::super::log_key::LogPublicKey;
use super::finding::short;
use super::{Before, Finding, Note, Run, Signed};

/// Which chains follow which.
pub(super) struct Followed<'v> {
    /// Of each key, the chains that it has signed, and when they began: in the same second, either may be the first.
    of_keys: Vec<Vec<(u64, &'v str)>>,
    /// By a chain, the one that names it as what stands before it in its file.
    covered: &'v BTreeMap<String, String>,
    /// How far each chain goes.
    last: BTreeMap<&'v str, u64>,
}

impl<'v> Followed<'v> {
    pub(super) fn of(runs: &'v [Run], signed: &'v BTreeMap<String, Vec<Signed>>, covered: &'v BTreeMap<String, String>) -> Self {
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

    /// Whether another one of the same gateway begins after it.
    fn is_followed(&self, chain: &str) -> bool {
        self.covered.contains_key(chain) || self.others(chain).any(|(own, other, _)| other >= own)
    }

    /// One of the same gateway that began before it.
    fn earlier(&self, chain: &str) -> Option<&str> {
        let covered = self.covered.iter().find(|(_, by)| *by == chain).map(|(before, _)| before.as_str());
        covered.or_else(|| self.others(chain).find(|(own, other, _)| other <= own).map(|(.., other)| other))
    }

    /// When it began, and the others by its key, and when they began.
    fn others(&self, chain: &str) -> impl Iterator<Item = (u64, u64, &'v str)> {
        let own = |chains: &&Vec<(u64, &str)>| chains.iter().any(|(_, other)| *other == chain);
        let chains = self.of_keys.iter().find(own).cloned().unwrap_or_default();
        let began = chains.iter().find(|(_, other)| *other == chain).map_or(0, |(at, _)| *at);
        let chain = chain.to_owned();
        chains
            .into_iter()
            .filter(move |(_, other)| *other != chain)
            .map(move |(at, other)| (began, at, other))
    }

    /// Lines at the ends of such chains that their gateway has never signed: it was killed, and wrote no more to that chain, or somebody else has
    /// written them.
    pub(super) fn unsigned(&self, signed: &BTreeMap<String, Vec<Signed>>, notes: &mut Vec<Note>) {
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

    /// What is to be said of lines of no chain after which one has begun: no gateway that has written a chain writes such lines, unless it was an older
    /// release for a while.
    pub(super) fn unchained(&self, before: Vec<Before>, allowed: bool, findings: &mut Vec<Finding>, notes: &mut Vec<Note>) {
        for Before { place, lines, chain } in before {
            match self.earlier(&chain).filter(|_| !allowed) {
                Some(earlier) => findings.push(Finding::PutIn {
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
