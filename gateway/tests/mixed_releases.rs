//! Stores of a newer release that stores additional data for questions about new values and for histories of boots.

use std::collections::BTreeMap;

use attest_store::{EntryKind, Store, StoreEntry};
use serde_json::Value;

use crate::log_builder::{LogBuilder, SHA256};
use crate::newer_release::{newer, pairs, put, refuses};
use crate::support::kubelet::embedded;
use crate::support::node::Node;
use crate::support::{Case, Gateway, POOL, next_boot, tpm};
use crate::waiting::{SECTION, boots, listed, strict, updated};

/// Returns the stored histories of TPMs, by id.
async fn history(gateway: &Gateway) -> BTreeMap<String, String> {
    let entries = embedded(gateway).list(EntryKind::Clock).await.unwrap().into_iter();
    entries.map(|entry| (entry.id, entry.value)).collect()
}

fn after(case: &Case, resets: u32, firmware: u64) -> Case {
    next_boot(case).but(|next| {
        next.quoted.clock.reset_count = resets;
        next.quoted.firmware_version = firmware;
    })
}

fn alerts(gateway: &Gateway) -> String {
    let record: Option<Value> = gateway.records().into_iter().rfind(|record| record["decision"] == "evidence");
    record.unwrap().get("alerts").map(ToString::to_string).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_checks_counters_despite_unknown_history_entries() {
    let mut gateway = Gateway::init();
    let rules = "[history]\ncounters_back = \"refuse\"\nfirmware_back = \"refuse\"\nanother_log = \"refuse\"\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", &format!("\n{rules}\n[kubelet]\n"));
    let case = tpm();
    let id = format!("tpm:{}", gateway.endorse(&case, &[]));
    gateway.run();
    gateway.attest(after(&case, 8, 5), None).await.ticket();
    assert_eq!(alerts(&gateway), "");
    let known = history(&gateway).await;
    assert_eq!(known.len(), 2, "{known:?}");

    // The machine has attested meanwhile where nothing else is kept: that is no finding, and goes on from there.
    let store = embedded(&gateway);
    let later = StoreEntry {
        id: id.clone(),
        value: known[&id].replace("\"reset_count\":8", "\"reset_count\":20"),
    };
    assert_ne!(later.value, known[&id]);
    store.put(EntryKind::Clock, later).await.unwrap();
    gateway.attest(after(&case, 21, 5), None).await.ticket();
    assert_eq!(alerts(&gateway), "");
    // What a newer release writes into the entry next to the counters is not known here; the counters are.
    for (beside, value) in history(&gateway).await.into_iter().filter(|(beside, _)| *beside != id) {
        let value = match newer(&value).into_iter().next() {
            Some(newer) => newer.replace("\"boot\"", "\"boot_of_2027\""),
            None => format!("v2:{value}"),
        };
        store.put(EntryKind::Clock, StoreEntry { id: beside, value }).await.unwrap();
    }
    gateway.attest(after(&case, 22, 4), None).await.ticket();
    gateway
        .attest(after(&case, 21, 4), None)
        .await
        .refused(403, "tpm-counters-decreased");
    let listed = gateway.command(&["machines", "list"]);
    assert_eq!(listed.matches("tpm:").count(), 1, "{listed}");
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.command(&["log", "audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_waiting_entries_of_newer_releases_untouched() {
    let mut gateway = Gateway::init();
    let mut nodes = [Node::new(), Node::new(), Node::new()];
    for node in &nodes {
        gateway.command(&["ek", "add", &node.ek()]);
    }
    gateway.run();
    let (known, new) = (LogBuilder::typical(&[SHA256]), updated("loader 2"));
    strict(&mut gateway, &mut nodes[0], &known, SECTION).await;
    for node in &mut nodes[1..] {
        boots(&gateway, node, &new).await.refused(503, "answer-pending");
    }
    let refused = updated("loader 3");
    boots(&gateway, &mut nodes[2], &refused).await.refused(503, "answer-pending");
    let questions = listed(&gateway);
    let of_machine = |question: &&Value| question["waiting"].to_string().contains(&nodes[2].ek());
    let question = questions.iter().find(of_machine).unwrap()["id"].as_str().unwrap();
    gateway.command(&["waiting", "refuse", question, "--reason", "no"]);
    let file = gateway.path("state/gateway.db");
    let all = pairs(&file, "entry/waiting/");
    for what in ["question:", "machine:", "asked:", "answer:"] {
        let (key, text) = all.iter().find(|(key, _)| key.contains(what)).unwrap();
        let mut document: Value = serde_json::from_str(text).unwrap();
        let value = document["value"].as_str().unwrap().to_owned();
        document["value"] = value.replacen('{', "{\"later\":1,", 1).into();
        let written = document.to_string();
        put(&file, key, &written);
        refuses(&gateway, &["waiting", "list"], &written);
        // Nobody is told a wrong thing of what is new, and whose boot is known is let in all the same.
        let answer = boots(&gateway, &mut nodes[1], &updated("loader 4")).await;
        assert_eq!(answer.status, 503, "{what}: {}", String::from_utf8_lossy(&answer.body));
        assert_eq!(boots(&gateway, &mut nodes[0], &known).await.status, 200, "{what}");
        assert_eq!(pairs(&file, key), [(key.clone(), written)]);
        put(&file, key, text);
    }
    assert_eq!(pairs(&file, "entry/waiting/"), all, "nothing was written meanwhile");
    boots(&gateway, &mut nodes[1], &new).await.refused(503, "answer-pending");
}
