//! Provisioning tokens from the administrator's side and from the node's, with the real program serving.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, bearer, now, rotating};
use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_system::clock::Clock;
use cloud_fixtures::port::ReservedPort;
use data_encoding::BASE64;
use serde_json::Value;

const DAY: u64 = 86_400;

/// Starts a gateway whose pools accept tokens.
fn accepting(settings: &str) -> Gateway {
    let mut gateway = Gateway::init();
    for pool in [POOL, "infra"] {
        gateway.edit_pool(pool, "token = \"refuse\"", "token = \"full\"");
    }
    gateway.settings(settings);
    gateway.run();
    gateway
}

/// Returns the error of a command that must fail.
#[track_caller]
fn refused(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = gateway.try_command(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}: what failed gives no token away");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the row of `token list` with this state.
#[track_caller]
fn row(gateway: &Gateway, name: &str, state: &str) -> Vec<String> {
    let list = gateway.command(&["token", "list"]);
    let mut rows = list
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>());
    let row = rows.find(|row| row[0] == name && row[2].starts_with(state));
    row.unwrap_or_else(|| panic!("no {state} {name} in:\n{list}"))
        .into_iter()
        .map(str::to_owned)
        .collect()
}

async fn fetch(gateway: &Gateway, client: &reqwest::Client, token: &str) -> Answer {
    let request = client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
    Answer::send(request.header("authorization", bearer(token))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_one_of_fifty_concurrent_token_uses_wins() {
    let gateway = accepting("");
    let token = gateway.token(&["--uses", "1", "--name", "once", "--network", "127.0.0.0/8"]);
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
            tokio::spawn(Answer::send(request.header("authorization", bearer(&token))))
        })
        .collect();
    let full = gateway.rendered(POOL, "full");
    let mut won = 0;
    for answer in asking {
        let answer = answer.await.unwrap();
        if answer.status == 200 {
            answer.is_config(&full);
            won += 1;
        } else {
            answer.refused(403, "token-spent");
        }
    }
    assert_eq!(won, 1);
    let records = gateway.records();
    assert_eq!(records.iter().filter(|record| record["verdict"] == "served").count(), 1);
    assert_eq!(records.iter().filter(|record| record["code"] == "token-spent").count(), 49);
    assert_eq!(row(&gateway, "once", "spent")[3], "1 of 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn token_rotation_reports_stale_pointers() {
    let gateway = accepting("");
    let full = gateway.rendered(POOL, "full");
    let first = gateway.token(&["--name", "rack7", "--uses", "5", "--ttl", "2d"]);
    gateway.config("/config/worker", &[&bearer(&first)]).await.is_config(&full);
    let second = gateway.command(&["token", "rotate", "rack7", "--grace", "12h"]).trim().to_owned();
    assert!(second.len() == 43 && second != first);
    for token in [&second, &first] {
        gateway.config("/config/worker", &[&bearer(token)]).await.is_config(&full);
    }
    // The old one was recognised.
    let records = gateway.records();
    let alerts: Vec<&Value> = records.iter().map(|record| &record["alerts"]).collect();
    assert_eq!(alerts[..2], [&Value::Null, &Value::Null]);
    let alert = alerts[2][0].as_str().unwrap();
    assert!(
        alert.starts_with("stale pointer: token \"rack7\" was rotated at ") && alert.contains("is valid until "),
        "{alert}"
    );
    assert_eq!(
        (&records[2]["name"], &records[2]["use_number"]),
        (&Value::from("rack7"), &Value::from(2))
    );
    let line = gateway.line(|line| line.contains("ALERT"));
    for part in [
        "WARN",
        "token (rack7)",
        "pool=worker",
        "peer=127.0.0.1:",
        "stale pointer",
        "is valid until 20",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let (current, previous) = (row(&gateway, "rack7", "current"), row(&gateway, "rack7", "previous until 20"));
    assert_eq!((current[3].as_str(), previous[3].as_str()), ("1 of 5", "2 of 5"));
    assert_eq!((current[4].as_str(), current[7].as_str()), ("any", "-"));
    // It leaks.
    let third = gateway.command(&["token", "rotate", "rack7", "--grace", "0s"]).trim().to_owned();
    for leaked in [&first, &second] {
        gateway
            .config("/config/worker", &[&bearer(leaked)])
            .await
            .refused(403, "token-expired");
    }
    gateway.config("/config/worker", &[&bearer(&third)]).await.is_config(&full);
    row(&gateway, "rack7", "expired");
    // All of that name go at once.
    assert!(gateway.command(&["token", "revoke", "rack7"]).contains("revoked: 3"));
    gateway
        .config("/config/worker", &[&bearer(&third)])
        .await
        .refused(403, "token-invalid");
    assert!(refused(&gateway, &["token", "rotate", "rack7"]).contains("no token is named \"rack7\""));
    // A token that is typed in the place of its name reaches neither the console nor the log.
    for verb in ["revoke", "rotate"] {
        let said = refused(&gateway, &["token", verb, &third]);
        assert!(said.contains("(43 characters)") && !said.contains(&third), "{said}");
    }
    let acts = gateway.wait_for_acts(2, "token.revoke");
    assert!(!acts.iter().any(|act| act.to_string().contains(&third)), "{acts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_pool_or_network_spends_nothing() {
    let gateway = accepting("");
    let token = gateway.token(&[
        "--name",
        "a",
        "--uses",
        "1",
        "--network",
        "127.0.0.1/32",
        "--network",
        "2001:db8::/32",
    ]);
    gateway
        .config("/config/infra", &[&bearer(&token)])
        .await
        .refused(403, "token-wrong-pool");
    let elsewhere = gateway.client_from([127, 0, 0, 2]);
    let answer = fetch(&gateway, &elsewhere, &token).await;
    answer.refused(403, "token-wrong-network");
    // The node learns where it came from; how the networks lie is the log's.
    let told = answer.problem().detail.unwrap();
    assert!(told.contains("127.0.0.2") && !told.contains("2001:db8"), "{told}");
    let record = gateway.records().pop().unwrap();
    assert!(
        record["reason"].as_str().unwrap().contains("127.0.0.1/32, 2001:db8::/32"),
        "{record}"
    );
    assert_eq!(row(&gateway, "a", "current")[3..5], ["0 of 1", "127.0.0.1/32,2001:db8::/32"]);
    gateway
        .config("/config/worker", &[&bearer(&token)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    // One for both pools.
    let both = gateway.token(&["--pool", "infra", "--name", "both"]);
    for pool in [POOL, "infra"] {
        let answer = gateway.config(&format!("/config/{pool}"), &[&bearer(&both)]).await;
        answer.is_config(&gateway.rendered(pool, "full"));
    }
    assert_eq!(row(&gateway, "both", "current")[1], "infra,worker");
}

#[test]
fn token_create_prints_text_secret_or_pointer() {
    let gateway = Gateway::init();
    let create = |arguments: &[&str]| gateway.command(&[&["token", "create", "--pool", POOL], arguments].concat());
    let pointer = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let bearer_of = |pointer: &Value| {
        pointer["ignition"]["config"]["merge"][0]["httpHeaders"][0]["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(create(&["--name", "text"]).trim().len(), 43);
    let secret = create(&["--name", "secret", "--format", "secret"]);
    for line in ["kind: Secret", "  name: machineconfig-auth", "  namespace: openshift-config"] {
        assert!(secret.lines().any(|found| found == line), "{line} is not in {secret}");
    }
    let encoded = secret.lines().find_map(|line| line.strip_prefix("  token: ")).unwrap();
    assert_eq!(BASE64.decode(encoded.as_bytes()).unwrap().len(), 43);
    let made = pointer(&create(&[
        "--name",
        "pointer",
        "--format",
        "pointer",
        "--url",
        "https://api-int.example.com:22623",
    ]));
    let source = made["ignition"]["config"]["merge"][0]["source"].as_str().unwrap();
    assert!(source.starts_with("https://api-int.example.com:22623/config/worker"), "{source}");
    let again = pointer(&gateway.command(&["token", "rotate", "pointer", "--format", "pointer"]));
    assert_ne!(bearer_of(&made), bearer_of(&again));
    // Of several pools one.
    let two = [
        "token", "create", "--pool", POOL, "--pool", "infra", "--name", "two", "--format", "pointer",
    ];
    assert!(refused(&gateway, &two).contains("--for-pool with one of infra, worker"));
    assert!(refused(&gateway, &[&two[..], &["--for-pool", "master"]].concat()).contains("--for-pool"));
    let infra = pointer(&gateway.command(&[&two[..], &["--for-pool", "infra"]].concat()));
    assert!(
        infra["ignition"]["config"]["merge"][0]["source"]
            .as_str()
            .unwrap()
            .contains("/config/infra")
    );
    assert!(refused(&gateway, &["token", "rotate", "two", "--format", "pointer"]).contains("--for-pool"));
    let list = gateway.command(&["token", "list"]);
    assert_eq!(
        list.lines().filter(|line| line.starts_with("two ")).count(),
        1,
        "nothing changed: {list}"
    );
    let bad = ["--name", "x", "--format", "pointer", "--url", "http://a"];
    assert!(refused(&gateway, &[&["token", "create", "--pool", POOL][..], &bad].concat()).contains("https"));
    // Names: one current token each, and one that is free by default.
    assert!(refused(&gateway, &["token", "create", "--pool", POOL, "--name", "text"]).contains("token rotate"));
    create(&[]);
    create(&[]);
    assert_eq!(
        gateway
            .command(&["token", "list"])
            .lines()
            .filter(|line| line.starts_with("worker-"))
            .count(),
        2
    );
    for wrong in [
        &["--network", "192.0.2.0/33"][..],
        &["--rotate-every", "30d"],
        &["--into", "/tmp"],
        &["--grace", "1h"],
        &["--ttl", "0s"],
        &["--format", "yaml"],
    ] {
        let output = gateway.try_command(&[&["token", "create", "--pool", POOL], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_wrong_credentials_per_source() {
    let port = ReservedPort::reserve();
    let metrics = port.address();
    let gateway = accepting(&format!("[metrics]\nlisten = \"{metrics}\""));
    let (full, early) = (gateway.rendered(POOL, "full"), gateway.rendered(POOL, "pre-approved"));
    let token = gateway.token(&["--name", "good"]);
    let guesser = gateway.client_from([127, 0, 0, 2]);
    let wrong = "A".repeat(43);
    let mut refused = 0;
    // The account is refilled while this goes on: a slow machine needs more than the first twenty.
    let silenced = loop {
        let guess = if refused % 2 == 0 {
            wrong.clone()
        } else {
            format!("ticket.{wrong}")
        };
        let answer = fetch(&gateway, &guesser, &guess).await;
        if answer.status == 503 {
            break answer;
        }
        let code = answer.code();
        assert!(["token-invalid", "ticket-invalid"].contains(&code.as_str()), "{code}");
        refused += 1;
        assert!(refused < 1000);
    };
    silenced.check_retry();
    assert!(refused >= 20, "{refused}");
    assert_eq!(gateway.records().len(), refused, "what is told to come again is not recorded");
    let line = gateway.line(|line| line.contains("too many wrong tokens"));
    assert!(
        line.contains("127.0.0.2") && line.contains("WARN") && !line.contains(&wrong[..9]),
        "{line}"
    );
    // Others are not affected, nor is that source when it shows nothing.
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    let nothing = guesser.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
    Answer::send(nothing).await.is_config(&early);
    let text = reqwest::get(format!("http://{metrics}/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let ignored = text
        .lines()
        .find_map(|line| line.strip_prefix("attest_gateway_wrong_credentials_ignored_total "));
    assert_ne!(ignored, Some("0"), "{text}");
    // Nor is a good node behind the same address.
    for _ in 0..40 {
        fetch(&gateway, &guesser, &token).await.is_config(&full);
    }
    // A refusal that is no guess costs nothing.
    let dead = gateway.token(&["--name", "dead", "--uses", "1"]);
    for number in 0..40 {
        let answer = gateway.config("/config/worker", &[&bearer(&dead)]).await;
        assert_eq!(answer.status, if number == 0 { 200 } else { 403 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_and_tickets_count_against_the_quota() {
    let gateway = accepting("");
    let wrong = "A".repeat(43);
    for (address, guess, code) in [
        ([127, 0, 0, 3], wrong.clone(), "token-invalid"),
        ([127, 0, 0, 4], format!("ticket.{wrong}"), "ticket-invalid"),
    ] {
        let guesser = gateway.client_from(address);
        let mut refused = 0;
        loop {
            let answer = fetch(&gateway, &guesser, &guess).await;
            if answer.status == 503 {
                break answer.check_retry();
            }
            answer.refused(403, code);
            refused += 1;
            assert!(refused < 1000, "{code} is not counted");
        }
        assert!(refused >= 20, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_accepts_tokens_once_granted() {
    let mut gateway = Gateway::init();
    gateway.run();
    let token = gateway.token(&["--name", "a", "--uses", "1"]);
    gateway
        .config("/config/worker", &[&bearer(&token)])
        .await
        .refused(403, "token-not-accepted");
    assert_eq!(row(&gateway, "a", "current")[3], "0 of 1");
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    gateway
        .config("/config/worker", &[&bearer(&token)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    assert_eq!(row(&gateway, "a", "spent")[3], "1 of 1");
    gateway
        .config("/config/infra", &[&bearer(&token)])
        .await
        .refused(403, "token-not-accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_part_of_a_token_is_ever_in_a_log() {
    let gateway = accepting("[log]\nfilter = \"trace\"");
    let good = gateway.token(&["--name", "good"]);
    let expired = gateway.token(&["--name", "expired"]);
    let stale = gateway.token(&["--name", "stale"]);
    let elsewhere = gateway.token(&["--name", "elsewhere", "--network", "192.0.2.0/24"]);
    let spent = gateway.token(&["--name", "spent", "--uses", "1"]);
    let other_pool = gateway
        .command(&["token", "create", "--pool", "infra", "--name", "other"])
        .trim()
        .to_owned();
    gateway.command(&["token", "rotate", "expired", "--grace", "0s"]);
    gateway.command(&["token", "rotate", "stale"]);
    let wrong = "Zm9vYmFyLXdyb25nLXRva2VuLW9mLWEtZ3Vlc3Nlci0".to_owned();
    let odd = "x9Kq2vLr7~tB4nWz8~mJ5hGd3".to_owned();
    let all = [good, expired, stale, elsewhere, spent.clone(), spent, other_pool, wrong, odd];
    for token in &all {
        let encoded: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for query in [
            format!("?token={token}"),
            format!("?token={encoded}"),
            format!("?a=b&%74oken={encoded}&c=d"),
        ] {
            gateway.config(&format!("/config/worker{query}"), &[]).await;
            // Where there is nothing.
            gateway.config(&format!("/config/nowhere{query}"), &[]).await;
            gateway.config(&format!("/nowhere{query}"), &[]).await;
        }
        gateway.config("/config/worker", &[&bearer(token)]).await;
        gateway.config("/config/worker", &[&format!("Basic {token}")]).await;
        gateway.config("/config/worker", &[&bearer(token), &bearer(token)]).await;
    }
    let records = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    let codes = [
        "token-invalid",
        "token-expired",
        "token-spent",
        "token-wrong-pool",
        "token-wrong-network",
        "credential-malformed",
        "stale pointer",
    ];
    for code in codes {
        assert!(records.contains(code), "{code} was not tried");
    }
    let console = gateway.output();
    assert!(console.contains("TRACE") || console.contains("DEBUG"), "the filter had an effect");
    for token in &all {
        let encoded: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for text in [token, &encoded] {
            for part in text.as_bytes().windows(9) {
                let part = str::from_utf8(part).unwrap();
                for (log, name) in [(&console, "console"), (&records, "attestation log")] {
                    assert!(!log.to_lowercase().contains(&part.to_lowercase()), "{part:?} is in the {name}");
                }
            }
        }
    }
}

/// Makes a scheduled token in the gateway's own folder `out`.
fn scheduled(gateway: &Gateway) -> String {
    let out = gateway.path("out");
    fs::create_dir(&out).unwrap();
    gateway.token(&["--name", "fleet", "--rotate-every", "30d", "--into", out.to_str().unwrap()])
}

fn published(out: &Path) -> String {
    fs::read_to_string(out.join("fleet.token")).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_gateway_rotates_scheduled_tokens() {
    let mut gateway = accepting("");
    let first = scheduled(&gateway);
    let out = gateway.path("out");
    assert_eq!(published(&out), first);
    assert!(row(&gateway, "fleet", "current")[7].starts_with("20"));
    let pointer: Value = serde_json::from_str(&fs::read_to_string(out.join("fleet-worker.ign")).unwrap()).unwrap();
    let source = pointer["ignition"]["config"]["merge"][0]["source"].as_str().unwrap();
    assert!(
        source.starts_with(&format!("https://localhost:{}/config/worker", gateway.address().port())),
        "{source}"
    );
    // A month later, in this process, which can be told the time.
    gateway.kill();
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    let server = Server::bind(settings, Clock::Fixed(now() + 30 * DAY)).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));
    let full = gateway.rendered(POOL, "full");
    let deadline = std::time::Instant::now() + LIMIT;
    // The pointer that the gateway publishes is good at every moment.
    let second = loop {
        let token = published(&out);
        gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
        if token != first {
            break token;
        }
        assert!(std::time::Instant::now() < deadline);
    };
    gateway.config("/config/worker", &[&bearer(&first)]).await.is_config(&full);
    let last = gateway.records().pop().unwrap();
    assert!(last["alerts"][0].as_str().unwrap().contains("stale pointer"), "{last}");
    assert!(fs::read_to_string(out.join("fleet-worker.ign")).unwrap().contains(&second));
    drop(stop);
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_impossible_rotation_schedule() {
    let gateway = Gateway::init();
    let out = gateway.path("out");
    let create = |arguments: &[&str]| {
        let (every, others) = arguments.split_first().unwrap();
        refused(&gateway, &[&rotating(every, out.to_str().unwrap()), others].concat())
    };
    assert!(create(&["30d"]).contains("create the folder first"));
    fs::create_dir(&out).unwrap();
    let short = create(&["30d", "--ttl", "30d"]);
    assert!(short.contains("needs --ttl of at least 31d"), "{short}");
    assert!(create(&["1m"]).contains("every 5m at most"));
    assert!(create(&["30d", "--url", "http://localhost"]).contains("https only"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    assert_eq!(gateway.command(&["token", "list"]).lines().count(), 1);
}

#[test]
fn token_create_prints_the_scheduled_tokens_pointer() {
    let gateway = Gateway::init();
    let out = gateway.path("out");
    fs::create_dir(&out).unwrap();
    let create = rotating("1d", out.to_str().unwrap());
    let url = ["--url", "https://api-int.example.com:22623", "--format", "pointer"];
    let made = gateway.command(&[&create[..], &url].concat());
    assert_eq!(made, fs::read_to_string(out.join("fleet-worker.ign")).unwrap());
    let rotated = gateway.command(&["token", "rotate", "fleet", "--format", "pointer"]);
    assert_eq!(rotated, fs::read_to_string(out.join("fleet-worker.ign")).unwrap());
    assert!(rotated != made && rotated.contains("https://api-int.example.com:22623/config/worker"));
    let secret = gateway.command(&["token", "rotate", "fleet", "--format", "secret"]);
    assert_eq!(secret, fs::read_to_string(out.join("fleet.secret.yaml")).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_fetch_fails_while_a_token_rotates() {
    let gateway = Arc::new(accepting(""));
    let first = scheduled(&gateway);
    let full = Arc::new(gateway.rendered(POOL, "full"));
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let (gateway, full, done) = (Arc::clone(&gateway), Arc::clone(&full), Arc::clone(&done));
            tokio::spawn(async move {
                // As a machine that boots with whatever pointer there is at that moment; one more after the last rotation.
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let token = published(&gateway.path("out"));
                    fetch(&gateway, &gateway.client, &token).await.is_config(&full);
                    if last {
                        return token;
                    }
                }
            })
        })
        .collect();
    let mut newest = first;
    for _ in 0..5 {
        let rotating = Arc::clone(&gateway);
        newest = tokio::task::spawn_blocking(move || rotating.command(&["token", "rotate", "fleet"]))
            .await
            .unwrap()
            .trim()
            .to_owned();
    }
    done.store(true, Ordering::SeqCst);
    for client in clients {
        assert_eq!(client.await.unwrap(), newest);
    }
}
