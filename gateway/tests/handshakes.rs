//! Queue for TLS handshakes, and sources that keep others from one.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use attest_gateway::admission::Spending;
use attest_gateway::api::Gateway as Inside;
use cloud_fixtures::haproxy::BALANCER;
use rustls::ClientConnection;
use rustls::version::TLS13;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::kubelet::{PATH, client, embedded, in_process};
use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, bearer, challenge_request, tpm};

const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
const NODE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Number of handshakes that may be in progress however many requests are.
const ALWAYS: usize = 2;

/// Opens a connection that sends the first message of a TLS handshake and no more.
async fn begun(gateway: &Gateway, from: Ipv4Addr) -> TcpStream {
    let mut stream = gateway.connect_from(from).await.unwrap();
    let config = client(gateway, &[&TLS13], None);
    let mut tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    stream.write_all(&hello).await.unwrap();
    stream
}

fn waiting(inside: &Inside) -> usize {
    let metrics = inside.metrics.text().unwrap();
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix("attest_gateway_limit_waiting{limit=\"handshakes\"} "));
    value.unwrap().parse().unwrap()
}

async fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < LIMIT);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_silent_clients_do_not_block_tls_handshakes() {
    let mut gateway = Gateway::init();
    // One handshake at a time, but for those that are always let in; whoever is silent may be so for long.
    gateway.settings("[limits]\nrequests = 2\nhandshake_seconds = 120");
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    for from in [STRANGER, NODE] {
        let mut held = Vec::new();
        for _ in 0..4 * ALWAYS {
            held.push(gateway.connect_from(from).await.unwrap());
        }
        for _ in 0..2 * ALWAYS {
            held.push(begun(&gateway, from).await);
        }
        let served = tokio::time::timeout(LIMIT, async {
            let ticket = gateway.ticket().await;
            gateway.config(PATH, &[&bearer(&ticket)]).await.is_config(&full);
        });
        served.await.unwrap();
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_known_after_it_has_authenticated() {
    let gateway = Gateway::init();
    let inside = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let knows = |address: Ipv4Addr| inside.admission.trusted_sources.knows(address.into(), Instant::now());
    let (case, stranger) = (tpm(), gateway.client_from(STRANGER));
    let ask = |path: &str, body: serde_json::Value| stranger.post(gateway.url(path)).json(&body);
    // Whoever shows a certificate that he has found gets a challenge, and answers with nothing that is good.
    gateway.endorse(&case, &[]);
    let asked = serde_json::to_value(challenge_request(&case, POOL)).unwrap();
    assert_eq!(Answer::send(ask("/v1/attest/challenge", asked)).await.status, 200);
    let evidence = serde_json::json!({ "challenge": "A".repeat(64), "evidence": {} });
    assert_ne!(Answer::send(ask("/v1/attest/evidence", evidence)).await.status, 200);
    let config = stranger.get(gateway.url(PATH)).header("accept", accept(SPEC));
    assert_eq!(Answer::send(config).await.status, 200, "the pre-approved config");
    assert!(!knows(STRANGER) && !knows(NODE));
    let _ticket = gateway.ticket().await;
    assert!(!knows(STRANGER) && knows(NODE));
}

/// A single free handshake slot, and two hundred earlier sources, each of which would keep it for a tenth of a second.
#[tokio::test(flavor = "multi_thread")]
async fn known_sources_get_handshakes_before_unknown_ones() {
    const STRANGERS: u8 = 200;
    let gateway = Gateway::init();
    gateway.settings(&format!(
        "proxy_protocol_from = [\"{BALANCER}\"]\n[limits]\nrequests = 2\nhandshake_seconds = 120"
    ));
    let inside = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    inside.admission.trusted_sources.note(NODE.into(), Instant::now());
    // Of the command LOCAL: the balancer looks whether the gateway lives.
    for (from, first) in [(NODE, &b""[..]), (BALANCER, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")] {
        let mut turns = Vec::new();
        for _ in 0..ALWAYS {
            turns.push(inside.admission.handshakes.begin(STRANGER.into(), false).await);
        }
        let mut strangers = Vec::new();
        for number in 0..STRANGERS {
            strangers.push(begun(&gateway, Ipv4Addr::new(127, 0, 1, number)).await);
        }
        until(|| waiting(&inside) == usize::from(STRANGERS)).await;
        let mut stream = gateway.connect_from(from).await.unwrap();
        stream.write_all(first).await.unwrap();
        let connector = TlsConnector::from(Arc::new(client(&gateway, &[&TLS13], None)));
        let connected = tokio::spawn(async move { connector.connect("localhost".try_into().unwrap(), stream).await });
        until(|| waiting(&inside) == usize::from(STRANGERS) + 1).await;
        drop(turns.pop());
        tokio::time::timeout(LIMIT, connected).await.unwrap().unwrap().unwrap();
        assert!(waiting(&inside) > usize::from(STRANGERS) / 2, "{from} has waited for strangers");
        drop((strangers, turns));
        until(|| waiting(&inside) == 0).await;
    }
}

/// Eight connections, and unknown clients on all of them that do not continue.
#[tokio::test(flavor = "multi_thread")]
async fn reserves_connections_for_known_sources() {
    let gateway = Gateway::init();
    gateway.settings("[limits]\nconnections = 8\nheader_seconds = 120");
    let inside = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let connect = async |from: Ipv4Addr| gateway.connect_from(from).await.unwrap();
    let shake = |stream: TcpStream| {
        let connector = TlsConnector::from(Arc::new(client(&gateway, &[&TLS13], None)));
        tokio::spawn(async move { connector.connect("localhost".try_into().unwrap(), stream).await })
    };
    let mut places = Vec::new();
    for number in 1..=6 {
        let stream = connect(Ipv4Addr::new(127, 0, 1, number)).await;
        places.push(shake(stream).await.unwrap().unwrap());
    }
    let [seventh, eighth] = [7, 8].map(|number| connect(Ipv4Addr::new(127, 0, 1, number)));
    let strangers = [shake(seventh.await), shake(eighth.await)];
    until(|| waiting(&inside) == strangers.len()).await;
    inside.admission.trusted_sources.note(NODE.into(), Instant::now());
    let known = tokio::time::timeout(LIMIT, shake(connect(NODE).await)).await;
    assert!(
        strangers.iter().all(|stranger| !stranger.is_finished()),
        "there was one for a stranger before"
    );
    drop(known.unwrap().unwrap().unwrap());
    // Nobody waits longer than it takes until one of them has a place to give.
    drop(places);
    for stranger in strangers {
        tokio::time::timeout(LIMIT, stranger).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_metric_counts_queued_handshakes_only() {
    let gateway = Gateway::init();
    gateway.settings("[limits]\nrequests = 2\nhandshake_seconds = 120");
    let inside = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    assert_eq!(waiting(&inside), 0);
    // All turns, for as long as this is there.
    let mut turns = Vec::new();
    for _ in 0..ALWAYS {
        turns.push(inside.admission.handshakes.begin(STRANGER.into(), false).await);
    }
    let mut nodes = Vec::new();
    for _ in 0..5 {
        nodes.push(begun(&gateway, NODE).await);
    }
    until(|| waiting(&inside) == 5).await;
    // Whoever hangs up does not wait any longer, and costs whoever comes next from there no turn.
    drop(nodes);
    until(|| waiting(&inside) == 0).await;
    drop(turns);
    let served = gateway.client_from(NODE).get(gateway.url("/healthz")).send();
    assert_eq!(tokio::time::timeout(LIMIT, served).await.unwrap().unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_does_not_wait_for_silent_clients() {
    let mut gateway = Gateway::init();
    gateway.settings("[limits]\nhandshake_seconds = 120\ndrain_seconds = 300");
    gateway.run();
    let silent = [gateway.connect_from(NODE).await, gateway.connect_from(STRANGER).await];
    // They have been accepted when one that came after them has been served.
    assert_eq!(gateway.config(PATH, &[]).await.status, 200);
    let begun = Instant::now();
    gateway.terminate();
    assert!(gateway.wait().success());
    assert!(begun.elapsed() < LIMIT, "it waited for {silent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sheds_load_with_retry_after_except_for_ignition() {
    let gateway = Gateway::init();
    gateway.settings("[limits]\nrequests = 1");
    let inside = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let turn = inside.admission.requests.take(STRANGER.into(), LIMIT).await.unwrap();
    let node = gateway.client_from(NODE);
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    let asked = challenge_request(&case, POOL);
    let challenge = node.post(gateway.url("/v1/attest/challenge")).json(&asked).send();
    let config = node.get(gateway.url(PATH)).header("accept", accept(SPEC)).send();
    let (challenge, config) = tokio::time::timeout(LIMIT, async { tokio::join!(challenge, config) })
        .await
        .unwrap();
    let (challenge, config) = (challenge.unwrap(), config.unwrap());
    assert_eq!(
        (challenge.status(), config.status()),
        (503.try_into().unwrap(), 503.try_into().unwrap())
    );
    let told = challenge.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap();
    assert!((1..=60).contains(&told), "{told}");
    assert_eq!((config.headers().get("retry-after"), config.content_length()), (None, Some(0)));
    // Nobody waits, but the budget of challenges is spent: one more is there in a second, and whoever comes then has it.
    drop(turn);
    let spent = async || {
        while inside.admission.challenges.spend(NODE.into(), 1, inside.clock.now()) == Spending::Granted {}
        node.post(gateway.url("/v1/attest/challenge")).json(&asked).send().await.unwrap()
    };
    let mut answer = spent().await;
    for _second_that_began_meanwhile in 0..5 {
        if answer.status() != 503 {
            answer = spent().await;
        }
    }
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    // Whoever comes before that is refused, and spends nothing.
    let begun = Instant::now();
    while node
        .post(gateway.url("/v1/attest/challenge"))
        .json(&asked)
        .send()
        .await
        .unwrap()
        .status()
        != 200
    {
        assert!(begun.elapsed() < LIMIT, "nothing is granted any more");
    }
}
