//! Upgrade to the next release, and back. The next release is this program with a variable by which a debug build knows another schema.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

use crate::support::{Gateway, POOL, bearer, program, tpm};

const NEXT: &str = "ATTEST_TEST_NEXT_SCHEMA";
/// Message of this release about a store that the next one has raised.
const REFUSED: &str = "store schema 2, and release 0.1.0 reads 1: run release 0.2.0 or a newer one";

/// Returns the next release with a command on this gateway.
fn next_program(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut next = program();
    next.env(NEXT, "1")
        .arg("--config")
        .arg(gateway.path("gateway.toml"))
        .args(arguments);
    next
}

fn try_next(gateway: &Gateway, arguments: &[&str]) -> Output {
    next_program(gateway, arguments).output().unwrap()
}

fn next(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = try_next(gateway, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Starts the next release as this gateway.
pub fn run_next(gateway: &mut Gateway) {
    gateway.run_as(next_program(gateway, &["serve"]));
}

fn stop(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait().success());
}

/// Returns the schema of the store, as the next release says.
fn status(gateway: &Gateway) -> Value {
    serde_json::from_str(&next(gateway, &["upgrade", "--output", "json"])).unwrap()
}

fn refuses_the_store(gateway: &Gateway) {
    for command in [
        &["serve"][..],
        &["machines", "list"],
        &["node", "revoke", "a", "--anyway"],
        &["upgrade", "--commit"],
        &["check"],
    ] {
        let refused = gateway.try_command(command);
        assert_eq!(refused.status.code(), Some(2), "{command:?}: {}", said(&refused));
        assert!(said(&refused).contains(REFUSED), "{command:?}: {}", said(&refused));
    }
}

fn contents(gateway: &Gateway) -> (Vec<u8>, i64, String) {
    let file = gateway.path("state/gateway.db");
    let (version, release) = schema(gateway);
    (fs::read(file).unwrap(), version, release)
}

/// Returns the schema in the store's file, and the first release that knows it.
fn schema(gateway: &Gateway) -> (i64, String) {
    let store = Connection::open(gateway.path("state/gateway.db")).unwrap();
    let version = store.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let release = store.query_row("SELECT release FROM store", [], |row| row.get(0)).unwrap();
    (version, release)
}

fn takes_tokens() -> Gateway {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_release_starts_again_until_the_upgrade_is_committed() {
    let mut gateway = takes_tokens();
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    // A node that boots in the middle of the upgrade.
    let challenge = gateway.challenge(&case, None);
    stop(&mut gateway);
    run_next(&mut gateway);
    let answer = gateway.answer(case, &challenge);
    let ticket = gateway.post("/v1/attest/evidence", &answer).await.ticket();
    let token = next(&gateway, &["token", "create", "--pool", POOL, "--name", "rack7", "--uses", "9"]);
    let token = token.trim().to_owned();
    stop(&mut gateway);
    // Back.
    gateway.run();
    gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-2", "--anyway"]);
    stop(&mut gateway);

    run_next(&mut gateway);
    let found = status(&gateway);
    assert_eq!(
        (&found["schema"], &found["newest_schema"], &found["raised"]),
        (&1.into(), &2.into(), &false.into())
    );
    assert!(next(&gateway, &["upgrade"]).contains("upgrade --commit"));
    let refused = try_next(&gateway, &["upgrade", "--commit"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("a gateway is writing"), "{}", said(&refused));
    assert_eq!(schema(&gateway), (1, "0.1.0".to_owned()));
    stop(&mut gateway);
    let committed: Value = serde_json::from_str(&next(&gateway, &["upgrade", "--commit", "--output", "json"])).unwrap();
    assert_eq!((&committed["schema"], &committed["raised"]), (&2.into(), &true.into()));
    assert_eq!(schema(&gateway), (2, "0.2.0".to_owned()));
    assert!(next(&gateway, &["upgrade", "--commit"]).contains("nothing to raise"));

    let before = contents(&gateway);
    refuses_the_store(&gateway);
    assert_eq!(contents(&gateway), before);
    run_next(&mut gateway);
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    assert_eq!(gateway.wait_for_acts(1, "store.upgrade").len(), 1);
    assert!(next(&gateway, &["machines", "list"]).contains("worker-2"));
    let backup = gateway.path("after.backup").to_str().unwrap().to_owned();
    next(&gateway, &["backup", &backup]);
    stop(&mut gateway);
    // The log is one, whoever has written it.
    let checkpoints = gateway.path("checkpoints.of-store");
    fs::write(&checkpoints, next(&gateway, &["log", "list-checkpoints"])).unwrap();
    let audit = gateway.command(&["log", "audit", "--checkpoints", checkpoints.to_str().unwrap()]);
    assert!(audit.contains("whole") && !audit.contains("NOT"), "{audit}");
    // A backup keeps its schema.
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(gateway.path("state").join(file)));
    }
    let refused = gateway.try_command(&["restore", &backup]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    next(&gateway, &["restore", &backup]);
    assert_eq!(schema(&gateway), (2, "0.2.0".to_owned()));
}

#[test]
fn a_new_store_of_this_release_has_nothing_to_raise() {
    let mut gateway = Gateway::init();
    let missing = gateway.try_command(&["upgrade"]);
    assert!(said(&missing).contains("does not exist yet"), "{}", said(&missing));
    assert_eq!(missing.status.code(), Some(1));
    gateway.run();
    assert!(gateway.command(&["upgrade"]).contains("There is nothing to raise"));
    assert!(gateway.acts("store.upgrade").is_empty());
}

fn unraise(gateway: &Gateway) {
    let store = Connection::open(gateway.path("state/gateway.db")).unwrap();
    store
        .execute_batch("PRAGMA user_version = 1; UPDATE store SET release = '0.1.0'")
        .unwrap();
}

#[test]
fn a_killed_upgrade_has_raised_the_schema_or_not() {
    let mut gateway = Gateway::start();
    gateway.command(&["node", "revoke", "worker-1", "--anyway"]);
    stop(&mut gateway);
    let mut found = Vec::new();
    for milliseconds in (0..60).step_by(2) {
        let mut commit = next_program(&gateway, &["upgrade", "--commit"]);
        let mut commit = commit.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        commit.kill().unwrap();
        commit.wait().unwrap();
        let schema = schema(&gateway);
        match &schema {
            (1, release) if release == "0.1.0" => assert!(gateway.command(&["machines", "list"]).contains("worker-1")),
            (2, release) if release == "0.2.0" => assert_eq!(gateway.try_command(&["machines", "list"]).status.code(), Some(2)),
            other => panic!("{other:?}"),
        }
        assert!(next(&gateway, &["machines", "list"]).contains("worker-1"));
        found.push(schema.0);
        unraise(&gateway);
    }
    assert!(found.contains(&1), "{found:?}");
    next(&gateway, &["upgrade", "--commit"]);
    assert_eq!(schema(&gateway).0, 2);
}

#[test]
fn an_upgrade_on_a_full_disk_changes_nothing() {
    let mut gateway = Gateway::start();
    gateway.command(&["node", "revoke", "worker-1", "--anyway"]);
    stop(&mut gateway);
    let commit = next_program(&gateway, &["upgrade", "--commit"]);
    let (mut failed, mut raised) = (0, 0);
    // No file may be longer than that.
    for kibibytes in (0..120).step_by(4) {
        let mut limited = Command::new("bash");
        let output = limited
            .args(["-c", &format!("trap '' XFSZ; ulimit -f {kibibytes}; exec \"$0\" \"$@\"")])
            .arg(commit.get_program())
            .args(commit.get_args())
            .env(NEXT, "1")
            .output()
            .unwrap();
        match schema(&gateway) {
            (1, _) => {
                assert!(!output.status.success(), "{kibibytes}: {}", said(&output));
                failed += 1;
            }
            _ => {
                raised += 1;
                unraise(&gateway);
            }
        }
        assert!(gateway.command(&["machines", "list"]).contains("worker-1"), "{kibibytes}");
    }
    assert!(failed > 0 && raised > 0, "{failed} {raised}");
}

/// Two releases, whose pools accept tokens, serve from one store; the schema is raised while the newer one serves, and once the older one is gone.
pub async fn mixed_releases_serve_until_the_schema_is_raised(mut old: Gateway, mut new: Gateway) {
    old.run();
    run_next(&mut new);
    let full = old.rendered(POOL, "full");
    let token = next(&new, &["token", "create", "--pool", POOL, "--name", "rack7", "--uses", "900"]);
    let token = bearer(token.trim());
    for gateway in [&old, &new] {
        gateway.config("/config/worker", &[&token]).await.is_config(&full);
    }
    let found = status(&new);
    let mut known: Vec<i64> = found["users"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| user["knows"].as_i64().unwrap())
        .collect();
    known.sort_unstable();
    assert_eq!((&found["schema"], known), (&1.into(), vec![1, 2]), "{found}");
    let refused = try_next(&new, &["upgrade", "--commit"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("schema 2 is unknown to") && said(&refused).contains("(release 0.1.0)"),
        "{}",
        said(&refused)
    );
    assert_eq!(status(&new)["schema"], 1);
    for gateway in [&old, &new] {
        gateway.config("/config/worker", &[&token]).await.is_config(&full);
    }

    stop(&mut old);
    let committing = next_program(&new, &["upgrade", "--commit", "--output", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let committing = tokio::task::spawn_blocking(move || committing.wait_with_output().unwrap());
    // Nodes boot meanwhile.
    let mut served = 0;
    while !committing.is_finished() || served < 20 {
        new.config("/config/worker", &[&token]).await.is_config(&full);
        served += 1;
    }
    let committed = committing.await.unwrap();
    let committed: Value = serde_json::from_slice(&committed.stdout).unwrap();
    assert_eq!(
        (&committed["schema"], &committed["raised"]),
        (&2.into(), &true.into()),
        "{committed}"
    );
    refuses_the_store(&old);
    run_next(&mut old);
    for gateway in [&old, &new] {
        gateway.config("/config/worker", &[&token]).await.is_config(&full);
    }
    let upgrades = || old.acts("store.upgrade").len() + new.acts("store.upgrade").len();
    let begun = std::time::Instant::now();
    // One that was refused, and one that was done.
    while upgrades() < 2 {
        assert!(begun.elapsed() < crate::support::LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
