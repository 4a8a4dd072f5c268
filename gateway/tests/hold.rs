//! Waiting time of nodes that get a 503 with `Retry-After`: the gateway's announcement, and the result for a node that has waited in vain.

use crate::support::{Answer, Gateway, POOL, SPEC, accept, bearer, challenge_request, next_boot, tpm};
use attest::protocol::{Discovery, GATEWAY_UNREACHABLE, NOT_ATTESTED_HEADER, RETRY_LIMIT_EXCEEDED, TICKET_UNDELIVERABLE};

/// Returns the waiting time that discovery announces for a pool.
async fn hold(gateway: &Gateway, query: &str) -> Option<u64> {
    let answer = Answer::send(gateway.client.get(gateway.url(&format!("/v1/attest{query}")))).await;
    let discovery: Discovery = serde_json::from_slice(&answer.body).unwrap();
    discovery.hold_seconds
}

/// Requests the config like a node that has given up waiting. Returns the last record's alerts.
async fn abandoned(gateway: &Gateway, code: &str, authorization: Option<&str>) -> Vec<String> {
    let mut request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(SPEC));
    request = request.header(NOT_ATTESTED_HEADER, code);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    Answer::send(request).await;
    let alerts = gateway.records().pop().unwrap()["alerts"].clone();
    serde_json::from_value(alerts).unwrap_or_default()
}

/// Returns whether discovery announces that a challenge accepts the key of the node's kubelet.
async fn takes_key(gateway: &Gateway, query: &str) -> Option<bool> {
    let answer = Answer::send(gateway.client.get(gateway.url(&format!("/v1/attest{query}")))).await;
    serde_json::from_slice::<Discovery>(&answer.body).unwrap().kubelet_key
}

#[tokio::test(flavor = "multi_thread")]
async fn announces_the_pools_hold_seconds() {
    let gateway = Gateway::start();
    assert_eq!(hold(&gateway, "?pool=worker").await, Some(3600));
    // A node of an earlier release does not ask, and would not understand the answer.
    assert_eq!(hold(&gateway, "").await, None);
    for other in ["?pool=", "?pool=master", "?pool=..", "?worker", "?pools=worker"] {
        assert_eq!(hold(&gateway, other).await, None, "{other}");
    }
    // The same of the key that its kubelet will have.
    for (query, expect) in [
        ("?pool=worker&kubelet-key=1", Some(true)),
        ("?kubelet-key", Some(true)),
        ("?pool=worker", None),
        ("?pool=kubelet-key", None),
        ("", None),
    ] {
        assert_eq!(takes_key(&gateway, query).await, expect, "{query}");
    }
    assert_eq!(hold(&gateway, "?kubelet-key=1&pool=worker").await, Some(3600));
    gateway.edit_pool(POOL, "#: [attestation]", "[attestation]\nhold_seconds = 7");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(hold(&gateway, "?pool=worker").await, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_about_a_node_that_gave_up_waiting() {
    let gateway = Gateway::start();
    let alerts = abandoned(&gateway, RETRY_LIMIT_EXCEEDED, None).await;
    assert!(alerts.len() == 1 && alerts[0].contains("it may get a lesser config"), "{alerts:?}");
    gateway.line(|line| line.contains("WARN") && line.contains("retry-limit-exceeded"));
    let alerts = abandoned(&gateway, GATEWAY_UNREACHABLE, None).await;
    assert!(alerts[0].contains("did not reach this gateway"), "{alerts:?}");
    // It decides nothing, and says nothing else: anybody can send it.
    assert!(abandoned(&gateway, "SECRET", None).await.is_empty());
    assert!(!gateway.output().contains("SECRET"));
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let token = gateway.token(&[]);
    assert!(
        abandoned(&gateway, RETRY_LIMIT_EXCEEDED, Some(&bearer(&token))).await.is_empty(),
        "it has got what it wanted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn links_a_refusal_to_the_next_fetch() {
    let gateway = Gateway::start();
    // Refused for a challenge, for evidence, and for what is not looked at.
    let (stranger, known) = (tpm(), tpm());
    gateway.endorse(&known, &[]);
    let challenge = gateway.challenge(&known, None);
    let mut unread = gateway.answer(next_boot(&known), &challenge);
    unread.challenge.insert(0, 'A');
    let forged = gateway.answer(next_boot(&known), &challenge);
    let refusals = [
        gateway.post("/v1/attest/challenge", &challenge_request(&stranger, POOL)).await,
        gateway.post("/v1/attest/evidence", &forged).await,
        gateway.post("/v1/attest/evidence", &unread).await,
    ];
    for (index, (refusal, code)) in refusals
        .iter()
        .zip(["ek-not-endorsed", "quote-signature", "challenge-invalid"])
        .enumerate()
    {
        refusal.refused(403, code);
        let id = refusal.problem().decision.unwrap();
        assert_eq!(
            (&gateway.records()[index]["id"], &gateway.records()[index]["code"]),
            (&id.as_str().into(), &code.into())
        );
        assert!(
            abandoned(&gateway, &format!("{code} {id}"), None).await.is_empty(),
            "it is no alert"
        );
        assert_eq!(
            gateway.records().pop().unwrap()["not_attested"],
            serde_json::json!({ "code": code, "decision": id })
        );
        let end = format!("nothing shown; this node says it was refused: {code} (decision {id})");
        gateway.line(|line| line.contains("SERVED pre-approved") && line.ends_with(&end));
    }
    // What is no refusal of an attestation has none; nor what is not recorded.
    let malformed = gateway.post("/v1/attest/challenge", &serde_json::json!({})).await;
    assert_eq!(
        (malformed.code().as_str(), malformed.problem().decision),
        ("malformed-request", None)
    );
    let unknown = gateway.post("/v1/attest/challenge", &challenge_request(&known, "nowhere")).await;
    assert_eq!((unknown.code().as_str(), unknown.problem().decision), ("pool-unknown", None));
    // What a node says is its word. `audit` compares it, and finds fault with nobody.
    let (first, other) = (gateway.records()[0]["id"].clone(), gateway.records().pop().unwrap()["id"].clone());
    for (code, id) in [("quote-signature", &first), ("ek-not-endorsed", &other)] {
        abandoned(&gateway, &format!("{code} {}", id.as_str().unwrap()), None).await;
    }
    abandoned(&gateway, &format!("ek-not-endorsed {}", "0".repeat(32)), None).await;
    let table = gateway.command(&["log", "audit"]);
    assert!(table.contains("0 different"), "{table}");
    let notes: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("the node reports (unverified)"))
        .collect();
    assert_eq!(notes.len(), 2, "{table}");
    assert!(
        notes[0].contains("which is ek-not-endorsed") && notes[1].contains("which is no refused attestation"),
        "{table}"
    );
    // A refused fetch says it, too.
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    abandoned(&gateway, "ek-not-endorsed", None).await;
    gateway.line(|line| line.contains("REFUSED config") && line.ends_with("; this node says it was refused: ek-not-endorsed"));
    assert!(table.contains("0 different"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_about_a_node_without_a_deliverable_ticket() {
    let gateway = Gateway::start();
    let told = |gateway: &Gateway| {
        let request = gateway.client.head(gateway.url("/config/worker")).header("accept", "*/*");
        Answer::send(request.header(NOT_ATTESTED_HEADER, TICKET_UNDELIVERABLE))
    };
    // What it asks for it does not take.
    let answer = told(&gateway).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
    let warned = |record: &serde_json::Value| {
        record["alerts"][0]
            .as_str()
            .unwrap()
            .starts_with("this node reports ticket-undeliverable: attest-node cannot write a file")
    };
    assert!(warned(&gateway.records().pop().unwrap()));
    gateway.line(|line| line.contains("WARN") && line.contains("ticket-undeliverable"));
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(told(&gateway).await.status.as_u16(), 403);
    let record = gateway.records().pop().unwrap();
    assert!(warned(&record) && record["verdict"] == "refused", "{record}");
}
