//! Commands that change enrolments, revocations, and keys.

use std::fs;

use serde_json::json;

use super::*;
use crate::support::{POOL, digest, tpm};

/// Returns the changes of a verb's acts, oldest first: kind, id, and whether the object existed before and after.
fn done(acts: &[Value]) -> Vec<(&str, &str, bool, bool)> {
    let things = acts.iter().flat_map(|act| act["admin"]["things"].as_array().unwrap());
    things
        .map(|thing| {
            let there = |member: &str| !thing[member].is_null();
            (
                thing["kind"].as_str().unwrap(),
                thing["id"].as_str().unwrap(),
                there("before"),
                there("after"),
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_ek_commands() {
    let gateway = Gateway::start();
    let ek = digest(&tpm());
    let identity = format!("tpm:{ek}");
    gateway.command(&["ek", "add", &ek, "--name", "worker-7", "--pool", POOL]);
    let added = gateway.wait_for_acts(1, "ek.add");
    assert_eq!(
        done(&added),
        [
            ("ek", ek.as_str(), false, true),
            ("name-of", &identity, false, true),
            ("name", "worker-7", false, true)
        ]
    );
    let record = &added[0]["admin"]["things"][0]["after"];
    assert_eq!((&record["name"], &record["pools"]), (&json!("worker-7"), &json!([POOL])));
    gateway.command(&["ek", "remove", &ek]);
    let removed = gateway.wait_for_acts(1, "ek.remove");
    assert_eq!(done(&removed), [("ek", ek.as_str(), true, true)]);
    let thing = &removed[0]["admin"]["things"][0];
    assert_eq!(thing["before"], *record);
    assert!(thing["after"]["removed"].is_u64());
    gateway.command(&["ek", "remove", "--leave-to-roots", &ek]);
    assert_eq!(done(&gateway.wait_for_acts(1, "ek.forget")), [("ek", ek.as_str(), true, false)]);
    for arguments in [&["ek", "remove", &ek][..], &["ek", "remove", "--leave-to-roots", &ek]] {
        assert!(!gateway.try_command(arguments).status.success());
    }
    for (count, verb) in [(2, "ek.remove"), (2, "ek.forget")] {
        let refused = gateway.wait_for_acts(count, verb).remove(1);
        assert!(
            refused["admin"]["refused"]
                .as_str()
                .unwrap()
                .starts_with(&format!("EK {ek} is not on the allowlist")),
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_node_commands() {
    let gateway = Gateway::init();
    let ek = digest(&tpm());
    let identity = format!("tpm:{ek}");
    gateway.command(&["ek", "add", &ek, "--name", "worker-7"]);
    let instance = "aws:123456789012/i-0123456789abcdef0";
    let claimed = json!({"holder": format!("claimant:{}", "0".repeat(64)), "at": 1, "peer": "192.0.2.1"});
    let entry = StoreEntry {
        id: instance.to_owned(),
        value: claimed.to_string(),
    };
    embedded(&gateway).put(attest_store::EntryKind::Instance, entry).await.unwrap();
    let mut gateway = gateway;
    gateway.run();
    gateway.command(&["node", "revoke", "worker-7", "--reason", "disk sold"]);
    let revoked = gateway.wait_for_acts(1, "node.revoke");
    assert_eq!(
        done(&revoked),
        [("revoked", identity.as_str(), false, true), ("revoked", "worker-7", false, true)]
    );
    assert_eq!(revoked[0]["admin"]["things"][0]["after"]["reason"], "disk sold");
    gateway.command(&["node", "restore", "worker-7"]);
    let restored = gateway.wait_for_acts(1, "node.restore");
    let mut gone = done(&restored);
    gone.sort_unstable();
    assert_eq!(
        gone,
        [("revoked", identity.as_str(), true, false), ("revoked", "worker-7", true, false)]
    );
    gateway.command(&["node", "forget", "worker-7"]);
    assert_eq!(
        done(&gateway.wait_for_acts(1, "node.forget")),
        [("name-of", identity.as_str(), true, false), ("name", "worker-7", true, false)]
    );
    gateway.command(&["node", "release", instance]);
    assert_eq!(
        done(&gateway.wait_for_acts(1, "node.release")),
        [("instance", instance, true, false)]
    );
    let nobody = "nobody-knows-it";
    for (verb, arguments) in [
        ("node.revoke", &["node", "revoke", nobody][..]),
        ("node.restore", &["node", "restore", nobody]),
        ("node.forget", &["node", "forget", nobody]),
        ("node.release", &["node", "release", nobody]),
    ] {
        let before = gateway.acts(verb).len();
        assert!(!gateway.try_command(arguments).status.success());
        let refused = gateway.wait_for_acts(before + 1, verb).remove(before);
        assert!(refused["admin"]["refused"].as_str().unwrap().contains(nobody), "{refused}");
        assert!(refused["admin"]["things"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_seal_rotation_without_key_material() {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.command(&["seal", "rotate"]);
    let file = gateway.path("state/seal.key").display().to_string();
    let written = |acts: &[Value]| assert_eq!(done(acts), [("file", file.as_str(), false, false)]);
    written(&gateway.wait_for_acts(1, "seal.rotate"));
    let keys = fs::read_to_string(&file).unwrap();
    gateway.command(&["seal", "rotate", "--drop"]);
    written(&gateway.wait_for_acts(1, "seal.drop"));
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    let secrets = keys
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|secret| secret.len() >= 32);
    let mut looked = 0;
    for secret in secrets {
        assert!(!log.contains(secret));
        looked += 1;
    }
    assert!(looked > 1, "the file has no keys: {keys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_shared_seal_keys_by_id() {
    let mut gateway = Gateway::init();
    gateway.settings("[store]\nkey_file = \"store.key\"");
    gateway.token(&["--name", "there-is-a-store-now"]);
    gateway.command(&["store", "create-key"]);
    gateway.run();
    let key = gateway.path("store.key").display().to_string();
    assert_eq!(done(&gateway.wait_for_acts(1, "store.key")), [("file", key.as_str(), false, false)]);
    // The first one is the gateway's own.
    let first = gateway.wait_for_acts(1, "seal.rotate").remove(0);
    assert!(first["admin"]["by"]["gateway"].is_string(), "{first}");
    gateway.command(&["seal", "rotate"]);
    let rotated = gateway.wait_for_acts(2, "seal.rotate").remove(1);
    assert!(rotated["admin"]["by"]["gateway"].is_null(), "{rotated}");
    let keys = |act: &Value, member: &str| act["admin"]["things"][0][member]["keys"].as_array().unwrap().len();
    assert_eq!((keys(&rotated, "before"), keys(&rotated, "after")), (1, 2));
    let before = fs::read_to_string(&key).unwrap();
    gateway.command(&["store", "create-key", "--rotate"]);
    let changed = gateway.wait_for_acts(1, "store.key-rotate").remove(0);
    let thing = &changed["admin"]["things"][0];
    assert_ne!(thing["before"]["key_file"], thing["after"]["key_file"]);
    gateway.command(&["seal", "rotate", "--drop"]);
    let dropped = gateway.wait_for_acts(1, "seal.drop").remove(0);
    assert_eq!((keys(&dropped, "before"), keys(&dropped, "after")), (2, 1));
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert!(!log.contains("ciphertext"));
    for secret in before.split_whitespace().filter(|word| word.len() >= 32) {
        assert!(!log.contains(secret));
    }
}
