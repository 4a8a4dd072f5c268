//! A client that requests a config presents one valid credential, or none. Anything else is refused, and nothing is served in its place.

use std::time::Duration;

use crate::support;
use crate::support::{Answer, Gateway, POOL, SPEC, accept, bearer, now, tpm};
use attest::{NodeIdentity, UnixTime};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::credentials::tickets::{self, TicketConfig, TicketGrant};
use attest_gateway::settings::TicketSettings;

/// Starts a gateway with pools that give everything to a client with a valid credential, and as little as possible to others.
fn generous() -> Gateway {
    let mut gateway = Gateway::init();
    for pool in [POOL, "infra"] {
        gateway.edit_pool(pool, "token = \"refuse\"", "token = \"full\"");
    }
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_refuses_malformed_credentials() {
    let gateway = generous();
    let token = gateway.token(&["--uses", "1000"]);
    let full = gateway.rendered(POOL, "full");
    gateway
        .config("/config/worker", &[])
        .await
        .is_config(&gateway.rendered(POOL, "pre-approved"));
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    gateway.config(&format!("/config/worker?token={token}"), &[]).await.is_config(&full);

    let long = "a".repeat(5000);
    let flipped = if token.starts_with('A') {
        token.replacen('A', "B", 1)
    } else {
        format!("A{}", &token[1..])
    };
    let cases: &[(&str, &[&str], &str)] = &[
        ("", &[""], "credential-malformed"),
        ("", &["Bearer"], "credential-malformed"),
        ("", &["Bearer "], "credential-malformed"),
        ("", &[&format!("Bearer  {token}")], "credential-malformed"),
        ("", &[&format!("Bearer {token} x")], "credential-malformed"),
        ("", &[&format!("Bearer\t{token}")], "credential-malformed"),
        ("", &[&format!("Basic {token}")], "credential-malformed"),
        ("", &[&format!("Negotiate {token}")], "credential-malformed"),
        ("", &[&token], "credential-malformed"),
        ("", &[&format!("Bearer {long}")], "credential-malformed"),
        ("?token=", &[], "credential-malformed"),
        ("?token", &[], "credential-malformed"),
        ("", &[&bearer(&token), &bearer(&token)], "credential-ambiguous"),
        (&format!("?token={token}"), &[&bearer(&token)], "credential-ambiguous"),
        (&format!("?token={token}&token={token}"), &[], "credential-ambiguous"),
        (&format!("?token={token}"), &["Basic eDp4"], "credential-malformed"),
        ("", &[&bearer(&flipped)], "token-invalid"),
        ("", &[&bearer(&token[1..])], "token-invalid"),
        ("", &["Bearer null"], "token-invalid"),
        ("", &["Bearer ticket."], "ticket-invalid"),
        ("", &[&format!("Bearer ticket.{token}")], "ticket-invalid"),
    ];
    for (query, authorization, code) in cases {
        let answer = gateway.config(&format!("/config/worker{query}"), authorization).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (403, *code),
            "{query} {authorization:?}"
        );
    }
    // Other pools, other spellings of the path: never the config.
    for path in [
        "/config/master",
        "/config//worker",
        "/config/",
        "/config/Worker",
        "/config/worker%2f..%2finfra",
    ] {
        let answer = gateway.config(path, &[&bearer(&token)]).await;
        assert_eq!(answer.status.as_u16(), 404, "{path}");
    }
    // The log knows of all that, and of no secret.
    let log = std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert_eq!(
        gateway
            .records()
            .iter()
            .filter(|record| record["code"] == "credential-malformed")
            .count(),
        13
    );
    assert!(!log.contains(&token) && !gateway.output().contains(&token));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_pool_policy_refuses_each_credential() {
    let mut gateway = Gateway::init();
    gateway.edit_pool("infra", "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    gateway.edit_pool("infra", "attested = \"full\"", "attested = \"refuse\"");
    gateway.run();
    gateway.config("/config/infra", &[]).await.refused(403, "evidence-required");
    // The sample takes no tokens until its administrator says so.
    gateway
        .config("/config/worker", &[&bearer(&gateway.token(&[]))])
        .await
        .refused(403, "token-not-accepted");
    let case = tpm().but(|case| case.pool = "infra".to_owned());
    gateway.endorse(&case, &[]);
    gateway.attest(case, None).await.refused(403, "attested-not-accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_serves_nothing_while_the_store_fails() {
    let gateway = generous();
    let (token, ticket) = (gateway.token(&[]), gateway.ticket().await);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let evidence = gateway.answer(case, &challenge);

    // Another process holds the database for longer than anybody waits.
    let database = rusqlite::Connection::open(gateway.path("state/gateway.db")).unwrap();
    database.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (by_token, by_ticket) = (bearer(&token), bearer(&ticket));
    let (by_token, by_ticket) = ([by_token.as_str()], [by_ticket.as_str()]);
    let (token_answer, ticket_answer, evidence_answer) = tokio::join!(
        gateway.config("/config/worker", &by_token),
        gateway.config("/config/worker", &by_ticket),
        gateway.post("/v1/attest/evidence", &evidence),
    );
    token_answer.check_retry();
    ticket_answer.check_retry();
    evidence_answer.refused(503, "unavailable");
    drop(database);
    gateway
        .config("/config/worker", &[&bearer(&token)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_concurrent_requests_spend_a_single_use_token_once() {
    let gateway = generous();
    let token = bearer(&gateway.token(&["--uses", "1"]));
    one_wins(&gateway, &token, "token-spent").await;
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_concurrent_requests_spend_the_last_use_once() {
    let gateway = generous();
    let ticket = bearer(&gateway.ticket().await);
    let full = gateway.rendered(POOL, "full");
    for _ in 0..3 {
        gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    }
    one_wins(&gateway, &ticket, "ticket-spent").await;
}

async fn one_wins(gateway: &Gateway, credential: &str, code: &str) {
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let request = gateway
                .client
                .get(gateway.url("/config/worker"))
                .header("accept", accept(SPEC))
                .header("authorization", credential);
            tokio::spawn(Answer::send(request))
        })
        .collect();
    let mut won = 0;
    for answer in asking {
        let answer = answer.await.unwrap();
        if answer.status.as_u16() == 200 {
            answer.is_config(&gateway.rendered(POOL, "full"));
            won += 1;
        } else {
            answer.refused(403, code);
        }
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_21_refuses_another_pools_ticket_or_token() {
    let gateway = generous();
    let (ticket, token) = (bearer(&gateway.ticket().await), bearer(&gateway.token(&["--uses", "1"])));
    gateway.config("/config/infra", &[&ticket]).await.refused(403, "ticket-wrong-pool");
    gateway.config("/config/infra", &[&token]).await.refused(403, "token-wrong-pool");
    // Nor does the attempt cost a use.
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&token]).await.is_config(&full);
    for _ in 0..4 {
        gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    }
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_expired_and_foreign_tickets() {
    let gateway = generous();
    let identity = NodeIdentity::from_ek(support::digest(&tpm()).parse().unwrap());
    let settings = TicketSettings {
        lifetime: Duration::from_secs(600),
        late: Duration::ZERO,
        uses: 4,
    };
    let at = |age: u64| UnixTime::since_unix_epoch(Duration::from_secs(now() - age));
    let earned = TicketGrant {
        identity: &identity,
        instance: None,
        holder: None,
        name: None,
        pool: POOL,
        decision: "dddddddddddddddddddddddddddddddd",
        endorsed_by: None,
        object: None,
        config: &TicketConfig::default(),
    };
    let issue = |seal: &SealKeyRing, age: u64| bearer(&tickets::issue(seal, &settings, &earned, at(age)).unwrap().text);
    let seal = SealKeyRing::open(&gateway.path("state/seal.key")).unwrap();
    let other = SealKeyRing::open(&gateway.path("other.key")).unwrap();
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&issue(&seal, 500)]).await.is_config(&full);
    // Nobody has used it, because there was no gateway meanwhile.
    let patient = TicketSettings {
        late: Duration::from_secs(3600),
        ..settings
    };
    let late = bearer(&tickets::issue(&seal, &patient, &earned, at(700)).unwrap().text);
    gateway.config("/config/worker", &[&late]).await.is_config(&full);
    let line = gateway.line(|line| line.contains("SERVED full config") && line.contains(" s after it expired; it was not used before"));
    assert!(line.contains("INFO"), "{line}");
    gateway
        .config("/config/worker", &[&issue(&seal, 605)])
        .await
        .refused(403, "ticket-expired");
    gateway
        .config("/config/worker", &[&issue(&other, 0)])
        .await
        .refused(403, "ticket-invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_expired_and_revoked_tokens() {
    let gateway = generous();
    let short = gateway.token(&["--ttl", "1s", "--name", "short"]);
    let revoked = gateway.token(&["--name", "lost"]);
    gateway
        .config("/config/worker", &[&bearer(&revoked)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    gateway.command(&["token", "revoke", "lost"]);
    gateway
        .config("/config/worker", &[&bearer(&revoked)])
        .await
        .refused(403, "token-invalid");
    // Waits for the second to pass by asking: each answer is one or the other, and the second comes.
    let deadline = std::time::Instant::now() + support::LIMIT;
    loop {
        let answer = gateway.config("/config/worker", &[&bearer(&short)]).await;
        if answer.status.as_u16() == 403 && answer.code() == "token-expired" {
            break;
        }
        assert!(std::time::Instant::now() < deadline);
    }
}
