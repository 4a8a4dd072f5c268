//! Files that a command or an administrator changes: the command's record says what it did, and the gateway's what it found.

use std::fs;
use std::process::Command;

use serde_json::json;

use super::*;
use crate::support::{POOL, serving_within};

/// Returns the objects of one kind that an act is about.
fn objects_of_kind<'a>(act: &'a Value, kind: &str) -> Vec<&'a Value> {
    let things = act["admin"]["things"].as_array().unwrap().iter();
    things.filter(|thing| thing["kind"] == kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_ca_rotation_steps_and_the_reload() {
    let gateway = Gateway::start();
    for (count, verb, arguments, role) in [
        (1, "certificate.renew", &["certificate", "renew"][..], "tls.certificate"),
        (2, "ca.introduce", &["ca", "introduce"], "tls.ca"),
        (3, "ca.switch", &["ca", "switch", "--force"], "tls.certificate"),
        (4, "ca.retire", &["ca", "retire", "--force"], "tls.ca"),
    ] {
        gateway.command(arguments);
        let done = gateway.wait_for_acts(1, verb).remove(0);
        assert!(done["admin"]["by"]["gateway"].is_null());
        let things = objects_of_kind(&done, "certificate");
        let [thing] = things[..] else { panic!("{done}") };
        assert_eq!(thing["id"], role, "{done}");
        let there = (!thing["before"].is_null(), !thing["after"].is_null());
        assert_eq!(there, (verb != "ca.introduce", verb != "ca.retire"), "{done}");
        let found = gateway.wait_for_acts(count, "gateway.reload").remove(count - 1);
        assert!(found["admin"]["by"]["gateway"].is_string());
        let ids: Vec<&str> = objects_of_kind(&found, "certificate")
            .iter()
            .map(|thing| thing["id"].as_str().unwrap())
            .collect();
        assert!(ids.iter().any(|id| id.starts_with(role)), "{found}");
    }
    // Nothing to switch to: it is refused, and nothing is otherwise.
    assert!(!gateway.try_command(&["ca", "switch"]).status.success());
    let refused = gateway.wait_for_acts(2, "ca.switch").remove(1);
    assert!(
        refused["admin"]["refused"]
            .as_str()
            .unwrap()
            .contains("`attest-gateway ca introduce`"),
        "{refused}"
    );
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    let key = fs::read_to_string(gateway.path("tls/mcs.key")).unwrap();
    for line in key.lines().filter(|line| !line.starts_with('-')) {
        assert!(!log.contains(line));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_a_manual_pool_edit_as_gateway_reload() {
    let gateway = Gateway::start();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let found = gateway.wait_for_acts(1, "gateway.reload").remove(0);
    assert!(
        found["admin"]["by"]["gateway"].is_string() && found["admin"]["outbox"].is_null(),
        "{found}"
    );
    let pools = objects_of_kind(&found, "pool");
    let [pool] = pools[..] else { panic!("{found}") };
    assert_eq!(pool["id"], POOL);
    let (before, after) = (&pool["before"], &pool["after"]);
    assert_eq!(
        (&before["grants"]["token"], &after["grants"]["token"]),
        (&json!("refuse"), &json!("full"))
    );
    for same in ["full", "pre_approved", "policy", "endorsement"] {
        assert_eq!(before[same], after[same]);
    }
    assert_eq!(after["endorsement"], "allowlist", "as pool.toml says it");
    // And what it serves, by digest: as the record of a node that gets it has it.
    let secret = "a-password-that-nobody-may-read";
    let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/secret", "contents": {"source": format!("data:,{secret}")}}]}});
    fs::write(gateway.path("pools/worker/full/90-new.ign"), config.to_string()).unwrap();
    let found = gateway.wait_for_acts(2, "gateway.reload").remove(1);
    let pool = objects_of_kind(&found, "pool")[0];
    assert_ne!(pool["before"]["full"], pool["after"]["full"]);
    assert_eq!(pool["before"]["pre_approved"], pool["after"]["pre_approved"]);
    let newest = gateway.command(&["config", "render", "--pool", POOL, "--set", "full"]);
    assert!(newest.contains(secret));
    for file in ["state/attestation.jsonl", "state/standing.json"] {
        assert!(!fs::read_to_string(gateway.path(file)).unwrap().contains(secret));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_broken_and_repaired_pools_with_the_reason() {
    let gateway = Gateway::start();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"all of it\"");
    let found = gateway.wait_for_acts(1, "gateway.reload").remove(0);
    let [broken] = objects_of_kind(&found, "broken_pool")[..] else {
        panic!("{found}")
    };
    assert_eq!((&broken["id"], &broken["before"]), (&json!(POOL), &Value::Null));
    let reason = broken["after"]["reason"].as_str().unwrap();
    assert!(reason.contains("pool.toml") && reason.contains("token"), "{reason}");
    assert!(objects_of_kind(&found, "pool").is_empty(), "what is served is what was");
    gateway.edit_pool(POOL, "token = \"all of it\"", "token = \"refuse\"");
    let found = gateway.wait_for_acts(2, "gateway.reload").remove(1);
    let [well] = objects_of_kind(&found, "broken_pool")[..] else {
        panic!("{found}")
    };
    assert!(!well["before"].is_null() && well["after"].is_null(), "{well}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_only_drifted_settings_at_start() {
    let mut gateway = Gateway::init();
    gateway.settings("[ticket]\nuses = 3");
    let again = |gateway: &mut Gateway, settings: Option<&str>| {
        gateway.terminate();
        gateway.wait();
        if let Some(settings) = settings {
            gateway.settings(settings);
        }
        gateway.run();
    };
    gateway.run();
    // Of the first start, all that it goes by.
    let all = |started: &Value| ["settings", "setting", "pool", "certificate"].map(|kind| !objects_of_kind(started, kind).is_empty());
    let first = gateway.acts("gateway.start").remove(0);
    assert_eq!(all(&first), [true; 4], "{first}");
    let uses = json!({"kind": "setting", "id": "ticket.uses", "after": 3});
    assert!(objects_of_kind(&first, "setting").contains(&&uses), "{first}");
    again(&mut gateway, None);
    assert_eq!(gateway.acts("gateway.start").len(), 1, "nothing is otherwise");
    again(&mut gateway, Some("[ticket]\nuses = 5\n[challenge]\nlifetime_seconds = 60"));
    let started = gateway.acts("gateway.start").remove(1);
    let told: Vec<_> = objects_of_kind(&started, "setting").into_iter().cloned().collect();
    assert_eq!(
        told,
        [
            json!({"kind": "setting", "id": "ticket.uses", "before": 3, "after": 5}),
            json!({"kind": "setting", "id": "challenge.lifetime_seconds", "after": 60}),
        ]
    );
    let digest = objects_of_kind(&started, "settings")[0];
    assert_ne!(digest["before"]["sha256"], digest["after"]["sha256"]);
    // While nobody served, somebody has changed a pool.
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    again(&mut gateway, None);
    let started = gateway.acts("gateway.start").remove(2);
    assert_eq!(
        (objects_of_kind(&started, "pool").len(), objects_of_kind(&started, "setting").len()),
        (1, 0),
        "{started}"
    );
    // Where it is not known what it went by, all of it is recorded: nobody hides a change by emptying the file.
    for (acts, what_is_known) in [(4, None), (5, Some("")), (6, Some("{\"v\":0,\"things\":[]}"))] {
        gateway.terminate();
        gateway.wait();
        let file = gateway.path("state/standing.json");
        match what_is_known {
            None => fs::remove_file(file).unwrap(),
            Some(text) => fs::write(file, text).unwrap(),
        }
        gateway.run();
        let started = gateway.acts("gateway.start");
        assert_eq!((started.len(), all(&started[acts - 1])), (acts, [true; 4]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_drift_after_the_log_becomes_writable() {
    const ROOM_KIBIBYTES: usize = 1 << 20;
    let mut gateway = Gateway::init();
    gateway.run_as(serving_within(&gateway, ROOM_KIBIBYTES));
    gateway.wait_for_acts(1, "gateway.start");
    let room = |bytes: usize| {
        let process = format!("--pid={}", gateway.process_id());
        let set = Command::new("prlimit").args([process, format!("--fsize={bytes}:")]).status();
        assert!(set.unwrap().success());
    };
    room(1);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.line(|line| line.contains("cannot record the configuration snapshot"));
    room(ROOM_KIBIBYTES * 1024);
    let found = gateway.wait_for_acts(1, "gateway.reload").remove(0);
    assert_eq!(objects_of_kind(&found, "pool").len(), 1, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn splits_a_large_configuration_over_several_events() {
    let mut gateway = Gateway::init();
    let pools: Vec<String> = (0..70).map(|number| format!("rack-{number}")).collect();
    for pool in &pools {
        let [from, to] = [POOL, pool].map(|name| gateway.path(&format!("pools/{name}")));
        assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    }
    gateway.run();
    let started = gateway.acts("gateway.start");
    assert!(started.len() > 1 && started.iter().all(|act| act["admin"]["more"].is_null()));
    let named: Vec<&Value> = started
        .iter()
        .flat_map(|act| objects_of_kind(act, "pool"))
        .map(|pool| &pool["id"])
        .collect();
    for pool in &pools {
        assert!(named.contains(&&json!(pool)), "{pool}");
    }
    assert!(gateway.try_command(&["log", "audit"]).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_snapshot_file_hides_no_drift() {
    let mut gateway = Gateway::init();
    gateway.settings("[ticket]\nuses = 3");
    gateway.run();
    gateway.wait_for_acts(1, "gateway.start");
    let again = |gateway: &mut Gateway| {
        gateway.terminate();
        gateway.wait();
        gateway.run();
    };
    again(&mut gateway);
    assert_eq!(gateway.acts("gateway.start").len(), 1, "nothing is otherwise");
    // Somebody has changed a setting, and the note to say that it was so.
    gateway.settings("[ticket]\nuses = 5");
    let note = gateway.path("state/standing.json");
    let text = fs::read_to_string(&note).unwrap();
    let altered = text.replace("\"id\":\"ticket.uses\",\"after\":3", "\"id\":\"ticket.uses\",\"after\":5");
    assert_ne!(altered, text);
    fs::write(&note, altered).unwrap();
    again(&mut gateway);
    gateway.line(|line| line.contains("WARN") && line.contains("differs from the last configuration snapshot in the attestation log"));
    let started = gateway.acts("gateway.start").remove(1);
    let uses = json!({"kind": "setting", "id": "ticket.uses", "after": 5});
    assert!(objects_of_kind(&started, "setting").contains(&&uses), "{started}");
    // It is said once. What somebody else has written into the log meanwhile is not believed either.
    again(&mut gateway);
    assert_eq!(gateway.acts("gateway.start").len(), 2);
    gateway.terminate();
    gateway.wait();
    let digest = |text: &str| {
        let act = text.lines().rfind(|line| line.contains("\"kind\":\"standing\"")).unwrap();
        let act: Value = serde_json::from_str(act).unwrap();
        objects_of_kind(&act, "standing")[0]["after"]["sha256"].as_str().unwrap().to_owned()
    };
    let log = gateway.path("state/attestation.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let (own, last) = (digest(&text), text.lines().last().unwrap());
    let act = text.lines().rfind(|line| line.contains("\"kind\":\"standing\"")).unwrap();
    let place = |line: &str| attest_log::link_of(line.as_bytes()).unwrap().unwrap();
    let (from, to) = (place(act), place(last));
    let invented = act
        .replace(&own, &"ab".repeat(32))
        .replace(&format!("\"number\":{}", from.number), &format!("\"number\":{}", to.number + 1))
        .replace(&from.previous.to_string(), &attest_log::LineHash::of(last.as_bytes()).to_string());
    fs::write(&log, format!("{text}{invented}\n")).unwrap();
    gateway.run();
    assert_eq!(gateway.acts("gateway.start").len(), 3, "the invented one is one of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_changed_keys_and_trust_anchors() {
    let mut gateway = Gateway::init();
    let public = |gateway: &Gateway| gateway.command(&["log", "show-key"]).lines().nth(1).unwrap().to_owned();
    gateway.run();
    let first = gateway.wait_for_acts(1, "gateway.start").remove(0);
    let old = public(&gateway);
    let key = |act: &Value, id: &str| objects_of_kind(act, "key").into_iter().find(|thing| thing["id"] == id).cloned();
    assert_eq!(key(&first, "log.key").unwrap()["after"]["public"], json!(old));
    gateway.terminate();
    gateway.wait();
    fs::copy(gateway.path("tls/mcs-ca.crt"), gateway.path("ek-roots/new.pem")).unwrap();
    gateway.run();
    let started = gateway.acts("gateway.start").remove(1);
    let anchors = objects_of_kind(&started, "anchor");
    let [anchor] = anchors[..] else { panic!("{started}") };
    assert!(
        anchor["id"].as_str().unwrap().starts_with("ek_roots ") && anchor["before"].is_null(),
        "{anchor}"
    );
    assert!(key(&started, "log.key").is_none());
    gateway.terminate();
    gateway.wait();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    gateway.run();
    let new = public(&gateway);
    gateway.line(|line| line.contains("WARN") && line.contains("log.key has changed") && line.contains(&old) && line.contains(&new));
    let started = gateway.acts("gateway.start").remove(2);
    let log_key = key(&started, "log.key").unwrap();
    assert_eq!(
        (&log_key["before"]["public"], &log_key["after"]["public"]),
        (&json!(old), &json!(new))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn records_ek_roots_that_change_while_it_serves() {
    let gateway = Gateway::start();
    let root = gateway.path("ek-roots/new.pem");
    fs::copy(gateway.path("tls/mcs-ca.crt"), &root).unwrap();
    let added = gateway.wait_for_acts(1, "gateway.reload").remove(0);
    let anchors = objects_of_kind(&added, "anchor");
    let [anchor] = anchors[..] else { panic!("{added}") };
    assert!(
        anchor["id"].as_str().unwrap().starts_with("ek_roots ") && anchor["before"].is_null(),
        "{anchor}"
    );
    fs::remove_file(root).unwrap();
    let removed = gateway.wait_for_acts(2, "gateway.reload").remove(1);
    let [gone] = objects_of_kind(&removed, "anchor")[..] else {
        panic!("{removed}")
    };
    assert_eq!((&gone["id"], &gone["before"]), (&anchor["id"], &anchor["after"]));
    assert!(gone["after"].is_null(), "{gone}");
}
