//! Transport to Ignition and load balancers: TLS, limits, overload, shutdown.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;

use crate::support::kubelet::{embedded, in_process};
use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, program};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, NamedGroup, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

async fn connect(gateway: &Gateway, versions: &[&'static SupportedProtocolVersion]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(gateway.path("tls/mcs-ca.crt")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    TlsConnector::from(Arc::new(config))
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap()
}

/// Reads until the other end closes.
async fn read_all(stream: &mut TlsStream<TcpStream>) -> String {
    let mut out = Vec::new();
    // A close without close_notify ends the reading as well.
    drop(tokio::time::timeout(LIMIT, stream.read_to_end(&mut out)).await.unwrap());
    String::from_utf8(out).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_prefers_post_quantum_and_never_resumes() {
    let gateway = Gateway::start();
    for (version, expected) in [(&TLS13, ProtocolVersion::TLSv1_3), (&TLS12, ProtocolVersion::TLSv1_2)] {
        let mut stream = connect(&gateway, &[version]).await;
        stream
            .write_all(b"GET /config/worker HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let connection = stream.get_ref().1;
        assert_eq!(connection.protocol_version(), Some(expected));
        assert_eq!(connection.tls13_tickets_received(), 0);
        if expected == ProtocolVersion::TLSv1_3 {
            assert_eq!(
                connection.negotiated_key_exchange_group().unwrap().name(),
                NamedGroup::X25519MLKEM768
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_plaintext() {
    let gateway = Gateway::start();
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /config/worker HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut out = Vec::new();
    drop(tokio::time::timeout(LIMIT, stream.read_to_end(&mut out)).await.unwrap());
    assert!(!out.windows(5).any(|window| window == b"HTTP/"), "{out:?}");
}

/// An empty 200, a 204 or a redirect would make Ignition boot an unconfigured node, or send its headers to an unintended server.
#[tokio::test(flavor = "multi_thread")]
async fn never_answers_empty_or_with_a_redirect() {
    let gateway = Gateway::start();
    for path in [
        "/",
        "/config",
        "/config/",
        "/config/worker/",
        "//config/worker",
        "/config/worker?x=1",
        "/v1/attest",
        "/v1/attest/",
        "/v1/attest/challenge",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
            let method: reqwest::Method = method.parse().unwrap();
            let answer = Answer::send(gateway.client.request(method.clone(), gateway.url(path))).await;
            let status = answer.status.as_u16();
            assert!(matches!(status, 200 | 400 | 404 | 405), "{method} {path}: {status}");
            assert!(status != 200 || !answer.body.is_empty(), "{method} {path}: an empty 200");
        }
    }
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    let head = gateway.client.head(gateway.url("/config/worker")).header("accept", accept(SPEC));
    let head = Answer::send(head).await;
    assert_eq!(
        (head.status.as_u16(), head.header("content-length")),
        (200, Some(pre_approved.len().to_string().as_str()))
    );
    let discovery = Answer::send(gateway.client.get(gateway.url("/v1/attest"))).await;
    let discovery: attest::protocol::Discovery = serde_json::from_slice(&discovery.body).unwrap();
    assert_eq!(
        (discovery.service.as_str(), discovery.protocol, discovery.kinds),
        ("attestation-gateway", 1, attest::Kind::ALL.map(|kind| kind.to_string()).to_vec())
    );
    for path in ["/healthz", "/readyz"] {
        assert_eq!(Answer::send(gateway.client.get(gateway.url(path))).await.status.as_u16(), 200);
    }
}

/// Sends the head of a request without its body.
async fn half_a_request(gateway: &Gateway) -> TlsStream<TcpStream> {
    let mut stream = connect(gateway, &[&TLS13]).await;
    stream
        .write_all(b"POST /v1/attest/challenge HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n")
        .await
        .unwrap();
    // That the server asks for the body shows that the request is under way.
    let mut line = [0; 25];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_is_an_empty_503_and_health_still_answers() {
    let gateway = Gateway::init();
    gateway.settings("[limits]\nrequests = 1");
    let running = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let busy = running.admission.requests.take(Ipv4Addr::LOCALHOST.into(), LIMIT).await.unwrap();
    let discovery = Answer::send(gateway.client.get(gateway.url("/v1/attest")));
    let (nothing, wrong, discovery) = tokio::join!(
        gateway.config("/config/worker", &[]),
        gateway.config("/config/worker", &["Bearer x"]),
        discovery
    );
    nothing.check_retry();
    wrong.check_retry();
    discovery.refused(503, "unavailable");
    assert_eq!(Answer::send(gateway.client.get(gateway.url("/healthz"))).await.status.as_u16(), 200);
    // Who waits is served as soon as there is room.
    let waiting = gateway.config("/config/worker", &[]);
    let go_on = async {
        tokio::task::yield_now().await;
        drop(busy);
    };
    let (answer, ()) = tokio::join!(waiting, go_on);
    answer.is_config(&gateway.rendered(POOL, "pre-approved"));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_disconnected() {
    let mut gateway = Gateway::init();
    gateway.settings("[limits]\nhandshake_seconds = 3\nheader_seconds = 2\nrequest_seconds = 1\nconnections = 2");
    gateway.run();
    // No handshake.
    let mut silent = TcpStream::connect(gateway.address()).await.unwrap();
    let mut out = Vec::new();
    drop(tokio::time::timeout(LIMIT, silent.read_to_end(&mut out)).await.unwrap());
    // Half a head; and a head, but not the body.
    let mut slow = connect(&gateway, &[&TLS13]).await;
    slow.write_all(b"GET /config/worker HTTP/1.1\r\nHost: loc").await.unwrap();
    let answer = read_all(&mut slow).await;
    assert!(!answer.contains("200"), "{answer}");
    let mut slow = half_a_request(&gateway).await;
    assert!(read_all(&mut slow).await.starts_with("HTTP/1.1 503"));
    // A head that does not end.
    let mut long = connect(&gateway, &[&TLS13]).await;
    let head = format!(
        "GET /config/worker HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    drop(long.write_all(head.as_bytes()).await);
    let answer = read_all(&mut long).await;
    assert!(!answer.contains("HTTP/1.1 200"), "{answer}");
    // Connections beyond the limit wait for their turn, and get it. Each of them may take the time that it needs.
    gateway.kill();
    gateway.settings("[limits]\nconnections = 2");
    gateway.run();
    let gateway = Arc::new(gateway);
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move { gateway.config("/config/worker", &[]).await.status })
        })
        .collect();
    for answer in waiting {
        assert_eq!(answer.await.unwrap().as_u16(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_requests_under_way_finish_and_takes_no_new_ones() {
    let mut gateway = Gateway::start();
    let mut busy = half_a_request(&gateway).await;
    gateway.terminate();
    gateway.line(|line| line.contains("draining"));
    assert!(TcpStream::connect(gateway.address()).await.is_err(), "no new connections");
    busy.write_all(b"{}").await.unwrap();
    assert!(read_all(&mut busy).await.starts_with("HTTP/1.1 400"));
    assert!(gateway.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_waits_at_most_drain_seconds() {
    let mut gateway = Gateway::init();
    gateway.settings("[limits]\ndrain_seconds = 1");
    gateway.run();
    let busy = half_a_request(&gateway).await;
    gateway.terminate();
    assert!(gateway.wait().success());
    drop(busy);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_survives_a_503_and_a_refusal() {
    let gateway = Gateway::start();
    let mut stream = connect(&gateway, &[&TLS12, &TLS13]).await;
    for authorization in ["Authorization: Bearer x\r\n", "", "Authorization: Basic x\r\n"] {
        stream
            .write_all(format!("HEAD /config/worker HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n").as_bytes())
            .await
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let expected = if authorization.is_empty() { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        assert!(String::from_utf8(head).unwrap().starts_with(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raises_the_file_descriptor_limit_as_allowed() {
    // A soft limit, which it may raise; a hard one, which it may not.
    for (limit, raised, told) in [("-S -n 500", "1736", false), ("-n 1000", "1000", true)] {
        let mut gateway = Gateway::init();
        gateway.settings("[limits]\nconnections = 100\nwaiting = 100");
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &format!("ulimit {limit}; exec \"$@\""), "bash"])
            .arg(program().get_program())
            .args(["serve", "--config"])
            .arg(gateway.path("gateway.toml"));
        gateway.run_as(shell);
        // It has taken them when it serves.
        assert_eq!(gateway.config("/config/worker", &[]).await.status, 200);
        let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.process_id())).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        assert_eq!(line.split_whitespace().next(), Some(raised), "{limits}");
        if told {
            gateway.line(|line| line.contains("need 1736 file descriptors, but only 1000 are allowed"));
        }
    }
}
