//! Signers of chains: each chain has one key, from its first checkpoint on, and each key one gateway.

use std::collections::{BTreeMap, BTreeSet};

use super::super::log_key::LogPublicKey;
use super::{FoundCheckpoint, Note, VerificationContext, VerificationFinding};

/// Keys that have signed each chain: in its lines, and in the lines that were kept of removed ones.
#[derive(Debug, Default)]
pub(super) struct Signers(BTreeMap<String, BTreeSet<LogPublicKey>>);

impl Signers {
    pub(super) fn from_chains<'s>(chains: impl IntoIterator<Item = (&'s String, &'s Vec<FoundCheckpoint>)>) -> Self {
        let mut keys = BTreeMap::<String, BTreeSet<LogPublicKey>>::new();
        for (chain, signed) in chains {
            let good = signed.iter().filter(|signed| signed.good).map(|signed| signed.key);
            keys.entry(chain.clone()).or_default().extend(good);
        }
        Self(keys)
    }

    /// Returns whether the gateway with this key is the only signer of this chain. Only the auditor can say that several keys belong to one
    /// gateway: each gateway can claim anything about its own.
    pub(super) fn are(&self, chain: &str, key: LogPublicKey, trust: &VerificationContext) -> bool {
        let keys = self.0.get(chain).filter(|keys| !keys.is_empty());
        keys.is_some_and(|keys| keys.iter().all(|other| trust.are_of_one(*other, key)))
    }
}

/// Reports chains that are signed by another key from some line on. Either `log.key` was lost, and the auditor states whose the other key
/// is; or an attacker with another trusted key has made the lines again.
pub(super) fn replaced(
    signed: &BTreeMap<String, Vec<FoundCheckpoint>>,
    and_kept: &BTreeMap<String, Vec<FoundCheckpoint>>,
    trust: &VerificationContext,
    findings: &mut Vec<VerificationFinding>,
    notes: &mut Vec<Note>,
) {
    let chains: BTreeSet<&String> = signed.keys().chain(and_kept.keys()).collect();
    for chain in chains {
        let all = signed.get(chain).into_iter().chain(and_kept.get(chain)).flatten();
        let mut good: Vec<&FoundCheckpoint> = all.filter(|signed| signed.good).collect();
        good.sort_by_key(|signed| signed.number);
        for (_, after) in good
            .iter()
            .zip(good.iter().skip(1))
            .filter(|(before, after)| before.key != after.key)
        {
            let (chain, number) = (chain.clone(), after.number);
            if is_said(trust, after) {
                notes.push(Note::KeyReplaced { chain, number });
            } else {
                let replica = after.replica.clone();
                findings.push(VerificationFinding::KeyReplaced { chain, number, replica });
            }
        }
    }
}

fn is_said(trust: &VerificationContext, signed: &FoundCheckpoint) -> bool {
    trust.names.get(&signed.key).is_some_and(|names| names.contains(&signed.replica))
}

/// Notes gateways of one name with several keys, and of several names with one key: a gateway may have been set up again, or renamed.
pub(super) fn named(signed: &BTreeMap<String, Vec<FoundCheckpoint>>, trust: &VerificationContext, notes: &mut Vec<Note>) {
    let (mut keys, mut names) = (Keys::new(), Names::new());
    for signed in signed.values().flatten().filter(|signed| signed.good && !is_said(trust, signed)) {
        keys.entry(&signed.replica).or_default().insert(signed.key);
        names.entry(signed.key).or_default().insert(&signed.replica);
    }
    for (replica, keys) in keys.into_iter().filter(|(_, keys)| keys.len() > 1) {
        notes.push(Note::KeysOfOne {
            replica: replica.to_owned(),
            keys: keys.len(),
        });
    }
    for names in names.into_values().filter(|names| names.len() > 1) {
        notes.push(Note::NamesOfOne {
            replicas: names.into_iter().map(str::to_owned).collect(),
        });
    }
}

type Keys<'s> = BTreeMap<&'s str, BTreeSet<LogPublicKey>>;
type Names<'s> = BTreeMap<LogPublicKey, BTreeSet<&'s str>>;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::removed::held_by_key;
    use super::*;
    use crate::LogKey;

    fn key() -> LogPublicKey {
        let folder = tempfile::tempdir().unwrap();
        LogKey::open(&folder.path().join("log.key")).unwrap().public()
    }

    fn signed(number: u64, key: LogPublicKey, good: bool) -> FoundCheckpoint {
        let replica = "gw".to_owned();
        FoundCheckpoint {
            number,
            at: 1,
            replica,
            key,
            good,
        }
    }

    #[test]
    fn chain_belongs_to_the_signer_of_its_checkpoints() {
        let (own, other) = (key(), key());
        let named = |name: &str| BTreeSet::from([name.to_owned()]);
        let one = VerificationContext {
            names: BTreeMap::from([(own, named("gw")), (other, named("gw"))]),
            ..VerificationContext::default()
        };
        for (checkpoints, alone, of_one) in [
            (vec![signed(1, own, true)], true, true),
            (vec![], false, false),
            // Anybody can write one that names a key.
            (vec![signed(1, own, false)], false, false),
            (vec![signed(1, own, true), signed(2, other, false)], true, true),
            (vec![signed(1, own, true), signed(2, other, true)], false, true),
            (vec![signed(1, other, true), signed(2, own, false)], false, true),
        ] {
            let chains = BTreeMap::from([("c".to_owned(), checkpoints)]);
            let signers = Signers::from_chains(&chains);
            assert_eq!(signers.are("c", own, &VerificationContext::default()), alone, "{chains:?}");
            assert_eq!(signers.are("c", own, &one), of_one, "{chains:?}");
            assert!(!signers.are("d", own, &one));
        }
    }

    #[test]
    fn next_valid_checkpoint_covers_a_line() {
        let (first, second) = (key(), key());
        for (checkpoints, held_by) in [
            (vec![signed(6, second, true), signed(5, first, true)], Some(first)),
            (vec![signed(5, first, false), signed(6, second, true)], Some(second)),
            (vec![signed(5, first, false)], None),
            (vec![signed(4, first, true)], None),
        ] {
            let chains = BTreeMap::from([("c".to_owned(), checkpoints)]);
            assert!(held_by_key(&chains, "c", 4) == held_by, "{chains:?}");
            assert!(held_by_key(&chains, "d", 4).is_none());
        }
    }
}
