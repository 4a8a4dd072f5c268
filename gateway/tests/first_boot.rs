//! A first boot that consists of several: a machine whose kernel arguments change boots again before Ignition has written anything. It then
//! fetches again.

use std::fs;

use crate::support::{Answer, Gateway, POOL, SPEC, accept, bearer};
use attest::protocol::CLAIMANT_HEADER;
use attest_gateway::credentials::tokens::REPEATS_LIMIT;
use data_encoding::BASE64URL_NOPAD;

/// Starts a gateway whose pools accept tokens. Returns it with the config for a token.
fn accepting() -> (Gateway, Vec<u8>) {
    let mut gateway = Gateway::init();
    for pool in [POOL, "infra"] {
        gateway.edit_pool(pool, "token = \"refuse\"", "token = \"full\"");
    }
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    (gateway, full)
}

fn claimant(number: u8) -> String {
    BASE64URL_NOPAD.encode(&[number; 32])
}

/// Requests a node's config with these claimant headers.
async fn boots(gateway: &Gateway, path: &str, token: &str, claimants: &[&str]) -> Answer {
    let mut request = gateway.client.get(gateway.url(path)).header("accept", accept(SPEC));
    request = request.header("authorization", bearer(token));
    for claimant in claimants {
        request = request.header(CLAIMANT_HEADER, *claimant);
    }
    Answer::send(request).await
}

async fn worker(gateway: &Gateway, token: &str, claimant: &str) -> Answer {
    boots(gateway, "/config/worker", token, &[claimant]).await
}

#[track_caller]
fn audited(gateway: &Gateway) {
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_first_boots_use_a_token_once() {
    let (mut gateway, full) = accepting();
    let token = gateway.token(&["--name", "once", "--uses", "1", "--pool", "infra"]);
    worker(&gateway, &token, &claimant(1)).await.is_config(&full);
    worker(&gateway, &token, &claimant(1)).await.is_config(&full);
    gateway.kill();
    gateway.run();
    worker(&gateway, &token, &claimant(1)).await.is_config(&full);
    // Another machine, one that does not say who it is, and the same one for something else.
    worker(&gateway, &token, &claimant(2)).await.refused(403, "token-spent");
    boots(&gateway, "/config/worker", &token, &[]).await.refused(403, "token-spent");
    let elsewhere = boots(&gateway, "/config/infra", &token, &[&claimant(1)]).await;
    elsewhere.refused(403, "token-spent");
    assert!(elsewhere.problem().next_step.contains("--again"));
    let records = gateway.records();
    let reason = |index: usize| records[index]["reason"].as_str().unwrap().to_owned();
    assert_eq!(reason(0), "a provisioning token was shown, use 1");
    assert_eq!(records[0].get("again"), None);
    for again in [1, 2] {
        assert_eq!(reason(again), "a provisioning token was shown, use 1, again");
        assert_eq!((&records[again]["use_number"], &records[again]["again"]), (&1.into(), &true.into()));
    }
    assert!(records[3..].iter().all(|record| record.get("again").is_none()), "{records:?}");
    gateway.line(|line| line.contains("SERVED full config") && line.contains("token (once), a use that was made before"));
    assert!(gateway.command(&["token", "list"]).contains("1 of 1"));
    audited(&gateway);
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    let store = fs::read(gateway.path("state/gateway.db")).unwrap();
    for secret in [claimant(1), claimant(2)] {
        assert!(!log.contains(&secret) && !gateway.output().contains(&secret));
        assert!(!store.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_limits_configs_per_token_and_claimant() {
    let (gateway, full) = accepting();
    let token = gateway.token(&["--uses", "2"]);
    for use_number in [1, 2] {
        for _ in 0..=REPEATS_LIMIT {
            worker(&gateway, &token, &claimant(1)).await.is_config(&full);
            assert_eq!(gateway.records().pop().unwrap()["use_number"], use_number);
        }
    }
    worker(&gateway, &token, &claimant(1)).await.refused(403, "token-spent");
    audited(&gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_one_of_fifty_claimants_gets_the_last_use() {
    let (gateway, full) = accepting();
    let token = gateway.token(&["--uses", "1"]);
    let asking: Vec<_> = (0..50)
        .map(|number| {
            let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
            let request = request
                .header("authorization", bearer(&token))
                .header(CLAIMANT_HEADER, claimant(number));
            tokio::spawn(Answer::send(request))
        })
        .collect();
    let mut won = Vec::new();
    for (number, answer) in (0..).zip(asking) {
        let answer = answer.await.unwrap();
        if answer.status == 200 {
            answer.is_config(&full);
            won.push(number);
        } else {
            answer.refused(403, "token-spent");
        }
    }
    assert_eq!(won.len(), 1);
    for number in 0..50 {
        assert_eq!(worker(&gateway, &token, &claimant(number)).await.status == 200, won == [number]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_a_claimant_does_not_revive_an_invalid_token() {
    let (gateway, full) = accepting();
    let node = claimant(1);
    for (name, gone, code) in [
        ("revoked", &["token", "revoke", "revoked"][..], "token-invalid"),
        ("rotated", &["token", "rotate", "rotated", "--grace", "0s"], "token-expired"),
    ] {
        let token = gateway.token(&["--name", name, "--uses", "1"]);
        worker(&gateway, &token, &node).await.is_config(&full);
        let after = gateway.command(gone);
        worker(&gateway, &token, &node).await.refused(403, code);
        if name == "rotated" {
            // The next one is another token: what was used of the one before is none of its uses.
            worker(&gateway, after.trim(), &node).await.is_config(&full);
            assert_eq!(gateway.records().pop().unwrap()["reason"], "a provisioning token was shown, use 1");
            worker(&gateway, after.trim(), &claimant(2)).await.refused(403, "token-spent");
        }
    }
    let elsewhere = gateway.token(&["--uses", "1", "--network", "192.0.2.0/24"]);
    worker(&gateway, &elsewhere, &node).await.refused(403, "token-wrong-network");
    gateway.edit_pool(POOL, "token = \"full\"", "token = \"refuse\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    worker(&gateway, &elsewhere, &node).await.refused(403, "token-not-accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_a_malformed_claimant_is_refused_without_a_use() {
    let (gateway, full) = accepting();
    let token = gateway.token(&["--uses", "1"]);
    let (good, short) = (claimant(1), BASE64URL_NOPAD.encode(&[7; 31]));
    let answer = worker(&gateway, &token, &short).await;
    answer.refused(403, "credential-malformed");
    let (told, reason) = (answer.problem().detail.unwrap(), gateway.records().pop().unwrap()["reason"].clone());
    assert!(told.contains(CLAIMANT_HEADER) && !told.contains(&short), "{told}");
    assert!(!reason.as_str().unwrap().contains(&short), "{reason}");
    for two in [[&*good, &good], [&good, &short]] {
        let answer = boots(&gateway, "/config/worker", &token, &two).await;
        answer.refused(403, "credential-ambiguous");
    }
    audited(&gateway);
    // It is about tokens: beside a ticket, or nothing, it says nothing.
    let ticket = gateway.ticket().await;
    boots(&gateway, "/config/worker", &ticket, &[&short, &short]).await.is_config(&full);
    let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
    let answer = Answer::send(request.header(CLAIMANT_HEADER, &short)).await;
    answer.is_config(&gateway.rendered(POOL, "pre-approved"));
    worker(&gateway, &token, &good).await.is_config(&full);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_again_option_identifies_a_machine_by_address() {
    let (gateway, full) = accepting();
    let fetch = async |client: &reqwest::Client, token: &str| {
        let request = client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
        Answer::send(request.header("authorization", bearer(token))).await
    };
    let (one, other) = (gateway.client_from([127, 0, 0, 2]), gateway.client_from([127, 0, 0, 3]));
    let token = gateway.token(&["--name", "rack7", "--uses", "2", "--again", "15m"]);
    fetch(&one, &token).await.is_config(&full);
    fetch(&one, &token).await.is_config(&full);
    fetch(&other, &token).await.is_config(&full);
    let records = gateway.records();
    assert_eq!(records[1]["reason"], "a provisioning token was shown, use 1, again");
    assert_eq!(records[2]["reason"], "a provisioning token was shown, use 2");
    fetch(&gateway.client_from([127, 0, 0, 4]), &token)
        .await
        .refused(403, "token-spent");
    let list = gateway.command(&["token", "list"]);
    assert!(list.contains("2 of 2, again for 15m"), "{list}");
    // A node that says who it is is not another one at the same address.
    worker(&gateway, &token, &claimant(1)).await.refused(403, "token-spent");
    // The next token says the same; and not unless somebody has said it.
    let next = gateway.command(&["token", "rotate", "rack7"]);
    for _ in 0..2 {
        fetch(&one, next.trim()).await.is_config(&full);
    }
    assert_eq!(gateway.records().pop().unwrap()["again"], true);
    let plain = gateway.token(&["--uses", "1"]);
    fetch(&one, &plain).await.is_config(&full);
    fetch(&one, &plain).await.refused(403, "token-spent");
    let output = gateway.try_command(&["token", "create", "--pool", POOL, "--again", "15m"]);
    assert!(!output.status.success(), "without a limit there is nothing to use up");
    audited(&gateway);
}

#[test]
fn token_create_warns_of_pools_that_fetch_twice() {
    let gateway = Gateway::init();
    let said = |arguments: &[&str]| {
        let output = gateway.try_command(&[&["token", "create", "--pool", POOL], arguments].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!said(&["--uses", "1"]).contains("fetch twice"));
    let arguments = r#"{"ignition":{"version":"3.4.0"},"kernelArguments":{"shouldExist":["debug"]}}"#;
    fs::write(gateway.path("pools/worker/full/arguments.ign"), arguments).unwrap();
    let told = said(&["--uses", "1"]);
    for part in ["pool worker", "kernelArguments", "--again", "attest-node"] {
        assert!(told.contains(part), "{told}");
    }
    for quiet in [&["--uses", "1", "--again", "15m"][..], &[]] {
        assert!(!said(quiet).contains("fetch twice"));
    }
    // A pool that cannot be read at the moment is no reason to have no token.
    fs::write(gateway.path("pools/worker/full/arguments.ign"), "{").unwrap();
    assert!(!said(&["--uses", "1"]).contains("fetch twice"));
}
