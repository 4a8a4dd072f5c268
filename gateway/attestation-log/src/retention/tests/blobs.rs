//! Blobs that may go, and what is asked before they do.

use super::super::super::delta::{self, DeltaBases, Likened};
use super::*;

fn names(blobs: &[&str]) -> std::collections::BTreeSet<String> {
    blobs.iter().map(|blob| Blobs::name(blob.as_bytes())).collect()
}

#[tokio::test]
async fn lists_only_existing_blobs_of_a_segment() {
    let site = Site::new();
    let process = site.written().await;
    let log = site.log();
    let survey = process.journal.run_exclusive(move || Survey::read(&log)).await.unwrap().unwrap();
    let mut going = Going::new(&process.retention, survey.past(RULE, NOW).remove(0), RetentionCause::Age);
    assert!(going.advance(&process.journal, NOW).await.unwrap());
    // Its lines have hashes of lines, too, which look the same.
    assert_eq!(unnamed_blobs::noted(&site.log()).unwrap(), names(&["a", "b"]));
}

#[tokio::test]
async fn skips_the_blob_scan_without_removable_blobs() {
    let site = Site::new();
    drop(site.written().await);
    fs::write(site.path("attestation.jsonl-20261122.gz"), "no gzip").unwrap();
    let odd = site.path("attestation.jsonl.19700101T000000Z-0a0a0a0a-000000000099");
    fs::write(odd, "no record\n").unwrap();
    let process = site.open(RetentionRule::default());
    assert!(process.retention.keeps_all() && !site.open_with_nothing().keeps_all());
    // Nor what is called as a segment is, if all are kept.
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
}

impl Site {
    fn open_with_nothing(&self) -> Retention {
        Retention::new(self.log(), RULE, Vec::new())
    }
}

#[tokio::test]
async fn moved_log_keeps_blobs_even_without_new_lines() {
    let site = Site::new();
    drop(site.written().await);
    let process = site.open(RetentionRule::default());
    fs::rename(site.log(), site.path("elsewhere")).unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None, "nothing may go");
    unnamed_blobs::note(&site.log(), names(&["gone"])).unwrap();
    let error = process.run_retention(&site).await.unwrap_err();
    assert!(matches!(error, RetentionError::Moved), "{error}");
    assert_eq!(unnamed_blobs::noted(&site.log()).unwrap(), names(&["gone"]));
}

/// The gateway writes it when it reads them, for records that name it without bringing it.
#[tokio::test]
async fn file_of_ek_roots_stays_for_as_long_as_a_record_names_it() {
    let site = Site::new();
    let process = site.open(RULE);
    process.journal.checkpoint(1).await.unwrap();
    for (at, roots) in [(40, "a"), (41, "b"), (150, "b"), (250, "c")] {
        process.blobs.put(&Blobs::name(roots.as_bytes()), roots.as_bytes()).unwrap();
        let mut record = Record::new(format!("{at:032x}"), Decision::Evidence, at, "peer".to_owned(), "worker".to_owned());
        record.basis = Some(Box::new(Basis {
            ek_roots: Some(Blobs::name(roots.as_bytes())),
            ..Basis::default()
        }));
        process.journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
        if at != 40 {
            process.journal.checkpoint(at + 9).await.unwrap();
        }
    }
    process.journal.run_exclusive(|| ()).await.unwrap();
    // A later start reads the folder as it is then.
    drop(process);
    let process = site.open(RULE);
    process.run_retention(&site).await.unwrap();
    assert_eq!((site.segments(), site.blobs(&["a", "b", "c"])), (2, vec!["b", "c"]));
}

/// A note that cannot be read lists no blob, so that all of them stay.
#[tokio::test]
async fn unreadable_list_of_unreferenced_blobs_is_an_error() {
    let site = Site::new();
    let process = site.written().await;
    fs::create_dir(site.path("attestation.unnamed")).unwrap();
    for failed in [unnamed_blobs::noted(&site.log()).map(drop), unnamed_blobs::forget(&site.log())] {
        assert!(
            matches!(failed, Err(RetentionError::Io { .. } | RetentionError::File(_))),
            "{failed:?}"
        );
    }
    drop(process);
    site.open(RetentionRule::default()).run_retention(&site).await.unwrap_err();
    assert_eq!(site.blobs(&["a", "b"]), ["a", "b"]);
}

/// Returns the event log of a machine of one model.
fn event_log(machine: u64) -> Vec<u8> {
    let events = (0..100).map(|number| if number == 7 { machine } else { 0 } + number * 1000);
    events.flat_map(|event| Blobs::name(&event.to_be_bytes()).into_bytes()).collect()
}

/// Returns the text of the whole log.
fn text(site: &Site) -> String {
    let mut text = Vec::new();
    for (_, mut lines) in site.opened() {
        each(&mut lines, |line| text.extend(line));
    }
    String::from_utf8(text).unwrap()
}

impl Process {
    /// Records a boot of this machine, like the gateway does.
    async fn boot(&self, likenesses: &DeltaBases, at: u64, machine: u64) -> Likened {
        let likened = likenesses.liken(event_log(machine), true);
        let mut record = Record::new(format!("{at:032x}"), Decision::Evidence, at, "peer".to_owned(), "worker".to_owned());
        record.basis = Some(Box::new(Basis {
            event_log_sha256: Some(likened.sha256.clone()),
            event_log_difference: likened.difference.clone(),
            ..Basis::default()
        }));
        let blobs = vec![likened.blob.clone()];
        self.journal.record(&record, blobs, ()).await.unwrap().into_inner();
        likened
    }
}

#[tokio::test]
async fn delta_base_outlives_its_deltas_and_is_rewritten() {
    let (site, likenesses) = (Site::new(), DeltaBases::default());
    let process = site.open(RULE);
    let read = |likened: &Likened| delta::event_log(&process.blobs, &likened.sha256, likened.difference.as_ref());
    process.journal.checkpoint(1).await.unwrap();
    let first = process.boot(&likenesses, 40, 1).await;
    process.journal.checkpoint(50).await.unwrap();
    let second = process.boot(&likenesses, 150, 2).await;
    process.journal.checkpoint(160).await.unwrap();
    process.record(250, &["c"]).await;
    process.journal.checkpoint(260).await.unwrap();
    assert_eq!(second.difference.as_ref().map(|difference| &difference.from), Some(&first.sha256));
    // The segment goes that holds the log's own record.
    process.run_retention(&site).await.unwrap();
    assert!(!text(&site).contains(&format!("event_log_sha256\":\"{}", first.sha256)) && text(&site).contains(&first.sha256));
    assert_eq!(read(&second).unwrap(), event_log(2));
    // And that of the one that is like it.
    let age = Some(Duration::from_secs(NOW - 200));
    let rule = RetentionRule { age, ..RULE };
    let later = Retention::new(site.log(), rule, vec![process.blobs.clone()]);
    later
        .run(&process.journal, &site.decisions, Clock::Fixed(NOW))
        .await
        .into_result()
        .unwrap();
    assert!(!process.blobs.has(&first.sha256));
    read(&second).unwrap_err();
    // The next one brings it again.
    let third = process.boot(&likenesses, NOW, 3).await;
    assert_eq!(third.difference.as_ref().map(|difference| &difference.from), Some(&first.sha256));
    assert_eq!(read(&third).unwrap(), event_log(3));
}
