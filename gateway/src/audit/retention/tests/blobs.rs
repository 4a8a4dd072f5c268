//! Blobs that may go, and what is asked before they do.

use super::*;

fn names(blobs: &[&str]) -> std::collections::BTreeSet<String> {
    blobs.iter().map(|blob| Blobs::name(blob.as_bytes())).collect()
}

#[tokio::test]
async fn what_is_noted_of_a_segment_are_blobs_that_are_there() {
    let site = Site::new();
    let process = site.written().await;
    let log = site.log();
    let survey = process.journal.aside(move || Survey::of(&log)).await.unwrap().unwrap();
    let mut going = Going::new(&process.retention, survey.past(RULE, NOW).remove(0), Past::Age);
    assert!(going.advance(&process.journal, NOW).await.unwrap());
    // Its lines have hashes of lines, too, which look the same.
    assert_eq!(unnamed::noted(&site.log()).unwrap(), names(&["a", "b"]));
}

#[tokio::test]
async fn nothing_is_asked_for_the_sake_of_blobs_if_none_may_go() {
    let site = Site::new();
    drop(site.written().await);
    fs::write(site.path("attestation.jsonl-20261122.gz"), "no gzip").unwrap();
    let odd = site.path("attestation.jsonl.19700101T000000Z-0a0a0a0a-000000000099");
    fs::write(odd, "no record\n").unwrap();
    let process = site.open(Rule::default());
    assert!(process.retention.keeps_all() && !site.open_with_nothing().keeps_all());
    // Nor what is called as a segment is, if all are kept.
    assert_eq!(process.tend(&site).await.unwrap(), None);
}

impl Site {
    fn open_with_nothing(&self) -> Retention {
        Retention::new(self.log(), RULE, Vec::new(), |_| Vec::new())
    }
}

#[tokio::test]
async fn a_log_that_was_moved_may_name_any_blob_also_if_nothing_is_written_to_it() {
    let site = Site::new();
    drop(site.written().await);
    let process = site.open(Rule::default());
    fs::rename(site.log(), site.path("elsewhere")).unwrap();
    assert_eq!(process.tend(&site).await.unwrap(), None, "nothing may go");
    unnamed::note(&site.log(), names(&["gone"])).unwrap();
    let error = process.tend(&site).await.unwrap_err();
    assert!(matches!(error, RetentionError::Moved), "{error}");
    assert_eq!(unnamed::noted(&site.log()).unwrap(), names(&["gone"]));
}

/// Whoever cannot read what was noted knows of no blob that it may go.
#[tokio::test]
async fn what_was_noted_and_cannot_be_read_is_told() {
    let site = Site::new();
    let process = site.written().await;
    fs::create_dir(site.path("attestation.unnamed")).unwrap();
    for failed in [unnamed::noted(&site.log()).map(drop), unnamed::forget(&site.log())] {
        assert!(
            matches!(failed, Err(RetentionError::Io { .. } | RetentionError::File(_))),
            "{failed:?}"
        );
    }
    drop(process);
    site.open(Rule::default()).tend(&site).await.unwrap_err();
    assert_eq!(site.blobs(&["a", "b"]), ["a", "b"]);
}
