//! Segments go in their order, each by what is known of it, and by nothing that is known of another.

#![allow(clippy::indexing_slicing, reason = "a test may panic")]

use super::*;

/// All but the log may go.
const ALL: RetentionRule = RetentionRule {
    age: Some(Duration::ZERO),
    bytes: None,
};
const BY_SIZE: RetentionRule = RetentionRule { age: None, bytes: Some(1) };

fn with(process: &mut Process, site: &Site, rule: RetentionRule) {
    process.retention = Retention::new(site.log(), rule, vec![process.blobs.clone()]);
}

fn pending(id: &str, at: u64) -> PendingDecision {
    PendingDecision { id: id.to_owned(), at }
}

/// Returns the bytes of the log, with its closed segments.
fn total_bytes(site: &Site) -> u64 {
    let files = closed_segments(&site.log()).unwrap().into_iter().chain([site.log()]);
    files.map(|file| fs::metadata(file).unwrap().len()).sum()
}

/// Returns the end of each segment, and whether it exists twice.
fn segment_ends(site: &Site) -> Vec<(u64, bool)> {
    let survey = Survey::read(&site.log()).unwrap();
    let due = survey.past(BY_SIZE, NOW);
    due.iter().map(|due| (due.segment.ended, due.segment.twice)).collect()
}

#[tokio::test]
async fn reads_a_needed_segment_again_only_before_removal() {
    let site = Site::new();
    let mut process = site.written().await;
    with(&mut process, &site, ALL);
    site.decisions.set_time(NOW);
    let needs_the_second = pending("second", 155);
    site.decisions.decide(&needs_the_second);
    // The first one goes, and two stay.
    let held = RetainedSegments {
        segments: 2,
        undecided: Some(needs_the_second.clone()),
    };
    assert_eq!(process.run_retention(&site).await.unwrap(), Some(held.clone()));
    assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]));
    // It was read, and is not read again as long as it stays.
    process.journal.run_exclusive(|| ()).await.unwrap();
    let second = closed_segments(&site.log()).unwrap().remove(0);
    let mut whole = fs::read(&second).unwrap();
    let sum = whole.len() - 5;
    whole[sum] ^= 1;
    fs::write(&second, &whole).unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), Some(held));
    // It is before it goes.
    site.decisions.settle(&needs_the_second.id);
    process.run_retention(&site).await.unwrap_err();
    assert!(second.exists() && site.segments() == 2);
}

#[tokio::test]
async fn segments_after_a_retained_one_are_kept() {
    // There twice, and all of them are past the rule.
    let site = Site::new();
    let mut process = site.written().await;
    with(&mut process, &site, ALL);
    process.journal.run_exclusive(|| ()).await.unwrap();
    let zipped = closed_segments(&site.log()).unwrap().remove(0);
    fs::write(zipped.with_extension(""), "{").unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!(removal_records(&site).len(), 0);
    // A line in it is of the future, and none of what begins a file.
    let site = Site::new();
    let process = site.open(RULE);
    process.journal.checkpoint(1).await.unwrap();
    process.record(NOW + 7, &[]).await;
    for at in [20, 30, 40] {
        process.journal.checkpoint(at).await.unwrap();
        process.record(at, &[]).await;
    }
    process.journal.checkpoint(50).await.unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!(removal_records(&site).len(), 0);
}

#[tokio::test]
async fn segment_end_time_comes_from_its_neighbours() {
    let site = Site::new();
    let process = site.open(BY_SIZE);
    process.journal.checkpoint(1).await.unwrap();
    // The clock was ahead, and then set back.
    for at in [80, 20, 90] {
        process.record(at, &[]).await;
        process.journal.checkpoint(at).await.unwrap();
    }
    process.journal.run_exclusive(|| ()).await.unwrap();
    assert_eq!(segment_ends(&site), [(80, false), (80, false), (90, false)]);
    // There compressed and not, it is one segment. By its name it is the last.
    let zipped = closed_segments(&site.log()).unwrap().remove(2);
    let plain = zipped.with_extension("");
    let mut text = String::new();
    each_line(&zipped, |line| text.extend([std::str::from_utf8(line).unwrap(), "\n"]));
    fs::write(&plain, text).unwrap();
    assert_eq!(segment_ends(&site), [(80, false), (80, true), (90, false)]);
}

#[tokio::test]
async fn pending_decision_keeps_its_segment_despite_clock_changes() {
    let site = Site::new();
    let mut process = site.open(BY_SIZE);
    process.journal.checkpoint(1).await.unwrap();
    for (at, until) in [(80, 80), (20, 30), (120, 100), (130, 130)] {
        process.record(at, &[]).await;
        process.journal.checkpoint(until).await.unwrap();
    }
    // Second 75: the second one was written when the clock was set back from 80.
    let (first, second) = (pending("first", 75), pending("second", 76));
    process.journal.run_exclusive(|| ()).await.unwrap();
    let all_but_one = RetentionRule {
        age: None,
        bytes: Some(total_bytes(&site) - 1),
    };
    with(&mut process, &site, all_but_one);
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert_eq!(removal_records(&site).len(), 1);
    with(&mut process, &site, BY_SIZE);
    for pending in [&second, &first] {
        site.decisions.decide(pending);
    }
    let held = process.run_retention(&site).await.unwrap().unwrap();
    assert_eq!(
        (held.undecided, removal_records(&site).len()),
        (Some(first.clone()), 1),
        "the oldest is told"
    );
    for pending in [&second, &first] {
        site.decisions.settle(&pending.id);
    }
    // Second 110: a line of the third one is younger than the file after it.
    site.decisions.decide(&pending("third", 110));
    let held = process.run_retention(&site).await.unwrap().unwrap();
    assert_eq!((held.undecided, removal_records(&site).len()), (Some(pending("third", 110)), 2));
}

#[tokio::test]
async fn size_limit_includes_the_current_log() {
    let site = Site::new();
    let _process = site.written().await;
    let total = total_bytes(&site);
    for (bytes, count) in [(total, 0), (total - 1, 1)] {
        let rule = RetentionRule {
            age: None,
            bytes: Some(bytes),
        };
        assert_eq!(Survey::read(&site.log()).unwrap().past(rule, NOW).len(), count);
    }
}

#[tokio::test]
async fn segment_renamed_by_others_is_not_removed() {
    let site = Site::new();
    let process = site.written().await;
    let rotated = site.path("attestation.jsonl.1.gz");
    fs::rename(closed_segments(&site.log()).unwrap().remove(0), &rotated).unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert!(rotated.exists() && removal_records(&site).is_empty());
}

#[tokio::test]
async fn plain_and_compressed_file_count_as_one_segment() {
    let site = Site::new();
    let _process = site.written().await;
    let zipped = closed_segments(&site.log()).unwrap().remove(0);
    let mut lines = Vec::new();
    each_line(&zipped, |line| lines.push(String::from_utf8(line.to_vec()).unwrap()));
    // It begins otherwise, and as if it were of before.
    let altered = lines[1].replace("\"at\":40", "\"at\":5");
    assert_ne!(altered, lines[1]);
    let plain = zipped.with_extension("");
    fs::write(&plain, format!("{altered}\n")).unwrap();
    assert_eq!(segment_ends(&site), [(50, true), (160, false), (260, false)]);
    let survey = Survey::read(&site.log()).unwrap();
    let length = |file: &Path| fs::metadata(file).unwrap().len();
    assert_eq!(survey.past(BY_SIZE, NOW)[0].segment.bytes, length(&zipped) + length(&plain));
}

#[tokio::test]
async fn reports_why_each_file_is_no_segment() {
    let site = Site::new();
    let _process = site.written().await;
    let name = |end: &str| site.path(&format!("attestation.jsonl.19700101T000000Z-0a0a0a0a-{end}"));
    let (damaged, other) = (name("000000000097.gz"), name("000000000098"));
    fs::write(&damaged, "no gzip\n").unwrap();
    fs::write(&other, "no record\n").unwrap();
    let told: Vec<String> = Survey::read(&site.log()).unwrap().odd.iter().map(ToString::to_string).collect();
    let of = |path: &Path| told.iter().find(|told| told.contains(&format!("{} ", path.display()))).unwrap();
    assert_eq!(told.len(), 2);
    assert!(of(&other).contains("it does not begin with a record"), "{told:?}");
    assert!(!of(&damaged).contains("it does not begin with a record"), "{told:?}");
}
