//! Which lines are gone, and by whose word.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use super::super::super::log_key::LogKey;
use super::super::super::retention::Past;
use super::*;

fn key() -> LogPublicKey {
    let folder = tempfile::tempdir().unwrap();
    LogKey::open(&folder.path().join("log.key")).unwrap().public()
}

/// Checkpoints of chain `c`: their numbers, and which of them are good.
fn signed(key: LogPublicKey, checkpoints: &[(u64, bool)]) -> BTreeMap<String, Vec<Signed>> {
    let signed = checkpoints.iter().map(|(number, good)| Signed {
        number: *number,
        at: 1,
        replica: "gw".to_owned(),
        key,
        good: *good,
    });
    BTreeMap::from([("c".to_owned(), signed.collect())])
}

fn hash(number: u64) -> LineHash {
    LineHash::of(&number.to_be_bytes())
}

fn span(id: &str, first: u64, last: u64) -> Span {
    let (id, head) = (id.to_owned(), hash(last));
    Span { id, first, last, head }
}

/// That lines of these chains are removed, and that of them those with these numbers were kept.
fn removal(chains: &[Span], kept: &[u64]) -> Removal {
    Removal {
        segment: "segment".to_owned(),
        rule: Past::Age,
        lines: 1,
        bytes: 1,
        sha256: LineHash::NONE,
        chains: chains.to_vec(),
        kept: KeptLines::of(kept.iter().map(|number| hash(*number))),
    }
}

fn said(number: u64, removal: Removal) -> Said {
    let chain = "c".to_owned();
    Said { chain, number, removal }
}

fn keep(removed: &mut Removed, chain: &str, number: u64, removal: Option<Removal>) {
    let place = Place {
        file: "kept".to_owned(),
        line: number,
    };
    let hash = hash(number);
    let lines = removed.kept.entry((chain.to_owned(), number)).or_default();
    lines.push(KeptLine { place, hash, removal });
}

/// The first and the last of each part of chain `c` that is gone.
fn gone(resolved: &Resolved) -> Vec<(u64, u64)> {
    resolved.of("c").iter().map(|gone| (gone.first, gone.last)).collect()
}

/// Line 10 says that something was removed: what was found, in which chain; the checkpoints, and whether they are good; whether it is believed.
type Case = (&'static str, Found, &'static [(u64, bool)], bool);

const FOUND: [Case; 15] = [
    ("c", found(20, 25), &[(30, true)], true),
    ("c", found(10, 10), &[(30, true)], false),
    ("c", found(9, 10), &[(30, true)], false),
    ("c", found(10, 11), &[(30, true)], false),
    ("c", found(8, 9), &[(30, true)], true),
    ("c", found(11, 12), &[(30, true)], true),
    ("d", found(9, 11), &[(30, true)], true),
    // It was held when it was found: by a good checkpoint that was found with it.
    ("c", found(10, 11), &[(11, true), (30, true)], true),
    ("c", found(9, 13), &[(12, true), (30, true)], true),
    ("c", found(9, 13), &[(8, true), (30, true)], false),
    ("c", found(9, 13), &[(10, true), (30, true)], false),
    ("c", found(9, 13), &[(12, false), (30, true)], false),
    ("c", found(9, 13), &[(14, true), (30, true)], false),
    // Nobody holds it.
    ("c", found(20, 25), &[(30, false)], false),
    ("c", found(20, 25), &[(9, true)], false),
];

const fn found(first: u64, last: u64) -> Found {
    Found { first, last }
}

#[test]
fn who_says_it_is_believed_if_it_is_held_and_was_not_found() {
    for (chain, found, checkpoints, is_believed) in FOUND {
        let removed = Removed {
            said: vec![said(10, removal(&[span("c", 1, 4)], &[]))],
            found: BTreeMap::from([(chain.to_owned(), vec![found])]),
            ..Removed::default()
        };
        let resolved = removed.resolve(&signed(key(), checkpoints), &BTreeMap::new(), |_, _| false);
        let expected = if is_believed { vec![(1, 4)] } else { vec![] };
        assert_eq!(gone(&resolved), expected, "{chain} {found:?} {checkpoints:?}");
        let notes = matches!(&resolved.notes[..], [Note::RemovalNotBelieved { number: 10, .. }]);
        assert_eq!((notes, resolved.notes.is_empty()), (!is_believed, is_believed));
        assert_eq!(resolved.findings, []);
    }
}

/// Line 40 says that lines 5 to 35 are removed, and of these line 10 is kept.
#[test]
fn a_kept_line_that_says_it_is_believed_if_it_was_not_found() {
    for (chain, found, checkpoints, is_believed) in &FOUND[..13] {
        let mut removed = Removed {
            said: vec![said(40, removal(&[span("c", 5, 35)], &[10]))],
            found: BTreeMap::from([((*chain).to_owned(), vec![*found])]),
            ..Removed::default()
        };
        keep(&mut removed, "c", 10, Some(removal(&[span("c", 1, 4)], &[])));
        // What was found with it may have been kept with it.
        let log = signed(key(), &[(50, true)]);
        let kept = signed(key(), &checkpoints[..checkpoints.len() - 1]);
        let resolved = removed.resolve(&log, &kept, |_, _| false);
        let expected = if *is_believed { vec![(1, 4), (5, 35)] } else { vec![(5, 35)] };
        assert_eq!(gone(&resolved), expected, "{chain} {found:?} {checkpoints:?}");
        assert_eq!(resolved.findings, []);
    }
}

#[test]
fn what_is_not_there_was_removed_or_is_missing() {
    let gone = |first, last, by| Gone {
        first,
        last,
        head: LineHash::NONE,
        by: ("c".to_owned(), by),
    };
    let said = [gone(1, 4, 20), gone(5, 8, 21), gone(5, 8, 22), gone(11, 12, 23)];
    let parts = |from, to| {
        let parts = parts(&said, from, to).into_iter();
        parts
            .map(|part| (part.from, part.to, part.gone.map(|gone| gone.by.1)))
            .collect::<Vec<_>>()
    };
    assert_eq!(parts(1, 8), [(1, 8, Some(22))]);
    assert_eq!(parts(3, 6), [(3, 6, Some(22))]);
    assert_eq!(parts(9, 10), [(9, 10, None)]);
    assert_eq!(parts(8, 13), [(8, 8, Some(22)), (9, 10, None), (11, 12, Some(23)), (13, 13, None)]);
    assert_eq!(parts(u64::MAX, u64::MAX), [(u64::MAX, u64::MAX, None)]);
}
