//! Removed lines, and the records by which they count as removed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use super::super::super::log_key::LogKey;
use super::super::super::removal::RetentionCause;
use super::*;

fn key() -> LogPublicKey {
    let folder = tempfile::tempdir().unwrap();
    LogKey::open(&folder.path().join("log.key")).unwrap().public()
}

/// Checkpoints of chain `c`: their numbers, and which of them are good.
fn signed(key: LogPublicKey, checkpoints: &[(u64, bool)]) -> BTreeMap<String, Vec<FoundCheckpoint>> {
    let signed = checkpoints.iter().map(|(number, good)| FoundCheckpoint {
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

/// Records the removal of lines of these chains, of which those with these numbers were kept.
fn removal(chains: &[Span], kept: &[u64]) -> Removal {
    Removal {
        segment: "segment".to_owned(),
        rule: RetentionCause::Age,
        lines: 1,
        bytes: 1,
        sha256: LineHash::NONE,
        chains: chains.to_vec(),
        kept: KeptLines::from_hashes(kept.iter().map(|number| hash(*number))),
    }
}

fn statement(number: u64, removal: Removal) -> RemovalStatement {
    let chain = "c".to_owned();
    RemovalStatement { chain, number, removal }
}

fn keep(removed: &mut Removed, chain: &str, number: u64, removal: Option<Removal>) {
    let place = LineLocation {
        file: "kept".to_owned(),
        line: number,
    };
    let hash = hash(number);
    let lines = removed.kept_lines.entry((chain.to_owned(), number)).or_default();
    lines.push(KeptLine { place, hash, removal });
}

/// Returns the first and the last line of each removed part of chain `c`.
fn gone(resolved: &RemovedLines) -> Vec<(u64, u64)> {
    resolved.get("c").iter().map(|gone| (gone.first, gone.last)).collect()
}

/// Line 10 records a removal. The case: the chain of the lines found unsigned, these lines, the checkpoints and whether they are good, and
/// whether the removal is believed.
type Case = (&'static str, UncoveredLines, &'static [(u64, bool)], bool);

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

const fn found(first: u64, last: u64) -> UncoveredLines {
    UncoveredLines { first, last }
}

#[test]
fn believes_only_removals_covered_by_a_valid_checkpoint() {
    for (chain, found, checkpoints, is_believed) in FOUND {
        let removed = Removed {
            statements: vec![statement(10, removal(&[span("c", 1, 4)], &[]))],
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

/// Line 40 records the removal of lines 5 to 35, of which line 10 is kept.
#[test]
fn believes_only_kept_removals_covered_by_a_checkpoint() {
    for (chain, found, checkpoints, is_believed) in &FOUND[..13] {
        let mut removed = Removed {
            statements: vec![statement(40, removal(&[span("c", 5, 35)], &[10]))],
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

/// Resolves removals: line 40 records that of lines 5 to 20 of chain `c`, and of 1 to 7 of another, lines 8 and 20 are kept.
fn looked(kept: &[(u64, u64)]) -> (Vec<String>, RemovedLines) {
    let mut removed = Removed {
        statements: vec![statement(40, removal(&[span("c", 5, 20), span("d", 1, 7)], &[8, 20]))],
        ..Removed::default()
    };
    for (number, is) in kept {
        keep(&mut removed, "c", *number, None);
        removed.kept_lines.get_mut(&("c".to_owned(), *number)).unwrap()[0].hash = hash(*is);
    }
    let resolved = removed.resolve(&signed(key(), &[(50, true)]), &BTreeMap::new(), |_, _| true);
    let findings = resolved.findings.iter().map(|finding| match finding {
        VerificationFinding::NotKept {
            chain,
            first,
            last,
            there,
            kept,
        } => format!("{chain} {first} {last}: {there} of {kept}"),
        VerificationFinding::KeptAltered { chain, first, last } => format!("{chain} {first} {last}: altered"),
        VerificationFinding::RemovedOtherwise { chain, number } => format!("{chain} {number}: otherwise"),
        other => panic!("{other:?}"),
    });
    (findings.collect(), resolved)
}

#[test]
fn compares_kept_lines_with_the_removal_record() {
    for (kept, expected) in [
        (&[(8, 8), (20, 20)][..], &[][..]),
        (&[(20, 20)], &["c 5 20: 1 of 2", "d 1 7: 1 of 2"]),
        (&[(8, 8), (9, 9), (20, 20)], &["c 5 20: 3 of 2", "d 1 7: 3 of 2"]),
        (&[(8, 9), (20, 20)], &["c 5 20: altered", "d 1 7: altered"]),
        (&[(8, 8), (20, 21)], &["c 20: otherwise", "c 5 20: altered", "d 1 7: altered"]),
        (&[(4, 4), (8, 8), (20, 20), (21, 21)], &[]),
    ] {
        assert_eq!(looked(kept).0, expected, "{kept:?}");
    }
}

#[test]
fn reports_duplicate_kept_lines_and_ignores_invalid_spans() {
    for (chains, kept, is_twice) in [
        (span("c", 5, 20), 8, true),
        (span("c", 8, 8), 8, true),
        (span("c", 9, 20), 8, false),
        (span("c", 8, 7), 8, false),
    ] {
        let mut removed = Removed {
            statements: vec![statement(
                40,
                removal(std::slice::from_ref(&chains), if is_twice { &[8] } else { &[] }),
            )],
            ..Removed::default()
        };
        keep(&mut removed, "c", kept, None);
        keep(&mut removed, "c", kept, None);
        let resolved = removed.resolve(&signed(key(), &[(50, true)]), &BTreeMap::new(), |_, _| true);
        let twice = |finding: &VerificationFinding| matches!(finding, VerificationFinding::KeptTwice { number: 8, .. });
        assert_eq!(
            (resolved.findings.len(), resolved.findings.iter().any(twice)),
            (usize::from(is_twice), is_twice),
            "{chains:?}"
        );
        assert!(!resolved.has("c", 7) || chains.first < 8);
    }
}

/// Returns lines that exist, from this one on.
fn run(chain: &str, first: u64, last: u64) -> ChainedRange {
    ChainedRange {
        chain: chain.to_owned(),
        first,
        place: LineLocation {
            file: "log".to_owned(),
            line: 1,
        },
        previous: LineHash::NONE,
        begins: false,
        hashes: (first..=last).map(hash).collect(),
        breaks: Vec::new(),
        first_at: 1,
        last_at: 1,
    }
}

#[test]
fn reports_kept_lines_that_belong_to_no_chain() {
    let chains = BTreeMap::from([("c".to_owned(), vec![run("c", 30, 32), run("c", 10, 12)])]);
    for (chain, number, is, is_of_nothing) in [
        // What says that it is removed may not be at hand.
        ("c", 9, 9, false),
        ("c", 9, 1, false),
        ("c", 10, 10, false),
        ("c", 10, 1, true),
        ("c", 12, 12, false),
        ("c", 13, 13, true),
        ("c", 20, 20, false),
        ("c", 31, 31, false),
        ("c", 31, 1, true),
        ("d", 9, 9, true),
    ] {
        let mut removed = Removed {
            statements: vec![statement(40, removal(&[span("c", 18, 22)], if number == 20 { &[20] } else { &[] }))],
            ..Removed::default()
        };
        keep(&mut removed, chain, number, None);
        removed.kept_lines.get_mut(&(chain.to_owned(), number)).unwrap()[0].hash = hash(is);
        let mut resolved = removed.resolve(&signed(key(), &[(50, true)]), &BTreeMap::new(), |_, _| true);
        assert_eq!(resolved.findings, []);
        resolved.hold_against(&chains);
        let of_nothing = matches!(&resolved.findings[..], [VerificationFinding::KeptOfNothing { number: of, .. }] if *of == number);
        assert_eq!(
            (of_nothing, resolved.findings.is_empty()),
            (is_of_nothing, !is_of_nothing),
            "{chain} {number}"
        );
        assert_eq!(resolved.notes, [], "what is there of a chain says the rest");
    }
}

#[test]
fn kept_line_of_a_removed_span_is_known() {
    let (findings, mut resolved) = looked(&[(8, 8), (20, 20), (30, 30)]);
    assert_eq!(findings, [""; 0]);
    let point = |number, is| Point {
        chain: "c".to_owned(),
        number,
        sha256: hash(is),
    };
    assert!(resolved.holds(&point(8, 8)) && resolved.holds(&point(20, 20)));
    for (number, is) in [(8, 9), (9, 9), (30, 30)] {
        assert!(!resolved.holds(&point(number, is)), "{number}");
    }
    // Nothing of either chain is there.
    resolved.hold_against(&BTreeMap::new());
    let removed = resolved.notes.iter().map(|note| match note {
        Note::Removed { chain, from, to, .. } => (chain.as_str(), *from, *to),
        other => panic!("{other:?}"),
    });
    assert_eq!(removed.collect::<Vec<_>>(), [("c", 5, 20), ("d", 1, 7)]);
}

#[test]
fn each_gap_is_removed_or_missing() {
    let gone = |first, last, by| RemovedRange {
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

#[test]
fn ignores_a_removal_span_with_reversed_bounds() {
    let head = LineHash::NONE;
    let by = ("c".to_owned(), 20);
    let said = [RemovedRange {
        first: 3,
        last: 2,
        head,
        by,
    }];
    let parts = parts(&said, 1, 5);
    assert!(parts.iter().all(|part| part.gone.is_none()));
    assert_eq!((parts[0].from, parts.last().unwrap().to), (1, 5));
}
