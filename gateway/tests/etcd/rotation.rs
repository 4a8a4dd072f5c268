//! A token's scheduled rotation belongs to one gateway: that of the machine with the token's folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use attest::UnixTime;
use attest_gateway::credentials::tokens::{Draft, RotateOptions, Rotation, RotationResult, create, rotate, tick};
use attest_store::{Embedded, EntryKind, Store};

use super::*;
use crate::support::Gateway;

const START: u64 = 1_790_000_000;
const DAY: u64 = 86_400;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn draft(into: PathBuf) -> Draft {
    Draft {
        name: "fleet".to_owned(),
        pools: BTreeSet::from(["worker".to_owned()]),
        lifetime: 61 * DAY,
        uses: None,
        again: None,
        networks: Vec::new(),
        rotation: Some(Rotation {
            every: 30 * DAY,
            grace: DAY,
            into,
            url: "https://localhost:22623".parse().unwrap(),
            replica: None,
        }),
    }
}

async fn done(store: &dyn Store, ca: &Path, now: u64) -> Option<RotationResult> {
    tick(store, ca, at(now)).await.unwrap().pop().map(|(_, done)| done)
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_scheduled_tokens_rotate_where_their_folder_is() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let settings = Gateway::init();
    let ca = settings.path("tls/mcs-ca.crt");
    let into = tempfile::tempdir().unwrap();
    let embedded = Embedded::open(&site.states.path().join("embedded.db")).unwrap();
    create(&embedded, draft(into.path().to_owned()), &ca, at(START)).await.unwrap();
    for token in embedded.list(EntryKind::Token).await.unwrap() {
        one.put(EntryKind::Token, token).await.unwrap();
    }
    // As it is on a machine that has the folder, and not the token.
    let file = into.path().join("fleet.token");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let due = START + 30 * DAY;
    for now in [START + 300, due] {
        assert!(done(&two, &ca, now).await.is_none());
    }
    assert!(
        matches!(done(&two, &ca, due + 600).await, Some(RotationResult::Overdue)),
        "it says so"
    );
    assert!(!file.exists(), "and has written nothing");
    std::fs::write(&file, &text).unwrap();
    assert!(done(&one, &ca, START + 300).await.is_none());
    assert!(matches!(done(&one, &ca, due).await, Some(RotationResult::Rotated)));
    assert_ne!(std::fs::read_to_string(&file).unwrap(), text);
    // From then on it is that one's.
    std::fs::remove_file(&file).unwrap();
    assert!(done(&two, &ca, due + 300).await.is_none());
    assert!(matches!(done(&one, &ca, due + 300).await, Some(RotationResult::Rotated)));
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduled_tokens_rotate_where_their_folder_is() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let settings = Gateway::init();
    let ca = settings.path("tls/mcs-ca.crt");
    let into = tempfile::tempdir().unwrap();
    let token = || std::fs::read_to_string(into.path().join("fleet.token")).ok();
    create(&one, draft(into.path().to_owned()), &ca, at(START))
        .await
        .unwrap()
        .published
        .unwrap();
    // As it is on the other's machine.
    std::fs::remove_file(into.path().join("fleet.token")).unwrap();
    assert!(done(&two, &ca, START + 300).await.is_none());
    assert_eq!(token(), None, "and it has written nothing");
    assert!(
        matches!(done(&one, &ca, START + 300).await, Some(RotationResult::Rotated)),
        "a crash of its own"
    );
    let first = token();
    let due = START + 300 + 30 * DAY;
    assert!(done(&two, &ca, due).await.is_none());
    assert!(
        matches!(done(&two, &ca, due + 600).await, Some(RotationResult::Overdue)),
        "it says so"
    );
    assert_eq!(token(), first);
    assert!(matches!(done(&one, &ca, due).await, Some(RotationResult::Rotated)));
    assert_ne!(token(), first);
    // The first one's machine is lost.
    rotate(&two, "fleet", RotateOptions::default(), &ca, at(due + DAY)).await.unwrap();
    let due = due + 31 * DAY;
    assert!(done(&one, &ca, due).await.is_none());
    assert!(matches!(done(&two, &ca, due).await, Some(RotationResult::Rotated)));
}
