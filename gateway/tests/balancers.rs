//! Nodes behind a load balancer that does not terminate TLS. It names the client of each connection by the PROXY protocol; no other source
//! may do so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::support::kubelet::{PATH, client};
use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, bearer};
use cloud_fixtures::haproxy::{BALANCER, Haproxy};
use rustls::version::TLS13;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// Addresses of nodes and of unauthenticated clients. All addresses in 127.0.0.0/8 belong to this machine.
const NODE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Creates a gateway that knows the balancer, and whose pool accepts tokens.
fn init(settings: &str) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(&format!("proxy_protocol_from = [\"{BALANCER}\"]\n{settings}"));
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway
}

fn start() -> Gateway {
    let mut gateway = init("");
    gateway.run();
    gateway
}

/// Requests the config with this credential.
async fn fetch(client: &reqwest::Client, url: &str, credential: &str) -> Answer {
    let request = client
        .get(url)
        .header("accept", accept(SPEC))
        .header("authorization", bearer(credential));
    Answer::send(request).await
}

/// Returns the clients' addresses in the records, in their order.
fn peers(gateway: &Gateway) -> Vec<IpAddr> {
    let records = gateway.records();
    let peers = records.iter().map(|record| record["peer"].as_str().unwrap());
    peers.map(|peer| peer.parse::<SocketAddr>().unwrap().ip()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_passes_the_node_address() {
    let gateway = start();
    let haproxy = Haproxy::before(&[gateway.address()], "");
    let url = haproxy.url(PATH);
    let full = gateway.rendered(POOL, "full");
    let token = gateway.token(&["--network", "127.0.0.7"]);
    let (node, stranger) = (gateway.client_from(NODE), gateway.client_from(STRANGER));
    fetch(&node, &url, &token).await.is_config(&full);
    fetch(&stranger, &url, &token).await.refused(403, "token-wrong-network");
    // A TPM's evidence: the same connection, the same source.
    let case = crate::support::tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let answer = gateway.answer(case, &challenge);
    let answer = Answer::send(node.post(haproxy.url("/v1/attest/evidence")).json(&answer)).await;
    fetch(&node, &url, &answer.ticket()).await.is_config(&full);
    assert_eq!(peers(&gateway), [NODE, STRANGER, NODE, NODE].map(IpAddr::from));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_sources_behind_a_balancer_have_separate_quotas() {
    let gateway = start();
    let haproxy = Haproxy::before(&[gateway.address()], "");
    let url = haproxy.url(PATH);
    let (stranger, node) = (gateway.client_from(STRANGER), gateway.client_from(NODE));
    let wrong = "A".repeat(43);
    let mut refused = 0;
    while fetch(&stranger, &url, &wrong).await.status == 403 {
        refused += 1;
        assert!(refused < 1000, "guesses are not counted");
    }
    fetch(&node, &url, &wrong).await.refused(403, "token-invalid");
    fetch(&stranger, &url, &wrong).await.check_retry();
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_haproxy_health_checks_to_the_balancer() {
    // It looks at the gateway by TLS: a header of the command LOCAL comes first. What fails takes the gateway out.
    let gateway = start();
    let options = format!(
        "check check-send-proxy check-ssl verify required ca-file {} verifyhost localhost inter 200 rise 2 fall 1",
        gateway.path("tls/mcs-ca.crt").display()
    );
    let mut haproxy = Haproxy::before(&[gateway.address()], &options);
    let checked = haproxy.health_check();
    assert!(checked.contains("succeeded"), "{checked}");
    let full = gateway.rendered(POOL, "full");
    let token = gateway.token(&[]);
    fetch(&gateway.client_from(NODE), &haproxy.url(PATH), &token).await.is_config(&full);
    assert_eq!(peers(&gateway), [IpAddr::from(NODE)]);
}

/// Returns a PROXY header with this source.
fn header(source: impl Into<IpAddr>) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    match source.into() {
        IpAddr::V4(source) => {
            header.extend(b"\x11\0\x0c");
            header.extend(source.octets());
            header.extend(Ipv4Addr::LOCALHOST.octets());
        }
        IpAddr::V6(source) => {
            header.extend(b"\x21\0\x24");
            header.extend(source.octets());
            header.extend(Ipv6Addr::LOCALHOST.octets());
        }
    }
    header.extend([0xab, 0xcd, 0x58, 0x5f]);
    header
}

/// Returns the status of a request over a connection that begins with these bytes; an error without TLS.
async fn status_after(gateway: &Gateway, from: Ipv4Addr, first: &[u8]) -> std::io::Result<u16> {
    let mut stream = gateway.connect_from(from).await.unwrap();
    stream.write_all(first).await?;
    let connector = TlsConnector::from(Arc::new(client(gateway, &[&TLS13], None)));
    let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        "A".repeat(43)
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap().split_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_43_refuses_a_proxy_header_from_untrusted_clients() {
    let gateway = start();
    // A header of his own is no TLS, with the balancer's or without.
    status_after(&gateway, STRANGER, &header(NODE)).await.unwrap_err();
    status_after(&gateway, BALANCER, &[header(STRANGER), header(NODE)].concat())
        .await
        .unwrap_err();
    assert!(gateway.records().is_empty());
    assert_eq!(status_after(&gateway, STRANGER, b"").await.unwrap(), 403);
    assert_eq!(status_after(&gateway, BALANCER, &header(NODE)).await.unwrap(), 403);
    // What the command LOCAL says of addresses is not read.
    let mut local = header(NODE);
    local[12] = 0x20;
    assert_eq!(status_after(&gateway, BALANCER, &local).await.unwrap(), 403);
    assert_eq!(peers(&gateway), [STRANGER, NODE, BALANCER].map(IpAddr::from));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_55_ipv6_neighbours_have_separate_failure_quotas() {
    let gateway = start();
    let (neighbour, node): (Ipv6Addr, Ipv6Addr) = ("2001:db8::66".parse().unwrap(), "2001:db8::7".parse().unwrap());
    let guess = async |from: Ipv6Addr| status_after(&gateway, BALANCER, &header(from)).await.unwrap();
    let mut refused = 0;
    while guess(neighbour).await == 403 {
        refused += 1;
        assert!(refused < 1000, "guesses are not counted");
    }
    assert_eq!(guess(node).await, 403);
    assert_eq!(guess(neighbour).await, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn closes_connections_without_a_proxy_header() {
    let mut gateway = init("[limits]\nhandshake_seconds = 1");
    gateway.run();
    let mut udp = header(NODE);
    udp[13] = 0x12;
    for first in [&b"PROXY TCP4 127.0.0.7 127.0.0.1 1 2\r\n"[..], b"", &udp] {
        status_after(&gateway, BALANCER, first).await.unwrap_err();
    }
    // A byte, and then nothing for longer than a handshake may take.
    let mut slow = gateway.connect_from(BALANCER).await.unwrap();
    slow.write_all(b"\r").await.unwrap();
    let closed = tokio::time::timeout(LIMIT, slow.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    // But for the setting's own line, at the start.
    let names_it = |line: &str| line.contains("proxy_protocol_from") && !line.contains(" ADMIN ");
    let said = gateway.line(names_it);
    assert!(said.contains("127.0.0.10") && said.contains("does not begin with one"), "{said}");
    gateway.terminate();
    assert!(gateway.wait().success());
    assert_eq!(gateway.how_often(names_it), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_connections_without_proxy_header_take_no_slot() {
    let mut gateway = init("[limits]\nconnections = 2\nhandshake_seconds = 120");
    gateway.run();
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = gateway.connect_from(BALANCER).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
        silent.push(stream);
    }
    assert_eq!(status_after(&gateway, BALANCER, &header(NODE)).await.unwrap(), 403);
    assert_eq!(status_after(&gateway, NODE, b"").await.unwrap(), 403);
    // Nothing was lost by those that may say it still.
    for mut stream in silent {
        stream.flush().await.unwrap();
        assert!(
            stream
                .try_read(&mut [0; 1])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        );
    }
}
