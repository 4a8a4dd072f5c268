//! The store under the running program: it notices a lost, old or foreign one, and does not serve from it.

use std::fs;

use attest_store::{Embedded, EntryKind, Spend, Spendable, Store, UseOccasion};

use crate::conformance::use_for;
use crate::support::pending::{config_by_token, is_recorded_late};
use crate::support::{Answer, Gateway, POOL, bearer, next_boot, now, tpm};

/// Returns the error of `serve`, which must not start.
fn refusal(gateway: &Gateway) -> String {
    let output = gateway.try_command(&["serve"]);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn stop(gateway: &mut Gateway) {
    gateway.terminate();
    gateway.wait();
}

fn remove(gateway: &Gateway) {
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(gateway.path("state").join(file)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_store_restored_from_before_a_revocation_is_refused() {
    let mut gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    stop(&mut gateway);
    let backup = fs::read(gateway.path("state/gateway.db")).unwrap();
    gateway.command(&["node", "revoke", "worker-1"]);
    remove(&gateway);
    fs::write(gateway.path("state/gateway.db"), &backup).unwrap();
    let said = refusal(&gateway);
    assert!(
        said.contains("gateway.db is at mark ") && said.contains(" was seen before") && said.contains("store accept"),
        "{said}"
    );
    // The administrator's commands do not work on it either.
    for command in [&["node", "revoke", "worker-1"][..], &["machines", "list"], &["machines", "export"]] {
        assert!(!gateway.try_command(command).status.success(), "{command:?}");
    }
    assert!(!gateway.try_command(&["check"]).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_refuses_a_store_from_before_a_spend() {
    let mut gateway = Gateway::start();
    gateway.settings("[ticket]\nuses = 1\n");
    stop(&mut gateway);
    gateway.run();
    let ticket = bearer(&gateway.ticket().await);
    stop(&mut gateway);
    let backup = fs::read(gateway.path("state/gateway.db")).unwrap();
    let mark = fs::read(gateway.path("state/store.mark")).unwrap();
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-spent");
    gateway.kill();
    remove(&gateway);
    fs::write(gateway.path("state/gateway.db"), &backup).unwrap();
    // Somebody who restores everything but the log.
    fs::write(gateway.path("state/store.mark"), &mark).unwrap();
    assert!(refusal(&gateway).contains("at mark"));
    let records = gateway.records();
    let known = &records.last().unwrap()["store"];
    let said = gateway.command(&["store", "accept"]);
    assert!(said.contains(known["id"].as_str().unwrap()), "{said}");
    // So that an auditor sees it, too.
    let line = gateway.records().pop().unwrap();
    assert_eq!(
        (&line["decision"], &line["admin"]["verb"], &line["verdict"]),
        (&"store_accepted".into(), &"store.accept".into(), &serde_json::Value::Null)
    );
    assert_eq!(line["accepted_store"]["known"], *known);
    let act = &line["admin"];
    assert_eq!((&act["verb"], &act["by"]["pid"].is_u64()), (&"store.accept".into(), &true));
    assert!(act["by"]["uid"].is_u64() && act["by"]["gateway"].is_null(), "{act}");
    assert_eq!(act["things"][0]["before"], *known);
    assert!(line["accepted_store"]["found"]["mark"].as_u64() < known["mark"].as_u64(), "{line}");
    let audit = gateway.command(&["log", "audit"]);
    assert!(
        audit.contains("0 different") && audit.contains("warning: another store was accepted here"),
        "{audit}"
    );
    // It is signed, and the store knows: nobody can cut it off, or say that somebody else has written it.
    let log = gateway.path("state/attestation.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let place = lines.iter().position(|line| line.contains("store_accepted")).unwrap();
    assert!(lines[place + 1].contains("\"decision\":\"checkpoint\"") && place + 2 == lines.len());
    for cut in [place, place + 1] {
        fs::write(&log, lines[..cut].iter().flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
        let audit = gateway.try_command(&["log", "audit"]);
        let said = String::from_utf8(audit.stdout).unwrap();
        assert!(!audit.status.success() && said.contains("shortened after line"), "{said}");
    }
    fs::write(&log, &text).unwrap();
    let found = |text: &str| text.matches("\"found\":{\"first\"").count();
    assert_eq!(found(&text), 1, "the gateway was killed before");
    gateway.run();
    assert_eq!(found(&fs::read_to_string(&log).unwrap()), 1);
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-invalid");
    gateway.ticket().await;
    assert!(!gateway.try_command(&["store", "accept"]).status.success(), "nothing to accept");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_refuses_to_replace_a_lost_store_silently() {
    let mut gateway = Gateway::start();
    gateway.ticket().await;
    stop(&mut gateway);
    remove(&gateway);
    let said = refusal(&gateway);
    assert!(
        said.contains("gateway.db is missing or empty") && said.contains("store accept"),
        "{said}"
    );
    let revoke = gateway.try_command(&["node", "revoke", "worker-1"]);
    assert!(!revoke.status.success() && revoke.stdout.is_empty());
    // What cannot be recorded is not done.
    let (log, away) = (gateway.path("state/attestation.jsonl"), gateway.path("state/away.jsonl"));
    let seal = || fs::read(gateway.path("state/seal.key")).unwrap();
    let sealed = seal();
    fs::rename(&log, &away).unwrap();
    fs::create_dir(&log).unwrap();
    assert!(!gateway.try_command(&["store", "accept"]).status.success());
    assert_eq!(seal(), sealed);
    fs::remove_dir(&log).unwrap();
    fs::rename(&away, &log).unwrap();
    let held = fs::File::open(&log).unwrap();
    held.lock().unwrap();
    assert!(
        !gateway.try_command(&["store", "accept"]).status.success(),
        "another writes the log"
    );
    drop(held);
    assert!(refusal(&gateway).contains("store accept"));
    gateway.command(&["store", "accept"]);
    assert!(gateway.records().pop().unwrap()["accepted_store"]["found"].is_null());
    gateway.run();
    gateway.ticket().await;
}

#[test]
fn attack_42_refuses_store_accept_while_a_gateway_serves() {
    let gateway = Gateway::start();
    fs::rename(gateway.path("state/attestation.jsonl"), gateway.path("state/attestation.1")).unwrap();
    let accept = gateway.try_command(&["store", "accept"]);
    let said = String::from_utf8(accept.stderr).unwrap();
    assert!(!accept.status.success() && said.contains("a gateway is writing"), "{said}");
    assert!(!gateway.path("state/attestation.jsonl").exists(), "nothing was begun");
    // Nor does a second gateway start, which `check` knows.
    let check = gateway.try_command(&["check"]);
    assert!(String::from_utf8(check.stdout).unwrap().contains("a gateway is running with"));
    let second = gateway.try_command(&["serve"]);
    let said = [second.stdout, second.stderr].concat();
    assert!(!second.status.success() && String::from_utf8_lossy(&said).contains("a gateway is writing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_deleted_store_is_answered_503() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    let ticket = bearer(&gateway.attest(next_boot(&case), None).await.ticket());
    let ready = async || Answer::send(gateway.client.get(gateway.url("/readyz"))).await.status.as_u16();
    assert_eq!(ready().await, 200);
    let (there, away) = (gateway.path("state/gateway.db"), gateway.path("state/away.db"));
    fs::rename(&there, &away).unwrap();
    assert_eq!(ready().await, 503);
    gateway.line(|line| line.contains("was deleted, replaced or rolled back"));
    gateway.config("/config/worker", &[&ticket]).await.check_retry();
    let refused = gateway.attest(next_boot(&case), None).await;
    refused.refused(503, "unavailable");
    assert_eq!(refused.headers.get("retry-after"), None, "nobody knows when");
    let revoke = gateway.try_command(&["node", "revoke", "worker-1"]);
    assert!(!revoke.status.success() && revoke.stdout.is_empty());
    assert!(!there.exists(), "nothing takes its place");
    // Another one in its place, be it a copy.
    fs::copy(&away, &there).unwrap();
    assert_eq!(ready().await, 503);
    fs::rename(&away, &there).unwrap();
    assert_eq!(ready().await, 200);
    gateway
        .config("/config/worker", &[&ticket])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
}

#[tokio::test(flavor = "multi_thread")]
async fn restoring_a_backup_invalidates_later_tickets() {
    let mut gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    let ticket = bearer(&gateway.ticket().await);
    let [backup, again] = ["a.backup", "again.backup"].map(|name| gateway.path(name));
    let [backup, again] = [&backup, &again].map(|path| path.to_str().unwrap());
    gateway.wait_for_acts(2, "ek.add");
    let said = gateway.command(&["backup", backup]);
    let mode = fs::metadata(backup).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    assert!(!gateway.try_command(&["backup", backup]).status.success(), "it is there already");
    let refused = |arguments: &[&str]| {
        let output = gateway.try_command(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["restore", backup]).contains("a gateway is writing"));
    stop(&mut gateway);
    let contents = |said: &str| said.lines().find(|line| line.starts_with("entries: ")).map(str::to_owned);
    let full = gateway.try_command(&["restore", backup]);
    assert!(String::from_utf8(full.stderr).unwrap().contains("add --replace"));

    remove(&gateway);
    let torn = fs::read(backup).unwrap();
    fs::write(gateway.path("torn.backup"), &torn[..torn.len() - 10]).unwrap();
    let records = gateway.records().len();
    let torn = gateway.try_command(&["restore", gateway.path("torn.backup").to_str().unwrap()]);
    assert!(
        !torn.status.success() && gateway.records().len() == records,
        "nothing is said of what was not done"
    );
    let imported = gateway.command(&["restore", backup]);
    assert!(contents(&said).is_some());
    assert_eq!(contents(&imported), contents(&said));
    let line = gateway.records().pop().unwrap();
    assert_eq!(line["decision"], "store_accepted");
    assert_eq!(
        (&line["peer"], &line["admin"]["verb"]),
        (&serde_json::Value::Null, &"store.restore".into())
    );
    assert_eq!(line["admin"]["things"][0]["after"]["from"]["file"], backup);
    let audit = gateway.command(&["log", "audit"]);
    assert!(audit.contains("0 different") && audit.contains("store.restore"), "{audit}");
    let checked = gateway.command(&["backup", again]);
    let count = |said: &str| contents(said).map(|entries| entries.split_once(',').unwrap().0.to_owned());
    assert_eq!(
        count(&checked),
        count(&said),
        "it holds as many keys, with the checkpoint of this moment"
    );

    gateway.run();
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-invalid");
}

#[tokio::test]
async fn store_accept_also_replaces_the_legacy_seal_key() {
    let mut gateway = Gateway::start();
    gateway.kill();
    gateway.settings("[store]\nkey_file = \"store.key\"");
    gateway.command(&["store", "create-key"]);
    let seal = || fs::read(gateway.path("state/seal.key")).unwrap();
    let first = seal();
    gateway.command(&["seal", "rotate"]);
    assert_eq!(seal(), first, "it is the keys in the store that rotate");
    gateway.command(&["seal", "rotate", "--drop"]);
    let second = seal();
    assert_ne!(second, first);
    remove(&gateway);
    gateway.command(&["store", "accept"]);
    assert_ne!(seal(), second);
    // Where there is none, none is made.
    fs::remove_file(gateway.path("state/seal.key")).unwrap();
    gateway.command(&["seal", "rotate", "--drop"]);
    assert!(!gateway.path("state/seal.key").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn recreates_missing_seal_keys_with_a_warning() {
    let begun_anew = |line: &str| line.contains("WARN") && line.contains("keys were missing from the store") && line.contains("token list");
    let mut gateway = Gateway::init();
    gateway.settings("[store]\nkey_file = \"store.key\"");
    gateway.command(&["store", "create-key"]);
    gateway.run();
    let begun = gateway.wait_for_acts(1, "seal.rotate").len();
    stop(&mut gateway);
    assert_eq!(gateway.how_often(begun_anew), 0, "the first keys are no news");
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    assert!(store.remove(EntryKind::SealKey, "keys").await.unwrap());
    store.keep_mark().await.unwrap();
    drop(store);
    gateway.run();
    gateway.line(begun_anew);
    // Of this start; the log has those of both.
    assert_eq!(gateway.wait_for_acts(1, "seal.rotate").len(), begun + 1);
}

fn decision() -> String {
    "d1".repeat(16)
}

/// Uses the only token as if the gateway had been killed before the record, or between the record and the store's update.
async fn begin_use(gateway: &Gateway) {
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let token = store.list(EntryKind::Token).await.unwrap().remove(0);
    let thing = Spendable {
        kind: EntryKind::TokenUse,
        id: token.id,
        limit: 1,
        remember_until: now() + 10_000,
    };
    // Both hosts' logs reach back further.
    let decided = config_by_token(&decision(), now() + 1, "once", 1);
    assert_eq!(
        use_for(&store, thing, UseOccasion::Any, decided).await,
        Spend::Granted { use_number: 1 }
    );
    store.keep_mark().await.unwrap();
}

/// The result of a use is in the log of the host that granted it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_33_gives_back_only_uses_granted_by_this_host() {
    for (elsewhere, by_file) in [(true, true), (true, false), (false, true)] {
        let [mut there, mut here] = [(); 2].map(|()| {
            let gateway = Gateway::init();
            gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
            gateway
        });
        let token = bearer(&there.token(&["--name", "once", "--uses", "1"]));
        for gateway in [&mut there, &mut here] {
            gateway.run();
            stop(gateway);
        }
        begin_use(&there).await;
        let file = there.path("store.jsonl");
        let file = file.to_str().unwrap();
        there.command(&["backup", file]);
        let gateway = if elsewhere { &mut here } else { &mut there };
        remove(gateway);
        if by_file {
            gateway.command(&["restore", "--another-site", file]);
        } else {
            fs::copy(there.path("state/gateway.db"), here.path("state/gateway.db")).unwrap();
            here.command(&["store", "accept"]);
        }
        let gateway = if elsewhere { &mut here } else { &mut there };
        gateway.run();
        let answer = gateway.config("/config/worker", &[&token]).await;
        let records = gateway.records();
        let late: Vec<_> = records.iter().filter(|record| record["id"] == decision().as_str()).collect();
        if elsewhere {
            answer.refused(403, "token-spent");
            gateway.line(|line| line.contains("1 recorded, 0 uses of tickets and tokens given back"));
            assert_eq!(late.len(), 1, "{records:?}");
            is_recorded_late(late[0], "unknown");
            assert_eq!(late[0]["use_number"], 1, "it counts");
        } else {
            // This host's log says that nobody got anything.
            answer.is_config(&gateway.rendered(POOL, "full"));
            assert!(late.is_empty(), "{late:?}");
        }
    }
}
