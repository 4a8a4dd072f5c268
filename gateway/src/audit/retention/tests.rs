mod blobs;
mod killed;
mod order;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::basis::Basis;
use super::super::blobs::Blobs;
use super::super::chain::Link;
use super::super::checkpoint::Signer;
use super::super::journal::{Journal, LargeParts};
use super::super::log_key::LogKey;
use super::super::reading::{Bytes, Found, Lines, lines_of};
use super::super::record::{Decision, Record, Verdict};
use super::super::segments::{SegmentLimits, closed_segments};
use super::super::verification::{Finding, Note, Report, Trust, Verifier};
use super::pass::{Going, Retention};
use super::survey::Survey;
use super::*;
use crate::store::{Embedded, EntryKind, Occasion, Pending, Spendable, Store, Tick};

/// Records are of the first thousand seconds.
const NOW: u64 = 10_000;
/// What is of the first hundred seconds may go.
const RULE: Rule = Rule {
    age: Some(Duration::from_secs(NOW - 100)),
    bytes: None,
};
const LIMITS: SegmentLimits = SegmentLimits {
    bytes: 1,
    age: Duration::MAX,
};

struct Site {
    folder: tempfile::TempDir,
    store: Embedded,
}

/// A journal, and who keeps its rule: what is gone with a process.
struct Process {
    journal: Journal,
    blobs: Blobs,
    retention: Retention,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        Self { folder, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("attestation.jsonl")
    }

    fn key(&self) -> LogKey {
        LogKey::open(&self.path("log.key")).unwrap()
    }

    fn open(&self, rule: Rule) -> Process {
        self.open_with(rule, |_| Vec::new())
    }

    fn open_with(&self, rule: Rule, lacking: impl Fn(&LastLine) -> Vec<String> + Send + Sync + 'static) -> Process {
        let blobs = Blobs::open(&self.path("evidence")).unwrap();
        let journal = loop {
            let signer = Signer::new(self.key(), Some("gw"), 1000);
            match Journal::open(&self.log(), signer, LIMITS, blobs.clone(), std::sync::Arc::default()) {
                Err(JournalError::InUse(_)) => std::thread::yield_now(),
                opened => break opened.unwrap().0,
            }
        };
        journal.compress_closed();
        let retention = Retention::new(self.log(), rule, vec![blobs.clone()], lacking);
        Process { journal, blobs, retention }
    }

    /// Segments of the seconds up to 50, up to 150 and up to 250, and a log. Of the first, blob `a` goes with it, and `b` is the second's, too.
    async fn written(&self) -> Process {
        let process = self.open(RULE);
        process.journal.checkpoint(1).await.unwrap();
        for (at, blobs) in [(40, &["a", "b"][..]), (150, &["b"]), (250, &["c"])] {
            process.record(at, blobs).await;
            process.journal.checkpoint(at + 10).await.unwrap();
        }
        // What was closed is compressed.
        process.journal.aside(|| ()).await.unwrap();
        process
    }

    /// How many closed segments there are of those that were written first: others are closed where the log says that one goes.
    fn segments(&self) -> usize {
        let first = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let number = name.trim_end_matches(".gz").rsplit('-').next().unwrap();
            number.parse::<u64>().unwrap() < 9
        };
        closed_segments(&self.log()).unwrap().iter().filter(|path| first(path)).count()
    }

    /// Which blobs are there, of these.
    fn blobs<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        let blobs = Blobs::open(&self.path("evidence")).unwrap();
        let there = |name: &&&str| blobs.has(&Blobs::name(name.as_bytes()));
        names.iter().filter(there).copied().collect()
    }

    /// Every file of the log, opened. Meanwhile another thread compresses closed ones, and whoever lists them then may list none of the two names.
    fn opened(&self) -> Vec<(PathBuf, Lines<Bytes>)> {
        loop {
            let listed = closed_segments(&self.log()).unwrap();
            let files = listed.iter().cloned().chain([self.log()]);
            let opened: io::Result<Vec<_>> = files.map(|path| Ok((path.clone(), lines_of(&path)?))).collect();
            match opened {
                Ok(opened) if closed_segments(&self.log()).unwrap() == listed => return opened,
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// What an auditor says.
    fn report(&self) -> Report {
        let mut verifier = Verifier::new(Trust {
            keys: [self.key().public()].into(),
            ..Trust::default()
        });
        for (path, mut lines) in self.opened() {
            verifier.file(&path.display().to_string());
            each(&mut lines, |line| verifier.line(line));
        }
        let kept = kept_file(&self.log());
        verifier.kept_file("checkpoints.jsonl");
        if kept.exists() {
            each_line(&kept, |line| verifier.kept_line(line));
        }
        verifier.finish()
    }

    /// That nothing is wrong, and which lines were removed.
    fn removed(&self) -> Vec<(u64, u64)> {
        let report = self.report();
        assert_eq!(report.findings, []);
        let removed = |note: &Note| match note {
            Note::Removed { from, to, .. } => Some((*from, *to)),
            _ => None,
        };
        report.notes.iter().filter_map(removed).collect()
    }
}

impl Process {
    async fn record(&self, at: u64, blobs: &[&str]) {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = format!("{:032x}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut record = Record::new(id, Decision::Config, at, "peer".to_owned(), "worker".to_owned());
        let named: LargeParts = blobs
            .iter()
            .map(|blob| (Blobs::name(blob.as_bytes()), blob.as_bytes().into()))
            .collect();
        record.basis = Some(Basis {
            ek_roots: named.iter().map(|(name, _)| name.clone()).collect(),
            ..Basis::default()
        });
        self.journal.record(&record, named, ()).await.unwrap().into_inner();
    }

    async fn tend(&self, site: &Site) -> Result<Option<Held>, RetentionError> {
        self.retention.tend(&self.journal, &site.store, NOW).await.into_result()
    }
}

fn each_line(path: &Path, with: impl FnMut(&[u8])) {
    each(&mut lines_of(path).unwrap(), with);
}

fn each(lines: &mut Lines<Bytes>, mut with: impl FnMut(&[u8])) {
    while let Some(Found::Line(line)) = lines.read().unwrap() {
        with(line);
    }
}

/// How often each line says of which segment that it is removed.
fn said(site: &Site) -> BTreeMap<String, usize> {
    let mut said = BTreeMap::new();
    let mut say = |line: &[u8]| {
        let line: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        if let Some(segment) = line["removed"]["segment"].as_str() {
            *said.entry(segment.to_owned()).or_default() += 1;
        }
    };
    for (_, mut lines) in site.opened() {
        each(&mut lines, &mut say);
    }
    said
}

#[tokio::test]
async fn what_is_past_the_rule_goes_with_its_blobs_and_its_checkpoints_stay() {
    let site = Site::new();
    let process = site.written().await;
    assert_eq!((site.segments(), site.removed()), (3, vec![]));
    assert_eq!(process.tend(&site).await.unwrap(), None);
    assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]));
    assert_eq!(site.blobs(&["a", "b", "c"]), ["b", "c"]);
    let mut kept = 0;
    each_line(&kept_file(&site.log()), |_| kept += 1);
    assert_eq!((kept, said(&site).len()), (2, 1));
    // And nothing more, however often it is looked.
    process.tend(&site).await.unwrap();
    assert_eq!((site.segments(), said(&site).len()), (2, 1));
    // What says so goes, too, and is kept, and so on.
    let mut process = process;
    process.retention = Retention::new(
        site.log(),
        Rule {
            age: Some(Duration::ZERO),
            bytes: None,
        },
        vec![process.blobs.clone()],
        |_| Vec::new(),
    );
    for (now, last) in [(NOW, 9), (NOW + 100, 12), (NOW + 200, 16)] {
        let passed = Duration::from_secs(100);
        site.store.forget_expired(Tick { now, passed }).await.unwrap();
        process.record(now - 50, &[]).await;
        process.journal.checkpoint(now - 50).await.unwrap();
        process
            .retention
            .tend(&process.journal, &site.store, now)
            .await
            .into_result()
            .unwrap();
        let removed = site.removed();
        assert!(removed.len() == 1 && removed[0].0 == 1 && removed[0].1 >= last, "{removed:?}");
        assert_eq!(site.segments(), 0);
    }
    assert!(site.blobs(&["a", "b", "c"]).is_empty());
}

#[tokio::test]
async fn a_blob_stays_that_any_file_names_or_that_comes_to_be_named() {
    let site = Site::new();
    let process = site.written().await;
    // Rotated by somebody else, who keeps it as long as he likes.
    fs::write(site.path("attestation.jsonl-20261122.1"), Blobs::name(b"a")).unwrap();
    process.tend(&site).await.unwrap();
    assert_eq!((site.segments(), site.blobs(&["a", "b"])), (2, vec!["a", "b"]));
    // What cannot be read may name it.
    let other = Site::new();
    let process = other.written().await;
    fs::write(other.path("attestation.jsonl-20261122.gz"), "no gzip").unwrap();
    let error = process.tend(&other).await.unwrap_err().to_string();
    assert!(error.contains("attestation.jsonl-20261122.gz"), "{error}");
    assert_eq!(other.blobs(&["a", "b"]), ["a", "b"]);
    fs::remove_file(other.path("attestation.jsonl-20261122.gz")).unwrap();
    // Meanwhile a record has named it, as if it were new.
    process.record(400, &["a"]).await;
    process.tend(&other).await.unwrap();
    assert_eq!((other.segments(), other.blobs(&["a", "b"])), (2, vec!["a", "b"]));
    // What a gateway has written at its start may be named by any record.
    let lasting = Site::new();
    let process = lasting.written().await;
    process.blobs.put(&Blobs::name(b"a"), b"a").unwrap();
    process.tend(&lasting).await.unwrap();
    assert_eq!((lasting.segments(), lasting.blobs(&["a"])), (2, vec!["a"]));
}

#[tokio::test]
async fn a_log_that_was_moved_may_name_any_blob() {
    let site = Site::new();
    let process = site.written().await;
    fs::rename(site.log(), site.path("elsewhere")).unwrap();
    fs::write(site.log(), "").unwrap();
    let error = process.tend(&site).await.unwrap_err();
    assert!(matches!(error, RetentionError::Moved), "{error}");
    assert_eq!(site.blobs(&["a", "b"]), ["a", "b"]);
}

#[tokio::test]
async fn what_somebody_needs_stays_and_it_is_said_who() {
    let site = Site::new();
    drop(site.written().await);
    static AWAY: AtomicBool = AtomicBool::new(true);
    let process = site.open_with(RULE, |last| {
        assert_eq!((last.number, last.at), (Some(3), 50));
        let away = AWAY.load(Ordering::Relaxed);
        away.then(|| "siem".to_owned()).into_iter().collect()
    });
    let held = |by: &[&str]| {
        Some(Held {
            segments: 1,
            by: by.iter().map(|name| (*name).to_owned()).collect(),
            undecided: None,
        })
    };
    for _ in 0..2 {
        assert_eq!(process.tend(&site).await.unwrap(), held(&["siem"]));
    }
    AWAY.store(false, Ordering::Relaxed);
    // A decision that may be in it, or just after it: the next file begins in second 50.
    let thing = Spendable {
        kind: EntryKind::Ticket,
        id: "a".to_owned(),
        limit: 1,
        remember_until: 100,
    };
    let pending = |at| Pending {
        decision: format!("d{at}"),
        at,
    };
    for at in [7, 50] {
        site.store
            .spend_for(thing.clone(), Occasion::Any, pending(at).into())
            .await
            .unwrap();
        // It was made long ago, and is not recorded: it is told, and told no less when it is looked for no more.
        let undecided = Some(pending(at));
        for _ in 0..2 {
            let expected = held(&[]).map(|held| Held {
                undecided: undecided.clone(),
                ..held
            });
            assert_eq!(process.tend(&site).await.unwrap(), expected, "{at}");
        }
        site.store.give_back(&pending(at).decision).await.unwrap();
    }
    assert_eq!((site.segments(), said(&site).len()), (3, 0));
    site.store.spend_for(thing, Occasion::Any, pending(51).into()).await.unwrap();
    assert_eq!(process.tend(&site).await.unwrap(), None);
    assert_eq!(site.segments(), 2);
}

#[tokio::test]
async fn a_segment_that_is_not_as_it_was_written_stays_with_all_that_comes_after_it() {
    for (from, to) in [
        ("\"peer\"", "\"Peer\""),
        ("\"v\":1", "v"),
        ("\n", "\n\n"),
        (",\"chain\"", ",\"chained\""),
    ] {
        let site = Site::new();
        let process = site.written().await;
        // The other end of the thread: nothing is compressed any more.
        process.journal.aside(|| ()).await.unwrap();
        let segment = closed_segments(&site.log()).unwrap().remove(0);
        let mut text = String::new();
        each_line(&segment, |line| text.extend([std::str::from_utf8(line).unwrap(), "\n"]));
        let second = text.find('\n').unwrap() + 1;
        let altered = format!("{}{}", &text[..second], text[second..].replacen(from, to, 1));
        fs::remove_file(&segment).unwrap();
        fs::write(segment.with_extension(""), altered).unwrap();
        let rule = Rule {
            age: Some(Duration::ZERO),
            bytes: None,
        };
        let retention = Retention::new(site.log(), rule, vec![process.blobs.clone()], |_| Vec::new());
        let tended = retention.tend(&process.journal, &site.store, NOW).await;
        let error = tended.into_result().unwrap_err().to_string();
        assert!(error.contains("is not as it was written"), "{error}");
        assert_eq!((site.segments(), said(&site).len()), (3, 0));
    }
}

#[tokio::test]
async fn a_segment_that_is_there_compressed_and_not_stays_until_it_is_one() {
    let site = Site::new();
    let process = site.written().await;
    let zipped = closed_segments(&site.log()).unwrap().remove(0);
    let plain = zipped.with_extension("");
    // Somebody unpacks it, and is not done.
    fs::write(&plain, "{").unwrap();
    assert_eq!(process.tend(&site).await.unwrap(), None);
    assert!(plain.exists() && zipped.exists() && said(&site).is_empty());
    fs::remove_file(plain).unwrap();
    process.tend(&site).await.unwrap();
    assert!(!zipped.exists());
}

#[tokio::test]
async fn a_clock_that_is_ahead_makes_nothing_old_at_once_and_one_that_was_keeps_what_it_wrote() {
    let site = Site::new();
    let process = site.written().await;
    let tick = |now| Tick {
        now,
        passed: Duration::ZERO,
    };
    // The store's time begins at second 60, and goes on from there as fast as the gateway runs.
    site.store.forget_expired(tick(60)).await.unwrap();
    process.tend(&site).await.unwrap();
    assert_eq!(site.segments(), 3);
    let passed = Duration::from_secs(NOW);
    site.store.forget_expired(Tick { now: NOW, passed }).await.unwrap();
    // The clock was set back.
    process
        .retention
        .tend(&process.journal, &site.store, 60)
        .await
        .into_result()
        .unwrap();
    assert_eq!(site.segments(), 3);
    process.tend(&site).await.unwrap();
    assert_eq!(site.segments(), 2);
    // A line of the future, and the segments after it, which no clock can tell the age of.
    let other = Site::new();
    let process = other.open(RULE);
    for at in [NOW + 7, 20, 30] {
        process.record(at, &[]).await;
        process.journal.checkpoint(at).await.unwrap();
    }
    process.tend(&other).await.unwrap();
    assert_eq!(other.segments(), 3);
    let by_size = Rule { bytes: Some(1), ..RULE };
    let retention = Retention::new(other.log(), by_size, Vec::new(), |_| Vec::new());
    retention.tend(&process.journal, &other.store, NOW).await.into_result().unwrap();
    assert_eq!(other.segments(), 0);
}

/// What has such a name, and is no segment.
#[derive(Debug, Clone, Copy)]
enum Odd {
    Folder,
    Fifo,
    NoGzip,
    Empty,
    NoRecord,
    LinkToNothing,
}

impl Odd {
    const ALL: [Self; 6] = [
        Self::Folder,
        Self::Fifo,
        Self::NoGzip,
        Self::Empty,
        Self::NoRecord,
        Self::LinkToNothing,
    ];

    fn put(self, path: &Path) {
        match self {
            Self::Folder => fs::create_dir(path).unwrap(),
            Self::Fifo => rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap(),
            Self::NoGzip => fs::write(path, "no gzip\n").unwrap(),
            Self::Empty => fs::write(path, "").unwrap(),
            Self::NoRecord => fs::write(path, "no record\n").unwrap(),
            Self::LinkToNothing => std::os::unix::fs::symlink("nowhere", path).unwrap(),
        }
    }
}

#[tokio::test]
async fn what_is_called_as_a_segment_and_is_none_is_told_and_keeps_nothing_from_going() {
    for odd in Odd::ALL {
        for end in ["", ".gz"] {
            let site = Site::new();
            let process = site.written().await;
            let path = site.path(&format!("attestation.jsonl.19700101T000000Z-0a0a0a0a-000000000099{end}"));
            odd.put(&path);
            // Whoever compresses is not held up either.
            process.journal.compress_closed();
            let Tended { held, beside } = process.retention.tend(&process.journal, &site.store, NOW).await;
            assert_eq!((held.unwrap(), site.segments()), (None, 2), "{odd:?}{end}");
            let told: Vec<String> = beside.iter().map(ToString::to_string).collect();
            let is_told = told
                .iter()
                .any(|told| told.contains(path.to_str().unwrap()) && told.contains("it stays until you move it elsewhere"));
            assert_eq!(is_told, !matches!(odd, Odd::LinkToNothing), "{odd:?}{end}: {told:?}");
            let why = match (odd, end) {
                (Odd::Folder | Odd::Fifo, _) => "it is no file",
                (Odd::LinkToNothing, _) => "",
                (_, ".gz") => "",
                _ => "it does not begin with a record",
            };
            assert!(told.concat().contains(why), "{odd:?}{end}: {told:?}");
            // What cannot be read may name any blob.
            let names_all = matches!((odd, end), (Odd::NoGzip | Odd::Empty | Odd::NoRecord, ".gz"));
            assert_eq!(
                site.blobs(&["a", "b"]),
                if names_all { vec!["a", "b"] } else { vec!["b"] },
                "{odd:?}{end}"
            );
            let stays = |path: &Path| fs::symlink_metadata(path).is_ok();
            assert!(stays(&path) || stays(&path.with_added_extension("gz")), "{odd:?}{end}");
        }
    }
}

#[tokio::test]
async fn a_segment_that_cannot_be_removed_is_said_once_and_tried_again() {
    let site = Site::new();
    let process = site.written().await;
    let log = site.log();
    let survey = process.journal.aside(move || Survey::of(&log)).await.unwrap().unwrap();
    let due = survey.past(RULE, NOW).remove(0);
    let (path, elsewhere) = (due.segment.path.clone(), site.path("elsewhere"));
    let mut going = Going::new(&process.retention, due, Past::Age);
    for _ in 0..2 {
        assert!(going.advance(&process.journal, NOW).await.unwrap());
    }
    // What has its name cannot be removed as a file.
    fs::rename(&path, &elsewhere).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(going.advance(&process.journal, NOW).await, Err(RetentionError::File(_))));
    fs::remove_dir(&path).unwrap();
    fs::rename(&elsewhere, &path).unwrap();
    assert_eq!(process.tend(&site).await.unwrap(), None);
    assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]));
    assert_eq!(said(&site).into_values().collect::<Vec<_>>(), [1]);
    // The next one is said for itself.
    let by_size = Rule { bytes: Some(1), ..RULE };
    let retention = Retention::new(site.log(), by_size, vec![process.blobs.clone()], |_| Vec::new());
    retention.tend(&process.journal, &site.store, NOW).await.into_result().unwrap();
    assert_eq!(site.removed().len(), 1);
}

#[tokio::test]
async fn a_decision_whose_end_the_store_was_not_told_is_told_it_by_the_log() {
    for (verdict, is_good_again) in [(Some(Verdict::Served), false), (Some(Verdict::Refused), true), (None, false)] {
        let site = Site::new();
        let process = site.written().await;
        let by_size = Rule { age: None, bytes: Some(1) };
        let retention = Retention::new(site.log(), by_size, vec![process.blobs.clone()], |_| Vec::new());
        let decision = "d".repeat(32);
        let pending = Pending {
            decision: decision.clone(),
            at: 7,
        };
        let thing = Spendable {
            kind: EntryKind::Ticket,
            id: "a".to_owned(),
            limit: 1,
            remember_until: 100,
        };
        site.store
            .spend_for(thing.clone(), Occasion::Any, pending.clone().into())
            .await
            .unwrap();
        if let Some(verdict) = verdict {
            let mut record = Record::new(decision, Decision::Config, 260, "peer".to_owned(), "worker".to_owned());
            record.verdict = verdict;
            process.journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
        }
        let tend = async |now| retention.tend(&process.journal, &site.store, now).await.into_result().unwrap();
        // As long as it may be under way, nobody asks.
        let under_way = tend(607).await.unwrap();
        assert_eq!((under_way.undecided, site.segments()), (None, 3), "{verdict:?}");
        assert_eq!(site.store.pending().await.unwrap(), std::slice::from_ref(&pending));
        let over = tend(608).await;
        if verdict.is_some() {
            assert_eq!((over, site.segments()), (None, 0), "{verdict:?}");
        } else {
            // It may be recorded still, by a process that stood still: it is given back by nobody but the next start.
            assert_eq!((over.unwrap().undecided, site.segments()), (Some(pending), 3));
        }
        let again = site.store.spend(thing).await.unwrap();
        assert_eq!(matches!(again, crate::store::Spend::Granted { .. }), is_good_again, "{verdict:?}");
    }
}
