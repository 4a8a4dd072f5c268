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

/// Returns the text about version 2 of a format.
fn too_new(format: &str) -> String {
    format!("{format} 2, and release {} reads 1: run", env!("CARGO_PKG_VERSION"))
}

pub fn refuses(gateway: &Gateway, command: &[&str], what: &str) {
    let refused = gateway.try_command(command);
    let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert!(!refused.status.success(), "{command:?} takes {what}: {said}");
    // A higher version is named, an unknown member is not understood.
    match refused.status.code() {
        Some(2) => assert!(said.contains(&too_new("version")), "{command:?}, {what}: {said}"),
        _ => assert!(
            said.contains("cannot be read") && said.contains("newer release"),
            "{command:?}, {what}: {said}"
        ),
    }
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
        (EntryKind::Ek, &["machines", "list"]),
        (EntryKind::Revoked, &["machines", "list"]),
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

#[tokio::test(flavor = "multi_thread")]
async fn serve_and_check_exit_with_2_and_change_nothing_in_state_files_of_a_newer_release() {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.command(&["token", "create", "--pool", POOL, "--name", "rack7"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    let log = gateway.path("state/attestation.jsonl");
    let line = fs::read_to_string(&log).unwrap().lines().last().unwrap().to_owned();
    fs::create_dir(gateway.path("state/cluster")).unwrap();
    for (file, text, format) in [
        ("standing.json", None, "version"),
        (
            "seal.set",
            Some(r#"{"v":1,"key_file":"a","store":"b","changes":1,"tag":"c"}"#),
            "version",
        ),
        ("cluster/attested-nodes.json", Some(r#"{"v":1,"last":{}}"#), "version"),
        ("attestation.unnamed", Some(r#"{"v":1,"blobs":[]}"#), "version"),
        ("attestation.jsonl", Some(line.as_str()), "log entry version"),
    ] {
        let path = gateway.path("state").join(file);
        let known = fs::read_to_string(&path).ok();
        let text = text.or(known.as_deref()).unwrap();
        let newer = text.replacen("\"v\":1", "\"v\":2,\"release\":\"0.2.0\"", 1);
        assert_ne!(newer, text);
        let is_log = path == log;
        let newer = if is_log { known.clone().unwrap() + &newer + "\n" } else { newer };
        fs::write(&path, &newer).unwrap();
        let before = state(&gateway);
        let commands = [&["serve"][..], &["check"], &["log", "show"], &["policy", "propose", POOL]];
        for command in commands.iter().take(if is_log { 4 } else { 2 }) {
            let refused = gateway.try_command(command);
            let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{command:?} {file}: {said}");
            assert!(
                said.contains(&format!("{} has {} release 0.2.0 or a newer one", path.display(), too_new(format))),
                "{command:?} {file}: {said}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        assert_eq!(state(&gateway), before);
        match known {
            Some(known) => fs::write(&path, known).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    gateway.run();
}

#[test]
fn exits_with_2_and_changes_nothing_in_seal_keys_of_a_newer_release() {
    let mut gateway = Gateway::init();
    let shared = "[store]\nkey_file = \"store.key\"\n";
    for settings in ["", shared] {
        gateway.settings(settings);
        if settings == shared {
            gateway.command(&["store", "create-key"]);
        }
        gateway.run();
        gateway.terminate();
        assert!(gateway.wait().success());
    }
    for (file, settings, version) in [("state/seal.key", "", 2), ("store.key", shared, 1)] {
        gateway.settings(settings);
        let path = gateway.path(file);
        let text = fs::read_to_string(&path).unwrap();
        let newer = text.replacen(&format!(" {version}\n"), " 3\n", 1);
        assert_ne!(newer, text);
        fs::write(&path, &newer).unwrap();
        for command in [&["check"][..], &["serve"], &["seal", "rotate"], &["seal", "rotate", "--drop"]] {
            let refused = gateway.try_command(command);
            let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{command:?}: {said}");
            let expected = format!(
                "{file} has version 3, and release {} reads {version}: run",
                env!("CARGO_PKG_VERSION")
            );
            assert!(said.contains(&expected), "{command:?}: {said}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
}

/// A line that says to be a newer release's in a whole chain; an altered one breaks the chain, and is found like any other.
#[tokio::test(flavor = "multi_thread")]
async fn audit_exits_with_2_for_lines_of_a_newer_release() {
    let mut gateway = Gateway::init();
    gateway.run();
    for name in ["rack7", "rack8"] {
        gateway.command(&["token", "create", "--pool", POOL, "--name", name]);
    }
    gateway.wait_for_acts(2, "token.create");
    gateway.terminate();
    assert!(gateway.wait().success());
    let log = gateway.path("state/attestation.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let acts: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains("token.create")).collect();
    let audit = |lines: &[&str], newer: usize| {
        let line = lines[newer].replacen("\"v\":1", "\"v\":2,\"release\":\"0.2.0\"", 1);
        let mut lines = lines.to_vec();
        lines[newer] = &line;
        fs::write(&log, lines.join("\n") + "\n").unwrap();
        let output = gateway.try_command(&["log", "audit", "--without-checkpoints"]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(&too_new("log entry version")) && said.contains("0.2.0"), "{said}");
        (output.status.code(), said)
    };
    // Without the checkpoints after it, as it was before they were signed.
    let (code, said) = audit(&lines[..=acts[1]], acts[1]);
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = audit(&lines, acts[0]);
    assert!(code == Some(1) && said.contains("altered at line"), "{code:?}: {said}");
    fs::write(&log, &text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_exits_with_2_for_checkpoints_of_a_newer_release() {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.terminate();
    assert!(gateway.wait().success());
    let signed = gateway.checkpoints();
    let newer = fs::read_to_string(&signed).unwrap().replace("{\"v\":1", "{\"v\":2");
    fs::write(&signed, newer).unwrap();
    let refused = gateway.try_command(&["log", "audit", "--checkpoints", &signed]);
    let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&too_new("checkpoint version")), "{said}");
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
            let is_newer = refused.contains("newer release") || refused.contains(&too_new("version"));
            assert!(refused.contains(begin) && is_newer, "{key}: {refused}");
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
        &["machines", "list"],
        &["token", "create", "--pool", POOL, "--name", "rack7"],
        &["machines", "export"],
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
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
}
