//! Limits on the resources that unauthenticated clients can occupy: connections, bodies, memory, the log. Other clients are still served.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::held::{Held, held};
use crate::support::kubelet::{Cluster, Connection, PATH, client, embedded, in_process};
use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, bearer, challenge_request, tpm};
use attest::UnixTime;
use attest_gateway::admission::Spending;
use attest_log::{Basis, Decision, Record, RequestDigests};
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Address of unauthenticated clients. All addresses in 127.0.0.0/8 belong to this machine.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Address of the nodes.
const NODE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Opens a connection from this address, with its handshake.
async fn connect(gateway: &Gateway, from: Ipv4Addr) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = gateway.connect_from(from).await?;
    let config = client(gateway, &[&TLS13], None);
    TlsConnector::from(Arc::new(config))
        .connect("localhost".try_into().unwrap(), stream)
        .await
}

/// Sends the head of a request with evidence, and the first bytes of its body after the gateway's `100 Continue`.
async fn unfinished(gateway: &Gateway, from: Ipv4Addr, announced: usize, first: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut stream = connect(gateway, from).await?;
    let head =
        format!("POST /v1/attest/evidence HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {announced}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut line = [0; 25];
    stream.read_exact(&mut line).await?;
    if line.starts_with(b"HTTP/1.1 503 ") {
        return Err(std::io::Error::other("there was no room for it"));
    }
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(first).await?;
    stream.flush().await?;
    Ok(stream)
}

async fn fetch(gateway: &Gateway, client: &reqwest::Client, credential: &str) -> Answer {
    let request = client.get(gateway.url(PATH)).header("accept", accept(SPEC)).bearer_auth(credential);
    Answer::send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_unfinished_bodies_do_not_block_other_requests() {
    let mut gateway = Gateway::init();
    gateway.settings("[limits]\nrequests = 4");
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    // From elsewhere, and from the node's own address.
    for stranger in [STRANGER, NODE] {
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(unfinished(&gateway, stranger, 1000, b"{").await.unwrap());
        }
        let ticket = gateway.ticket().await;
        gateway.config(PATH, &[&bearer(&ticket)]).await.is_config(&full);
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_40_memory_for_bodies_has_a_bound_in_bytes() {
    const LARGE_BYTES: usize = 2 * 1024 * 1024 - 1;
    let mut gateway = Gateway::init();
    gateway.settings("[limits]\nbody_bytes = 8388608");
    gateway.run();
    drop(gateway.ticket().await);
    let before = memory(&gateway);
    let gateway = Arc::new(gateway);
    let mut strangers = JoinSet::new();
    for _ in 0..100 {
        let gateway = Arc::clone(&gateway);
        // All but the last byte, and then until the gateway has had enough of it.
        strangers.spawn(async move {
            let stranger = unfinished(&gateway, STRANGER, LARGE_BYTES + 1, &vec![b' '; LARGE_BYTES]).await;
            if let Ok(mut stream) = stranger {
                let mut answer = Vec::new();
                drop(stream.read_to_end(&mut answer).await);
                assert!(
                    answer.is_empty() || answer.starts_with(b"HTTP/1.1 503 "),
                    "{}",
                    String::from_utf8_lossy(&answer)
                );
            }
        });
    }
    // No more than four of them have room at a time.
    for _ in 0..96 {
        strangers.join_next().await.unwrap().unwrap();
    }
    drop(gateway.ticket().await);
    let grown = memory(&gateway).saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes for bodies of 8 MiB in all");
}

/// Returns the gateway's peak memory so far, in bytes.
fn memory(gateway: &Gateway) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.process_id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_26_a_challenge_flood_gets_503_with_retry_after() {
    let gateway = Gateway::init();
    let running = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let case = tpm();
    gateway.endorse(&case, &[]);
    let asked = challenge_request(&case, POOL);
    let ask = async |address: Ipv4Addr| {
        let client = gateway.client_from(address);
        Answer::send(client.post(gateway.url("/v1/attest/challenge")).json(&asked)).await
    };
    assert_eq!(ask(STRANGER).await.status, 200);
    // By a minute from now: a machine that is slow to ask gives it no second's part back.
    let soon = UnixTime::since_unix_epoch(Duration::from_secs(running.clock.now().as_secs() + 60));
    while running.admission.challenges.spend(STRANGER.into(), 1, soon) == Spending::Granted {}
    ask(STRANGER).await.refused(503, "unavailable");
    assert_eq!(ask(NODE).await.status, 200);
    let metrics = running.metrics.text().unwrap();
    assert!(metrics.contains("attest_gateway_challenges_rate_limited_total 1\n"), "{metrics}");
    assert!(gateway.records().is_empty(), "what is told to come again is not recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_37_refusals_do_not_fill_the_disk() {
    let gateway = Gateway::init();
    let running = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let (stranger, node) = (gateway.client_from(STRANGER), gateway.client_from(NODE));
    let wrong = format!("ticket.{}", "A".repeat(43));
    fetch(&gateway, &stranger, &wrong).await.refused(403, "ticket-invalid");
    // As if it had been refused for half an hour.
    let mut refusal = Record::new(
        String::new(),
        Decision::Challenge,
        running.clock.now().as_secs(),
        format!("{STRANGER}:1"),
        POOL.to_owned(),
    );
    refusal.code = Some("ek-not-endorsed".to_owned());
    refusal.basis = Some(Box::new(Basis {
        digests: Some(RequestDigests::default()),
        ..Basis::default()
    }));
    refusal.reason = "x".repeat(1024 * 1024);
    let mut lines = Vec::new();
    for number in 0..40 {
        refusal.id = format!("{number:032x}");
        let recorded = running.recorder.record(&refusal, Vec::new(), ()).await.unwrap();
        lines.extend(recorded.line().map(str::to_owned));
    }
    // Who is counted is told no record.
    let records = gateway.records();
    let written = records.iter().filter(|record| record["decision"] == "challenge");
    let written: Vec<&str> = written.map(|record| record["id"].as_str().unwrap()).collect();
    assert_eq!(lines, written);
    assert!(!lines.is_empty() && lines.len() < 40, "{lines:?}");
    let bytes = || fs::metadata(gateway.path("state/attestation.jsonl")).unwrap().len();
    assert!(bytes() < 10_000_000, "{} bytes", bytes());
    for _ in 0..5 {
        fetch(&gateway, &stranger, &wrong).await.refused(403, "ticket-invalid");
    }
    // Others are recorded one by one beside it, and so is whoever gets something.
    let of = |peer: Ipv4Addr| {
        let records = gateway.records().into_iter();
        let of = records.filter(|record| record["peer"].as_str().unwrap().starts_with(&format!("{peer}:")));
        of.map(|record| record["verdict"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    fetch(&gateway, &node, &wrong).await.refused(403, "ticket-invalid");
    let ticket = gateway.ticket().await;
    fetch(&gateway, &stranger, &ticket).await.is_config(&gateway.rendered(POOL, "full"));
    assert_eq!(of(NODE), ["refused", "trusted"]);
    // What is not recorded is counted.
    running.recorder.sum_up(running.clock.now().as_secs(), true).await.unwrap();
    let one_by_one = of(STRANGER);
    assert_eq!(one_by_one.last().unwrap(), "served");
    let records = gateway.records();
    let counted: Vec<_> = records.iter().filter(|record| record["decision"] == "counted").collect();
    assert!(counted.iter().all(|line| line["peer"] == STRANGER.to_string()), "{counted:?}");
    assert_eq!((counted.len(), counted[0]["counted"].as_u64()), (2, Some(0)));
    assert_eq!(counted[1]["counted"], 1 + 40 + 5 + 1 - one_by_one.len());
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_idle_connections_and_slow_readers_are_evicted() {
    let mut gateway = Gateway::init();
    // They would be closed for their silence after a while; this is about those that others need at once.
    gateway.settings("[limits]\nconnections = 20\nheader_seconds = 120\nhandshake_seconds = 120");
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    for stranger in [STRANGER, NODE] {
        let mut idle = Vec::new();
        for number in 0..40 {
            // Those from the node's own address make room when they have been idle for a second.
            let mut stream = connect(&gateway, stranger).await.unwrap();
            if number % 2 == 0 {
                stream
                    .write_all(b"GET /config/worker HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    .await
                    .unwrap();
            }
            idle.push(stream);
        }
        let ticket = gateway.ticket().await;
        gateway.config(PATH, &[&bearer(&ticket)]).await.is_config(&full);
        // What has lost its place is closed, and holds nothing any longer. It has asked for nothing, so nothing else comes.
        let closed = tokio::time::timeout(LIMIT, idle[1].read(&mut [0; 1])).await.unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }
}

/// A source whose connections are all busy opens another one: only this source waits for a place.
#[tokio::test(flavor = "multi_thread")]
async fn attack_38_a_connection_flood_delays_only_its_source() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
    let gateway = Gateway::init();
    gateway.settings("[limits]\nconnections = 5\nheader_seconds = 120\nrequest_seconds = 120");
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let token = gateway.token(&[]);
    let store = Arc::new(held(embedded(&gateway)));
    in_process(&gateway, Arc::<Held>::clone(&store)).await;
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&gateway, STRANGER).await.unwrap();
        let request = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        store.beside.came().await;
        busy.push(stream);
    }
    let idle = [connect(&gateway, OTHER).await.unwrap(), connect(&gateway, OTHER).await.unwrap()];
    // Nothing of its own can be given up for it, and others have less.
    let waiting = gateway.connect_from(STRANGER).await.unwrap();
    let node = gateway.client_from(NODE);
    let answer = tokio::time::timeout(LIMIT, fetch(&gateway, &node, "no-such-token")).await;
    answer.unwrap().refused(403, "token-invalid");
    store.beside.let_go(busy.len());
    drop((waiting, idle));
}

/// A thousand machines boot behind one balancer.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_nodes_behind_one_address_boot_at_once() {
    const NODES: usize = 1000;
    let gateway = Gateway::start();
    let full = gateway.rendered(POOL, "full");
    let first = Arc::new(tpm());
    gateway.endorse(&first, &[]);
    let gateway = Arc::new(gateway);
    let client = Arc::new(gateway.client_from(NODE));
    let mut nodes = JoinSet::new();
    for _ in 0..NODES {
        // Next boots of one machine: endorsing a thousand of them is not what this is about.
        let case = support::next_boot(&first);
        let asked = challenge_request(&case, POOL);
        let challenge = gateway.challenge(&case, None);
        let answer = gateway.answer(case, &challenge);
        let (gateway, client, full) = (Arc::clone(&gateway), Arc::clone(&client), full.clone());
        let first = Arc::clone(&first);
        nodes.spawn(async move {
            let challenge = send_until_served(|| client.post(gateway.url("/v1/attest/challenge")).json(&asked)).await;
            assert_eq!(challenge.status, 200);
            // One whose challenge was spent when there was no processor left for it asks for another, as nodes do.
            let mut evidence = send_until_served(|| client.post(gateway.url("/v1/attest/evidence")).json(&answer)).await;
            if evidence.status == 403 {
                evidence.refused(403, "challenge-spent");
                let case = support::next_boot(&first);
                let challenge = gateway.challenge(&case, None);
                let answer = gateway.answer(case, &challenge);
                evidence = send_until_served(|| client.post(gateway.url("/v1/attest/evidence")).json(&answer)).await;
            }
            let ticket = evidence.ticket();
            let config = || client.get(gateway.url(PATH)).header("accept", accept(SPEC)).bearer_auth(&ticket);
            send_until_served(config).await.is_config(&full);
        });
    }
    while let Some(node) = nodes.join_next().await {
        node.unwrap();
    }
}

/// Retries while the answer is 503, as nodes do.
async fn send_until_served(request: impl Fn() -> reqwest::RequestBuilder) -> Answer {
    loop {
        let answer = Answer::send(request()).await;
        if answer.status != 503 {
            return answer;
        }
    }
}

/// Sends this credential until the gateway answers 503. Returns the number of refusals before.
async fn send_until_503(gateway: &Gateway, client: &reqwest::Client, wrong: &str, code: &str) -> usize {
    for refused in 0..1000 {
        let answer = fetch(gateway, client, wrong).await;
        if answer.status == 503 {
            answer.check_retry();
            return refused;
        }
        answer.refused(403, code);
    }
    unreachable!("wrong credentials are not counted")
}

fn accepting_tokens() -> Gateway {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_wrong_tickets_block_no_right_credential() {
    let gateway = accepting_tokens();
    let full = gateway.rendered(POOL, "full");
    let (token, ticket) = (gateway.token(&[]), gateway.ticket().await);
    let shared = gateway.client_from(STRANGER);
    let refused = send_until_503(&gateway, &shared, &format!("{ticket}A"), "ticket-invalid").await;
    assert!(refused >= 20, "{refused}");
    for _ in 0..3 {
        fetch(&gateway, &shared, &ticket).await.is_config(&full);
        fetch(&gateway, &shared, &token).await.is_config(&full);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_wrong_tokens_block_no_right_credential() {
    let gateway = accepting_tokens();
    let full = gateway.rendered(POOL, "full");
    let (token, ticket) = (gateway.token(&[]), gateway.ticket().await);
    let shared = gateway.client_from(STRANGER);
    let refused = send_until_503(&gateway, &shared, &"A".repeat(43), "token-invalid").await;
    assert!(refused >= 20, "{refused}");
    for _ in 0..3 {
        fetch(&gateway, &shared, &token).await.is_config(&full);
        fetch(&gateway, &shared, &ticket).await.is_config(&full);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_wrong_certificates_block_no_right_credential() {
    let cluster = Cluster::new();
    let gateway = support::kubelet::start(&cluster);
    let full = gateway.rendered(POOL, "full");
    let ticket = gateway.ticket().await;
    let mut stranger = Connection::open(&gateway, Some(&Cluster::new().kubelet("worker-1"))).await;
    while stranger.get(PATH, &[]).await.status == 403 {}
    let mut node = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    node.get(PATH, &[]).await.is_config(&full);
    gateway.config(PATH, &[&bearer(&ticket)]).await.is_config(&full);
}
