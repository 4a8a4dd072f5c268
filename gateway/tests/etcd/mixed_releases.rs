//! Gateways of two releases on one store, while machines wait for approval: the older one does not know of approvals. A pool without their
//! section is all that it would read. It then behaves like this release with such a pool, and does not read the entries in the store.

use std::collections::BTreeMap;
use std::fs;

use attest_store::{EntryKind, Store};

use super::gateways::gateway;
use super::*;
use crate::log_builder::{LogBuilder, SHA256};
use crate::support::node::Node;
use crate::support::{Gateway, POOL};
use crate::waiting::{SECTION, boots, pending, question, strict, updated};

/// Returns the store's entries of this kind, by id.
async fn entries(site: &Site, kind: EntryKind) -> BTreeMap<String, String> {
    let below = EtcdSettings {
        prefix: "b".to_owned(),
        ..site.settings()
    };
    let store = site.open_by("look", &below).unwrap();
    let entries = store.list(kind).await.unwrap().into_iter();
    entries.map(|entry| (entry.id, entry.value)).collect()
}

/// Removes the section that an earlier release does not read.
fn knows_nothing_of_it(gateway: &Gateway) {
    gateway.edit_pool(POOL, SECTION, "");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_gateway_leaves_pending_approvals_untouched() {
    let site = Site::start();
    let (mut newer, mut older) = (gateway(&site, ""), gateway(&site, ""));
    let (mut first, mut second) = (Node::new(), Node::new());
    for node in [&first, &second] {
        newer.command(&["ek", "add", &node.ek()]);
    }
    let (known, new) = (LogBuilder::typical(&[SHA256]), updated("loader 2"));
    strict(&mut newer, &mut first, &known, SECTION).await;
    strict(&mut older, &mut first, &known, SECTION).await;
    knows_nothing_of_it(&older);
    boots(&newer, &mut first, &new).await.refused(503, "answer-pending");
    let asked = entries(&site, EntryKind::Waiting).await;
    assert_eq!(asked.len(), 2, "a question, and a machine: {asked:?}");

    // There nobody waits, is asked about or forgotten; who has booted what is known is let in.
    for node in [&mut first, &mut second] {
        boots(&older, node, &new).await.refused(403, "boot-not-accepted");
    }
    assert_eq!(boots(&older, &mut first, &known).await.status, 200);
    older.command(&["token", "create", "--pool", POOL, "--name", "rack7"]);
    let listed = older.command(&["machines", "list", "--state", "trusted"]);
    assert_eq!(listed.matches("tpm:").count(), 1, "only one has attested: {listed}");
    older.terminate();
    assert!(older.wait().success());
    older.run();
    assert_eq!(entries(&site, EntryKind::Waiting).await, asked);
    assert_eq!(pending(&newer).len(), 1);

    // The machine waits on, where that is known; what is accepted holds at both, once both have the file.
    boots(&newer, &mut first, &new).await.refused(503, "answer-pending");
    assert_eq!(entries(&site, EntryKind::Waiting).await, asked, "since when it was");
    newer.command(&["waiting", "accept", &question(&newer), "--set", "update.json"]);
    newer.line(|line| line.contains("pool worker: serving a new state"));
    boots(&older, &mut first, &new).await.refused(403, "boot-not-accepted");
    let file = format!("pools/{POOL}/reference-values/update.json");
    fs::copy(newer.path(&file), older.path(&file)).unwrap();
    older.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(boots(&older, &mut first, &new).await.status, 200);
    assert_eq!(boots(&newer, &mut first, &new).await.status, 200);
    let left = entries(&site, EntryKind::Waiting).await;
    assert!(left.keys().all(|id| !id.starts_with("machine:")), "{left:?}");
}
