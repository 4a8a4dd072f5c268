//! The config by a client certificate, from a server that asks for one or not.

use std::sync::mpsc::{Receiver, Sender, channel};

use rcgen::ExtendedKeyUsagePurpose;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;

use super::*;
use crate::gateway::exchange::CONFIG_LIMIT_BYTES;
use crate::gateway::identity::ClientIdentity;

const IGNITION: &str = r#"{"ignition":{"version":"3.3.0"}}"#;

/// Client certificates that the server saw, by number, and the request.
type Seen = (usize, String);

/// Serves the answers in turn, one for each connection, and the last for ever. `clients` is whose certificates it asks for.
fn server(ca: &Ca, clients: Option<&Ca>, answers: Vec<Option<String>>) -> (String, Receiver<Seen>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &ca.issuer)
        .unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.certificate.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        }
        None => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let (seen, receiver) = channel();
    thread::spawn(move || {
        let mut answers = answers.into_iter().peekable();
        for connection in listener.incoming() {
            let answer = if answers.len() > 1 {
                answers.next()
            } else {
                answers.peek().cloned()
            };
            serve_and_report(&config, connection.unwrap(), answer.flatten(), &seen);
        }
    });
    (base, receiver)
}

fn serve_and_report(config: &Arc<ServerConfig>, mut connection: TcpStream, answer: Option<String>, seen: &Sender<Seen>) {
    let mut tls = ServerConnection::new(Arc::clone(config)).unwrap();
    let mut stream = Stream::new(&mut tls, &mut connection);
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !complete(&request) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
    }
    let certificates = stream.conn.peer_certificates().map_or(0, <[_]>::len);
    let _ = seen.send((certificates, String::from_utf8(request).unwrap()));
    if let Some(answer) = answer {
        let _ = stream.write_all(answer.as_bytes());
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
}

/// A kubelet's file, signed by `ca`.
fn identity(ca: &Ca) -> ClientIdentity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "system:node:worker-1");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &ca.issuer).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubelet-client-current.pem");
    std::fs::write(&file, format!("{}{}", certificate.pem(), key.serialize_pem())).unwrap();
    ClientIdentity::read(&file).unwrap()
}

fn fetch(asks: bool, answers: Vec<Option<String>>, patience: Duration) -> (Result<String, GatewayError>, Vec<Seen>) {
    let (ours, cluster) = (ca("ca"), ca("kube-csr-signer"));
    let (base, seen) = server(&ours, asks.then_some(&cluster), answers);
    let http = Http::showing(trust(&ours), identity(&cluster)).unwrap();
    let config = GatewayClient::new(&http, &base, Deadline::after(patience)).config("worker", "3.4.0");
    let config = config.map(|config| String::from_utf8(config.to_vec()).unwrap());
    (config, seen.try_iter().collect())
}

#[test]
fn config_request_uses_only_the_client_certificate() {
    let (config, seen) = fetch(true, vec![http(200, IGNITION)], PATIENCE);
    assert_eq!(config.as_deref(), Ok(IGNITION));
    let [(1, request)] = seen.as_slice() else { panic!("{seen:?}") };
    let request = request.to_ascii_lowercase();
    assert!(request.starts_with("get /config/worker http/1.1\r\n"), "{request}");
    assert!(
        request.contains("\r\naccept: application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1\r\n"),
        "{request}"
    );
    for absent in ["authorization", "token", "cookie"] {
        assert!(!request.contains(absent), "{request}");
    }
}

#[test]
fn rejects_a_config_served_without_client_authentication() {
    let (config, seen) = fetch(false, vec![http(200, IGNITION)], PATIENCE);
    assert!(matches!(config, Err(GatewayError::Unasked { .. })), "{config:?}");
    assert_eq!(seen.len(), 1, "it is not asked again");
}

#[test]
fn unavailable_gateway_is_retried_with_the_client_certificate() {
    let (config, seen) = fetch(true, vec![http(503, ""), None, http(503, ""), http(200, IGNITION)], PATIENCE);
    assert_eq!(config.as_deref(), Ok(IGNITION));
    let certificates: Vec<usize> = seen.iter().map(|(certificates, _)| *certificates).collect();
    assert_eq!(certificates, [1, 1, 1, 1]);
    let (config, _) = fetch(true, vec![http(503, "")], Duration::from_millis(900));
    assert!(matches!(config, Err(GatewayError::Failing { status: 503, .. })), "{config:?}");
}

#[test]
fn refusals_redirects_and_malformed_configs_are_errors() {
    let refusal = r#"{"type":"t","title":"no","status":403,"code":"node-revoked","next_step":"restore it"}"#;
    let (config, seen) = fetch(true, vec![http(403, refusal)], PATIENCE);
    assert!(
        matches!(&config, Err(GatewayError::Refused(problem)) if problem.code == "node-revoked"),
        "{config:?}"
    );
    assert_eq!(seen.len(), 1, "a refusal is final");
    let elsewhere = "HTTP/1.1 302 X\r\nLocation: /config/worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    for answer in [
        http(200, ""),
        http(200, "{}"),
        http(200, "[]"),
        http(200, r#"{"ignition":{}}"#),
        http(200, "<html>"),
        http(204, ""),
        http(206, IGNITION),
        http(404, "no"),
        Some(elsewhere),
    ] {
        let (config, _) = fetch(true, vec![answer.clone()], PATIENCE);
        assert!(matches!(config, Err(GatewayError::Answer { .. })), "{answer:?}: {config:?}");
    }
}

#[test]
fn config_answer_has_its_own_size_limit() {
    let padded = |length: usize| http(200, &format!("{IGNITION}{}", " ".repeat(length)));
    let (config, _) = fetch(true, vec![padded(2 * ANSWER_LIMIT_BYTES)], PATIENCE);
    assert!(config.is_ok(), "{config:?}");
    let (config, _) = fetch(true, vec![padded(CONFIG_LIMIT_BYTES)], PATIENCE);
    assert!(matches!(config, Err(GatewayError::Answer { .. })));
}
