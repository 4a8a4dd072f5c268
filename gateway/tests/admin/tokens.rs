//! Commands that change tokens.

use std::fs;

use attest_log::admin::Verb;
use serde_json::{Value, json};

use super::*;
use crate::support::{POOL, now, program};

/// Token as a person might choose it, long enough to be accepted.
const BROUGHT: &str = "correct-horse-battery-staple-0001";

fn things(act: &Value) -> Vec<(&str, &Value, &Value)> {
    let things = act["admin"]["things"].as_array().unwrap().iter();
    things
        .map(|thing| (thing["id"].as_str().unwrap(), &thing["before"], &thing["after"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_token_commands_with_the_user() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let began = now();
    let mut secrets = vec![gateway.token(&["--name", "rack", "--uses", "3", "--ttl", "1h"])];
    let created = gateway.wait_for_acts(1, "token.create").remove(0);
    let file = gateway.path("brought");
    fs::write(&file, BROUGHT).unwrap();
    gateway.token(&["--name", "old", "--from-file", &file.display().to_string()]);
    secrets.push(BROUGHT.to_owned());
    let imported = gateway.wait_for_acts(1, "token.import").remove(0);
    secrets.push(gateway.command(&["token", "rotate", "rack"]).trim().to_owned());
    let rotated = gateway.wait_for_acts(1, "token.rotate").remove(0);
    gateway.command(&["token", "revoke", "rack"]);
    let revoked = gateway.wait_for_acts(2, "token.revoke");

    let admin = &created["admin"];
    let by = &admin["by"];
    assert_eq!(by["uid"], rustix::process::getuid().as_raw());
    assert!(
        by["pid"].as_u64().unwrap() > 1 && by["pid"] != std::process::id() && by["gateway"].is_null(),
        "{by}"
    );
    assert!(!by["host"].as_str().unwrap().is_empty());
    let (done, recorded) = (admin["at"].as_u64().unwrap(), created["at"].as_u64().unwrap());
    assert!((began..=recorded).contains(&done) && recorded <= now());
    assert_eq!((&admin["refused"], &created["verdict"]), (&Value::Null, &Value::Null));
    let after = |act: &Value| things(act)[0].2.clone();
    let token = after(&created);
    let made = token["created"].as_u64().unwrap();
    assert!((began..=done).contains(&made));
    assert_eq!(
        token,
        json!({"name": "rack", "pools": [POOL], "created": made, "expires": made + 3600, "uses": 3})
    );
    assert_eq!(things(&created), [("rack", &Value::Null, &token)]);
    assert_eq!((things(&imported)[0].0, things(&imported)[0].1), ("old", &Value::Null));
    // The new one, and what has become of the one before.
    let mut both = things(&rotated);
    both.sort_by_key(|(_, before, _)| before.is_null());
    let [(_, before, changed), (_, none, new)] = both[..] else {
        panic!("{rotated}")
    };
    assert_eq!((before, none), (&token, &Value::Null));
    assert!(
        changed["superseded"]["at"].is_u64() && changed["superseded"].as_object().unwrap().len() == 1,
        "{changed}"
    );
    assert_eq!((&new["uses"], &new["superseded"]), (&json!(3), &Value::Null));
    assert!(revoked.iter().all(|act| things(act)[0].2.is_null()), "each is gone");

    // Nothing of what a token is, nor of what it stands under in the store, is anywhere.
    gateway.terminate();
    gateway.wait();
    let export = gateway.path("a.backup");
    gateway.command(&["backup", &export.display().to_string()]);
    let entries: Vec<Value> = fs::read_to_string(&export)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let keys = entries.iter().filter_map(|entry| entry["key"].as_str());
    let hash = keys.filter_map(|key| key.strip_prefix("entry/token/")).next().unwrap();
    secrets.push(hash.to_owned());
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    for secret in &secrets {
        for (text, place) in [(&log, "log"), (&gateway.output(), "console")] {
            assert!(!text.contains(secret), "{secret} is in the {place}");
        }
    }
    let audit = gateway.command(&["log", "audit"]);
    for verb in ["token.create", "token.import", "token.rotate", "token.revoke"] {
        assert!(audit.contains(&format!("{verb} by ")), "{audit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_offline_commands_at_the_next_start() {
    let mut gateway = Gateway::init();
    // The command says what it has always said.
    let output = gateway.try_command(&["token", "create", "--pool", POOL, "--name", "rack"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().count() == 2 && !said.contains("outbox"), "{said}");
    gateway.command(&["token", "rotate", "rack"]);
    let waits = acts_waiting(&gateway).await;
    assert_eq!(
        waits.iter().map(|act| &act["verb"]).collect::<Vec<_>>(),
        ["token.create", "token.rotate"]
    );
    let ids: Vec<_> = waiting(&gateway).await.into_iter().map(|act| act.id).collect();
    gateway.run();
    gateway.wait_for_acts(1, "token.create");
    gateway.wait_for_acts(1, "token.rotate");
    let recorded: Vec<_> = gateway
        .log_lines()
        .into_iter()
        .filter_map(|line| line["admin"]["outbox"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(recorded, ids, "in the order in which it was done");
    gateway.terminate();
    gateway.wait();
    assert!(waiting(&gateway).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn records_refused_token_commands() {
    let gateway = Gateway::start();
    gateway.token(&["--name", "rack"]);
    for arguments in [
        &["token", "create", "--pool", POOL, "--name", "rack"][..],
        &["token", "rotate", "nobody"],
        &["token", "revoke", "nobody"],
    ] {
        assert!(!gateway.try_command(arguments).status.success());
    }
    let created = gateway.wait_for_acts(2, "token.create").remove(1);
    assert!(created["admin"]["refused"].as_str().unwrap().contains("\"rack\""), "{created}");
    assert!(created["admin"]["things"].is_null());
    for verb in ["token.rotate", "token.revoke"] {
        let refused = gateway.wait_for_acts(1, verb).remove(0);
        assert!(refused["admin"]["refused"].as_str().unwrap().contains("nobody"), "{refused}");
    }
    assert!(gateway.command(&["log", "audit"]).contains("refused: no token is named"));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_the_sudo_user_from_the_environment() {
    let gateway = Gateway::init();
    let by = |gateway: &Gateway, environment: &[(&str, &str)]| {
        let mut command = program();
        command.env_clear().arg("--config").arg(gateway.path("gateway.toml"));
        command.envs(environment.iter().copied()).args(["token", "create", "--pool", POOL]);
        assert!(command.output().unwrap().status.success());
    };
    by(&gateway, &[]);
    by(&gateway, &[("SUDO_UID", "1000"), ("SUDO_USER", "alice\n\u{1b}[2J")]);
    by(&gateway, &[("SUDO_UID", "a"), ("SUDO_USER", "")]);
    let acts = acts_waiting(&gateway).await;
    let sudo: Vec<_> = acts.iter().map(|act| (&act["by"]["sudo_uid"], &act["by"]["sudo_user"])).collect();
    let (uid, user) = (json!(1000), json!("alice[2J"));
    assert_eq!(sudo, [(&Value::Null, &Value::Null), (&uid, &user), (&Value::Null, &Value::Null)]);
}

#[test]
fn schema_and_reference_page_list_all_verbs() {
    let schema: Value = serde_json::from_slice(&fs::read("../docs/attestation-log.schema.json").unwrap()).unwrap();
    let listed = schema["$defs"]["admin"]["properties"]["verb"]["enum"].as_array().unwrap();
    let known: Vec<Value> = Verb::ALL.iter().map(|verb| json!(verb.label())).collect();
    assert_eq!(*listed, known);
    let text = fs::read_to_string("../docs/reference/attestation-log.md").unwrap();
    let section = text.split("\n## Acts\n").nth(1).unwrap().split("\n## ").next().unwrap();
    // A row may name several verbs in its first cell.
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let verbs: Vec<&str> = cells.flat_map(|cell| cell.split('`')).filter(|word| word.contains('.')).collect();
    assert_eq!(verbs, Verb::ALL.iter().map(|verb| verb.label()).collect::<Vec<_>>());
    for verb in Verb::ALL {
        assert_eq!(serde_json::to_value(verb).unwrap(), verb.label());
    }
}
