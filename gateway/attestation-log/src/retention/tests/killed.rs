//! Kills at every step, after which the removal is done exactly once.

use super::*;

#[tokio::test]
async fn removal_killed_at_any_step_completes_on_restart() {
    for steps in 0..4 {
        let site = Site::new();
        let process = site.written().await;
        let log = site.log();
        let survey = process.journal.run_exclusive(move || Survey::read(&log)).await.unwrap().unwrap();
        let due = survey.past(RULE, NOW).remove(0);
        let mut going = Going::new(&process.retention, due, RetentionCause::Age);
        for _ in 0..steps {
            assert!(going.advance(&process.journal, NOW).await.unwrap());
        }
        assert_eq!(site.segments(), if steps < 3 { 3 } else { 2 }, "{steps}");
        // Nothing is missing, whoever looks now.
        assert_eq!(site.removed(), if steps < 3 { vec![] } else { vec![(1, 3)] }, "{steps}");
        assert_eq!(site.blobs(&["a", "b"]), ["a", "b"]);
        drop(process);
        site.open(RULE).run_retention(&site).await.unwrap();
        assert_eq!((site.segments(), site.removed()), (2, vec![(1, 3)]), "{steps}");
        assert_eq!(site.blobs(&["a", "b"]), ["b"], "{steps}");
        let mut kept = Vec::new();
        each_line(&kept_file(&site.log()), |line| {
            kept.push(super::super::super::chain::link_of(line).unwrap().unwrap())
        });
        let numbers: Vec<u64> = kept.iter().map(|link: &Link| link.number).collect();
        assert_eq!(numbers, [1, 3], "{steps}: once");
        // Said, and killed before it was done, it is said again.
        assert_eq!(
            removal_records(&site).into_values().collect::<Vec<_>>(),
            [if steps == 2 { 2 } else { 1 }],
            "{steps}"
        );
        assert!(!site.path("attestation.unnamed").exists());
    }
}

#[tokio::test]
async fn blob_removal_resumes_on_restart_under_any_rule() {
    let site = Site::new();
    let process = site.written().await;
    unnamed_blobs::note(&site.log(), ["a", "c", "gone"].map(|name| Blobs::name(name.as_bytes())).into()).unwrap();
    drop(process);
    fs::remove_file(&closed_segments(&site.log()).unwrap()[0]).unwrap();
    site.open(RetentionRule::default()).run_retention(&site).await.unwrap();
    assert_eq!((site.blobs(&["a", "b", "c"]), site.segments()), (vec!["b", "c"], 2));
    // By hand, and no line says so.
    assert!(matches!(
        site.report().findings[..],
        [VerificationFinding::NoBeginning { first: 4, .. }]
    ));
}
