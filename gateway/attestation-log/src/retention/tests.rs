mod blobs;
mod decisions;
mod killed;
mod odd;
mod order;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::super::basis::Basis;
use super::super::blobs::Blobs;
use super::super::chain::Link;
use super::super::journal::{Journal, LargeParts};
use super::super::log_key::LogKey;
use super::super::reading::{Bytes, FileLines, LineContent, lines_of};
use super::super::record::{Decision, Record};
use super::super::removal::RetentionCause;
use super::super::segments::{SegmentLimits, closed_segments};
use super::super::signer::CheckpointSigner;
use super::super::verification::{LogVerifier, Note, VerificationContext, VerificationFinding, VerificationReport};
use super::pass::{Going, Retention};
use super::survey::Survey;
use super::*;
use attest_system::clock::Clock;
use decisions::Decisions;
use site::{NOW, Process, RULE, Site, each, each_line, removal_records};

#[tokio::test]
async fn removes_expired_segments_and_blobs_but_keeps_checkpoints() {
    let site = Site::new();
    let process = site.written().await;
    assert_eq!((site.segments(), site.removed()), (3, vec![]));
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]));
    assert_eq!(site.blobs(&["a", "b", "c"]), ["b", "c"]);
    let mut kept = 0;
    each_line(&kept_file(&site.log()), |_| kept += 1);
    assert_eq!((kept, removal_records(&site).len()), (2, 1));
    // And nothing more, however often it is looked.
    process.run_retention(&site).await.unwrap();
    assert_eq!((site.segments(), removal_records(&site).len()), (2, 1));
    // What says so goes, too, and is kept, and so on.
    let mut process = process;
    process.retention = Retention::new(
        site.log(),
        RetentionRule {
            age: Some(Duration::ZERO),
            bytes: None,
        },
        vec![process.blobs.clone()],
    );
    for (now, last) in [(NOW, 9), (NOW + 100, 12), (NOW + 200, 16)] {
        site.decisions.set_time(now);
        process.record(now - 50, &[]).await;
        process.journal.checkpoint(now - 50).await.unwrap();
        process
            .retention
            .run(&process.journal, &site.decisions, Clock::Fixed(now))
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
async fn keeps_a_blob_that_any_file_references() {
    let site = Site::new();
    let process = site.written().await;
    // Rotated by somebody else, who keeps it as long as he likes.
    fs::write(site.path("attestation.jsonl-20261122.1"), Blobs::name(b"a")).unwrap();
    process.run_retention(&site).await.unwrap();
    assert_eq!((site.segments(), site.blobs(&["a", "b"])), (2, vec!["a", "b"]));
    // What cannot be read may name it.
    let other = Site::new();
    let process = other.written().await;
    fs::write(other.path("attestation.jsonl-20261122.gz"), "no gzip").unwrap();
    let error = process.run_retention(&other).await.unwrap_err().to_string();
    assert!(error.contains("attestation.jsonl-20261122.gz"), "{error}");
    assert_eq!(other.blobs(&["a", "b"]), ["a", "b"]);
    fs::remove_file(other.path("attestation.jsonl-20261122.gz")).unwrap();
    // Meanwhile a record has named it, as if it were new.
    process.record(400, &["a"]).await;
    process.run_retention(&other).await.unwrap();
    assert_eq!((other.segments(), other.blobs(&["a", "b"])), (2, vec!["a", "b"]));
    // What a gateway has written at its start may be named by any record.
    let lasting = Site::new();
    let process = lasting.written().await;
    process.blobs.put(&Blobs::name(b"a"), b"a").unwrap();
    process.run_retention(&lasting).await.unwrap();
    assert_eq!((lasting.segments(), lasting.blobs(&["a"])), (2, vec!["a"]));
}

#[tokio::test]
async fn removes_no_blob_after_the_log_was_moved() {
    let site = Site::new();
    let process = site.written().await;
    fs::rename(site.log(), site.path("elsewhere")).unwrap();
    fs::write(site.log(), "").unwrap();
    let error = process.run_retention(&site).await.unwrap_err();
    assert!(matches!(error, RetentionError::Moved), "{error}");
    assert_eq!(site.blobs(&["a", "b"]), ["a", "b"]);
}

#[tokio::test]
async fn keeps_segments_that_a_pending_decision_needs() {
    let site = Site::new();
    drop(site.written().await);
    let process = site.open(RULE);
    site.decisions.set_time(NOW);
    // A decision that may be in it, or just after it: the next file begins in second 50.
    let pending = |at| PendingDecision { id: format!("d{at}"), at };
    for at in [7, 50] {
        site.decisions.decide(&pending(at));
        // It was made long ago, and is not recorded: it is told, and told no less when it is looked for no more.
        let held = Some(RetainedSegments {
            segments: 1,
            undecided: Some(pending(at)),
        });
        for _ in 0..2 {
            assert_eq!(process.run_retention(&site).await.unwrap(), held, "{at}");
        }
        site.decisions.settle(&pending(at).id);
    }
    assert_eq!((site.segments(), removal_records(&site).len()), (3, 0));
    site.decisions.decide(&pending(51));
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!(site.segments(), 2);
}

#[tokio::test]
async fn wrong_clock_does_not_expire_segments_early() {
    let site = Site::new();
    let process = site.written().await;
    // The trusted time goes on from second 60 as fast as the gateway runs.
    site.decisions.set_time(60);
    process.run_retention(&site).await.unwrap();
    assert_eq!(site.segments(), 3);
    site.decisions.set_time(NOW);
    // The clock was set back.
    process
        .retention
        .run(&process.journal, &site.decisions, Clock::Fixed(60))
        .await
        .into_result()
        .unwrap();
    assert_eq!(site.segments(), 3);
    process.run_retention(&site).await.unwrap();
    assert_eq!(site.segments(), 2);
    // A line of the future, and the segments after it, which no clock can tell the age of.
    let other = Site::new();
    let process = other.open(RULE);
    for at in [NOW + 7, 20, 30] {
        process.record(at, &[]).await;
        process.journal.checkpoint(at).await.unwrap();
    }
    process.run_retention(&other).await.unwrap();
    assert_eq!(other.segments(), 3);
    let by_size = RetentionRule { bytes: Some(1), ..RULE };
    let retention = Retention::new(other.log(), by_size, Vec::new());
    retention
        .run(&process.journal, &other.decisions, Clock::Fixed(NOW))
        .await
        .into_result()
        .unwrap();
    assert_eq!(other.segments(), 0);
}

#[tokio::test]
async fn failed_segment_removal_is_retried_and_recorded_once() {
    let site = Site::new();
    let process = site.written().await;
    let log = site.log();
    let survey = process.journal.run_exclusive(move || Survey::read(&log)).await.unwrap().unwrap();
    let due = survey.past(RULE, NOW).remove(0);
    let (path, elsewhere) = (due.segment.path.clone(), site.path("elsewhere"));
    let mut going = Going::new(&process.retention, due, RetentionCause::Age);
    for _ in 0..2 {
        assert!(going.advance(&process.journal, NOW).await.unwrap());
    }
    // What has its name cannot be removed as a file.
    fs::rename(&path, &elsewhere).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(going.advance(&process.journal, NOW).await, Err(RetentionError::File(_))));
    fs::remove_dir(&path).unwrap();
    fs::rename(&elsewhere, &path).unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]));
    assert_eq!(removal_records(&site).into_values().collect::<Vec<_>>(), [1]);
    // The next one is said for itself.
    let by_size = RetentionRule { bytes: Some(1), ..RULE };
    let retention = Retention::new(site.log(), by_size, vec![process.blobs.clone()]);
    retention
        .run(&process.journal, &site.decisions, Clock::Fixed(NOW))
        .await
        .into_result()
        .unwrap();
    assert_eq!(site.removed().len(), 1);
}

#[tokio::test]
async fn reports_segments_retained_by_an_overdue_pending_decision() {
    let site = Site::new();
    let process = site.written().await;
    let by_size = RetentionRule { age: None, bytes: Some(1) };
    let retention = Retention::new(site.log(), by_size, vec![process.blobs.clone()]);
    let pending = PendingDecision { id: "d".repeat(32), at: 7 };
    site.decisions.decide(&pending);
    let tend = async |now| {
        let tended = retention.run(&process.journal, &site.decisions, Clock::Fixed(now)).await;
        tended.into_result().unwrap()
    };
    // As long as it may be under way, nobody asks.
    let under_way = tend(607).await.unwrap();
    assert_eq!((under_way.undecided, site.segments()), (None, 3));
    assert_eq!(tend(608).await.unwrap().undecided.as_ref(), Some(&pending));
    assert_eq!(site.segments(), 3);
    site.decisions.settle(&pending.id);
    assert_eq!((tend(608).await, site.segments()), (None, 0));
}
