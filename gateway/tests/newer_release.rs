//! Entries that a newer release may have written into a shared store: unknown ones are refused, with advice, and left unchanged. They are
//! never misread. The newer release is simulated by this one, with another member or a higher version in its entries.

use std::fs;
use std::path::Path;

use attest_store::{Embedded, EntryKind, Spendable, Store, UseHolder, UseOccasion};
use rusqlite::Connection;
use serde_json::Value;

use crate::conformance::{decided_at, try_use};
use crate::support::kubelet::embedded;
use crate::support::{Gateway, POOL, bearer, next_boot, tpm};

/// Returns a text as a newer release might have written it: with another member, or with a higher version, if it has one.
pub fn newer(text: &str) -> Vec<String> {
    let Ok(Value::Object(known)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let with = |member: &str, value: Value| {
        let mut other = known.clone();
        other.insert(member.to_owned(), value);
        Value::Object(other).to_string()
    };
    let version = known.get("v").and_then(Value::as_u64);
    [Some(with("more", 1.into())), version.map(|version| with("v", (version + 1).into()))]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the pairs whose keys have this prefix.
pub fn pairs(file: &Path, begin: &str) -> Vec<(String, String)> {
    let database = Connection::open(file).unwrap();
    let mut statement = database.prepare("SELECT key, value FROM pairs WHERE key LIKE ?1 || '%'").unwrap();
    let rows = statement.query_map([begin], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

pub fn put(file: &Path, key: &str, value: &str) {
    let database = Connection::open(file).unwrap();
    database
        .execute("UPDATE pairs SET value = ?2 WHERE key = ?1", [key, value])
        .unwrap();
}

pub fn refuses(gateway: &Gateway, command: &[&str], what: &str) {
    let refused = gateway.try_command(command);
    let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert!(!refused.status.success(), "{command:?} takes {what}: {said}");
    assert!(
        said.contains("cannot be read") && said.contains("newer release"),
        "{command:?}, {what}: {said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_entries_of_newer_releases() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    gateway.attest(next_boot(&case), None).await.ticket();
    let token = gateway.token(&["--name", "rack7", "--uses", "9"]);
    assert_eq!(gateway.config("/config/worker", &[&bearer(&token)]).await.status, 200);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    let file = gateway.path("state/gateway.db");
    let mut altered = 0;
    for (kind, command) in [
        (EntryKind::Token, &["token", "list"][..]),
        (EntryKind::Ek, &["ek", "list"]),
        (EntryKind::Revoked, &["node", "list"]),
        (EntryKind::Checkpoint, &["serve"]),
    ] {
        for (key, text) in pairs(&file, &format!("entry/{}/", kind.as_str())) {
            let document: Value = serde_json::from_str(&text).unwrap();
            let value = document["value"].as_str().unwrap();
            for other in newer(value) {
                let mut document = document.clone();
                document["value"] = other.into();
                let written = document.to_string();
                put(&file, &key, &written);
                refuses(&gateway, command, &written);
                assert_eq!(pairs(&file, &key), [(key.clone(), written)]);
                altered += 1;
            }
            put(&file, &key, &text);
        }
    }
    assert!(altered >= 6, "{altered}");
    gateway.run();
}

fn thing(id: &str) -> Spendable {
    Spendable {
        kind: EntryKind::TokenUse,
        id: id.to_owned(),
        limit: 2,
        remember_until: 1_000_000,
    }
}

fn by(who: &str) -> UseOccasion {
    UseOccasion::By(UseHolder {
        id: who.to_owned(),
        seconds: 3600,
        repeats: 2,
    })
}

async fn spend(store: &Embedded, decision: &str) -> Result<(), String> {
    let spent = try_use(store, thing("t"), by("a"), decided_at(decision, 100)).await;
    spent.map(drop).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_internal_entries_of_newer_releases() {
    let gateway = Gateway::init();
    std::fs::create_dir_all(gateway.path("state")).unwrap();
    let (store, file) = (embedded(&gateway), gateway.path("state/gateway.db"));
    store.time(100).await.unwrap();
    store.append_to_outbox("{}".to_owned()).await.unwrap();
    spend(&store, "d").await.unwrap();
    let all = pairs(&file, "");
    // What cannot be given back is given back later: so that comes last.
    for begin in ["use/", "holder/", "time", "told", "pending/"] {
        let (key, text) = all.iter().find(|(key, _)| key.starts_with(begin)).unwrap();
        let others = newer(text);
        assert_eq!(others.len(), 2, "{key} {text}");
        for other in others {
            put(&file, key, &other);
            let text = |result: Result<(), attest_store::StoreError>| result.map_err(|error| error.to_string());
            let done = match begin {
                "use/" | "holder/" => spend(&store, "d2").await,
                "pending/" => text(store.give_back("d").await.map(drop)),
                "time" => text(store.time(200).await.map(drop)),
                _ => text(store.append_to_outbox("{}".to_owned()).await),
            };
            let refused = done.unwrap_err();
            assert!(refused.contains(begin) && refused.contains("newer release"), "{key}: {refused}");
            let mut expected = all.clone();
            expected.iter_mut().find(|(found, _)| found == key).unwrap().1 = other;
            assert_eq!(pairs(&file, ""), expected, "nothing is written");
        }
        put(&file, key, text);
    }
    store.give_back("d").await.unwrap();
    assert_eq!(store.uses(EntryKind::TokenUse, "t").await.unwrap(), 0);
}

/// Returns the content of each file of the state folder, by name.
fn state(gateway: &Gateway) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(gateway.path("state"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && !path.ends_with("gateway.db-shm"))
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_exit_with_2_and_change_nothing_in_a_store_of_a_newer_schema() {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.command(&["node", "revoke", "worker-1", "--anyway"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    let file = gateway.path("state/gateway.db");
    let alter = |sql: &str| Connection::open(&file).unwrap().execute_batch(sql).unwrap();
    alter("PRAGMA user_version = 2; UPDATE store SET release = '0.2.0'; ALTER TABLE pairs RENAME TO newer_pairs");
    let before = state(&gateway);
    for command in [
        &["node", "revoke", "worker-2", "--anyway"][..],
        &["node", "list"],
        &["token", "create", "--pool", POOL, "--name", "rack7"],
        &["ek", "list"],
        &["store", "accept"],
        &["check"],
        &["serve"],
    ] {
        let refused = gateway.try_command(command);
        let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{command:?}: {said}");
        assert!(
            said.contains("gateway.db has store schema 2, and release 0.1.0 reads 1: run release 0.2.0 or a newer one"),
            "{command:?}: {said}"
        );
    }
    assert_eq!(state(&gateway), before);
    // The same program goes on with the store that it knows.
    alter("PRAGMA user_version = 1; ALTER TABLE newer_pairs RENAME TO pairs");
    assert!(gateway.command(&["node", "list"]).contains("worker-1"));
}
