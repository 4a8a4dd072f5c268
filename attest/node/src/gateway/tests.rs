//! Against a TLS server of their own, on a port of the kernel's choice.

mod config;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use attest_wire::protocol::{Blob, ChallengeRequest, TpmAttester};
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::aws_lc_rs;
use rustls::{ServerConfig, ServerConnection, Stream};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::exchange::ANSWER_LIMIT_BYTES;
use super::tls::PointerTrust;
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const DISCOVERY: &str = r#"{"service":"attestation-gateway","protocol":1,"kinds":["tpm"]}"#;

/// An informational response, which is sent without end.
const EARLY_HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n";

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Ca {
        issuer: Issuer::new(params, key),
        certificate,
    }
}

fn trust(ca: &Ca) -> PointerTrust {
    PointerTrust::new(&[ca.certificate.der().clone()]).unwrap()
}

struct Server {
    base: String,
    certificate: CertificateDer<'static>,
}

/// Serves the answers in turn, one for each connection, and the last for ever; `None` closes the connection without one.
fn server(ca: &Ca, names: &[&str], validity: (i32, i32), answers: Vec<Option<String>>) -> Server {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "gateway");
    (params.not_before, params.not_after) = (date_time_ymd(validity.0, 1, 1), date_time_ymd(validity.1, 1, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca.issuer).unwrap().der().clone();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    // As proxies and Go's servers do: whoever offers h2 gets it.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        let mut answers = answers.into_iter().peekable();
        for connection in listener.incoming() {
            let answer = if answers.len() > 1 {
                answers.next()
            } else {
                answers.peek().cloned()
            };
            serve(&config, connection.unwrap(), answer.flatten());
        }
    });
    Server { base, certificate }
}

/// Serves one connection. If the client refuses the handshake, the error is ignored here: the test checks the client's.
fn serve(config: &Arc<ServerConfig>, mut connection: TcpStream, answer: Option<String>) {
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
    if let Some(answer) = answer {
        if answer == EARLY_HINTS {
            // Until the client hangs up.
            let many = answer.repeat(1000);
            while stream.write_all(many.as_bytes()).is_ok() {}
        }
        let _ = stream.write_all(answer.as_bytes());
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")
            .and_then(|length| length.parse::<usize>().ok())
    });
    body.len() >= length.unwrap_or(0)
}

fn http(status: u16, body: &str) -> Option<String> {
    Some(format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ))
}

fn taking<const N: usize>(kinds: [Kind; N]) -> Takes {
    Takes {
        kinds: kinds.into(),
        kubelet_key: false,
        clock_behind: None,
    }
}

fn discover(trust: PointerTrust, base: &str, patience: Duration) -> Result<Discovered, GatewayError> {
    GatewayClient::new(&Http::new(trust).unwrap(), base, Deadline::after(patience)).discover("worker", false)
}

fn check_tls(trust: PointerTrust, server: &Server, code: &str, said: &[&str]) {
    let error = discover(trust, &server.base, PATIENCE).unwrap_err();
    let GatewayError::Tls(problem) = &error else { panic!("{error:?}") };
    assert_eq!(problem.code(), code);
    let text = format!("{problem}; {}", problem.next_step());
    for part in said {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[test]
fn refused_certificates_are_explained() {
    let (ours, theirs) = (ca("our ca"), ca("their ca"));
    let ok = || vec![http(200, DISCOVERY)];
    let good = server(&ours, &["127.0.0.1"], (2000, 2900), ok());
    assert_eq!(
        discover(trust(&ours), &good.base, PATIENCE),
        Ok(Discovered::Gateway(taking([Kind::Tpm])))
    );
    check_tls(
        trust(&theirs),
        &good,
        "tls-unknown-ca",
        &["CN=gateway", "issued by CN=our ca", "trusts only CN=their ca"],
    );
    let old = server(&ours, &["127.0.0.1"], (2000, 2001), ok());
    check_tls(
        trust(&ours),
        &old,
        "tls-expired",
        &[
            "from 2000-01-01T00:00:00Z to 2001-01-01T00:00:00Z",
            "this node's clock says 20",
            "the RTC",
            "renew",
        ],
    );
    let new = server(&ours, &["127.0.0.1"], (2800, 2900), ok());
    check_tls(
        trust(&ours),
        &new,
        "tls-not-yet-valid",
        &[
            "this node's clock says 20",
            "valid from 2800-01-01T00:00:00Z to 2900-01-01T00:00:00Z",
            "the RTC",
        ],
    );
    let other = server(&ours, &["api-int.example", "10.0.0.1"], (2000, 2900), ok());
    check_tls(
        trust(&ours),
        &other,
        "tls-wrong-name",
        &["is for api-int.example, 10.0.0.1", "the pointer config says 127.0.0.1"],
    );
}

#[test]
fn cas_with_equal_names_are_distinguished() {
    let (ours, impostor) = (ca("mcs ca"), ca("mcs ca"));
    let server = server(&impostor, &["127.0.0.1"], (2000, 2900), vec![http(200, DISCOVERY)]);
    check_tls(trust(&ours), &server, "tls-unknown-ca", &["issued by CN=mcs ca"]);
}

fn check_discovery(answers: Vec<Option<String>>, expect: impl FnOnce(Result<Discovered, GatewayError>) -> bool) {
    let ca = ca("ca");
    let server = server(&ca, &["127.0.0.1"], (2000, 2900), answers);
    let found = discover(trust(&ca), &server.base, PATIENCE);
    let shown = format!("{found:?}");
    assert!(expect(found), "{shown}");
}

#[test]
fn gateway_is_distinguished_from_other_servers() {
    let other = |part: &'static str| move |found: Result<Discovered, GatewayError>| matches!(found, Ok(Discovered::Other(what)) if what.contains(part));
    check_discovery(vec![http(200, DISCOVERY)], |found| {
        found == Ok(Discovered::Gateway(taking([Kind::Tpm])))
    });
    check_discovery(vec![http(404, "")], other("answers 404"));
    check_discovery(vec![http(403, DISCOVERY)], other("answers 403"));
    check_discovery(vec![http(200, "<html>")], other("does not answer with discovery JSON"));
    check_discovery(vec![http(200, "")], other("does not answer with discovery JSON"));
    check_discovery(
        vec![http(200, r#"{"service":"x","protocol":1,"kinds":[]}"#)],
        other("another service"),
    );
    let kinds = |kinds: &str| {
        let discovery = format!("{{\"service\":\"attestation-gateway\",\"protocol\":1,\"kinds\":{kinds}}}");
        vec![http(200, &discovery)]
    };
    check_discovery(kinds(r#"["gcp","a-kind-to-come","token"]"#), |found| {
        found == Ok(Discovered::Gateway(taking([Kind::Gcp, Kind::Token])))
    });
    for none in ["[]", r#"["a-kind-to-come"]"#, r#"["token"]"#] {
        check_discovery(kinds(none), other("accepts no kind of evidence that this node supports"));
    }
    check_discovery(
        vec![http(200, r#"{"service":"attestation-gateway","protocol":2,"kinds":["tpm"]}"#)],
        |found| matches!(found, Err(GatewayError::Protocol { found: 2, .. })),
    );
    let elsewhere = "HTTP/1.1 302 X\r\nLocation: /v1/attest\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    check_discovery(vec![Some(elsewhere.to_owned())], other("answers 302"));
    check_discovery(vec![http(200, &" ".repeat(ANSWER_LIMIT_BYTES + 1))], |found| {
        matches!(found, Err(GatewayError::Answer { .. }))
    });
}

#[test]
fn retries_until_a_late_gateway_answers() {
    check_discovery(vec![http(503, ""), None, http(500, ""), http(200, DISCOVERY)], |found| {
        found == Ok(Discovered::Gateway(taking([Kind::Tpm])))
    });
}

#[test]
fn endless_informational_responses_time_out() {
    let ca = ca("ca");
    let endless = server(&ca, &["127.0.0.1"], (2000, 2900), vec![Some(EARLY_HINTS.to_owned())]);
    let begun = std::time::Instant::now();
    let found = discover(trust(&ca), &endless.base, Duration::from_secs(2));
    let took = begun.elapsed();
    assert!(
        matches!(&found, Err(GatewayError::Unreachable { error, .. }) if error.contains("timeout")),
        "{found:?}"
    );
    assert!(took < Duration::from_secs(6), "{took:?}");
    // A few are passed over.
    let answer = format!("{}{}", EARLY_HINTS.repeat(3), http(200, DISCOVERY).unwrap());
    check_discovery(vec![Some(answer)], |found| found == Ok(Discovered::Gateway(taking([Kind::Tpm]))));
}

#[test]
fn discovery_retries_end_with_the_deadline() {
    let ca = ca("ca");
    let failing = server(&ca, &["127.0.0.1"], (2000, 2900), vec![http(503, "")]);
    let found = discover(trust(&ca), &failing.base, Duration::from_secs(2));
    assert!(
        matches!(
            found,
            Err(GatewayError::Failing {
                status: 503,
                attempts: 2..,
                ..
            })
        ),
        "{found:?}"
    );
    // Nobody listens on port 1.
    let found = discover(trust(&ca), "https://127.0.0.1:1", Duration::from_secs(2));
    assert!(
        matches!(&found, Err(GatewayError::Unreachable { attempts: 2.., error, .. }) if error.contains("refused")),
        "{found:?}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let found = discover(
        trust(&ca),
        &format!("https://{}", silent.local_addr().unwrap()),
        Duration::from_millis(500),
    );
    assert!(
        matches!(&found, Err(GatewayError::Unreachable { error, .. }) if error.contains("timeout")),
        "{found:?}"
    );
}

fn challenge(answer: Option<String>) -> Result<SpkiSha256, GatewayError> {
    let ca = ca("ca");
    let server = server(&ca, &["127.0.0.1"], (2000, 2900), vec![answer]);
    let attester = TpmAttester {
        ek_public: Blob::default(),
        ek_certificate: None,
        ek_certificate_unread: false,
        ek_intermediates: Vec::new(),
        ak_public: Blob::default(),
    };
    let request = ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: "worker".to_owned(),
        name: None,
        attester: attester.into(),
    };
    let http = Http::new(trust(&ca)).unwrap();
    let (_, key) = GatewayClient::new(&http, &server.base, Deadline::after(PATIENCE)).challenge(&request)?;
    assert_eq!(Some(key), SpkiSha256::from_certificate(&server.certificate));
    Ok(key)
}

#[test]
fn challenge_answers_are_parsed_without_leaking_tickets() {
    let good = r#"{"challenge":"c","nonce":"","purpose":"p","expires":1,"task":{"tpm":{"credential_blob":"","encrypted_secret":"","pcr_bank":"sha256","pcrs":[0]}}}"#;
    assert!(challenge(http(200, good)).is_ok());
    let secret = r#"{"ticket":"ticket.SECRET"}"#;
    let error = challenge(http(200, secret)).unwrap_err();
    assert!(
        matches!(error, GatewayError::Answer { .. }) && !format!("{error}{error:?}").contains("SECRET"),
        "{error:?}"
    );
    let refusal = r#"{"type":"t","title":"no","status":403,"code":"ek-not-endorsed","next_step":"add it"}"#;
    assert!(matches!(challenge(http(403, refusal)), Err(GatewayError::Refused(problem)) if problem.code == "ek-not-endorsed"));
    assert!(matches!(challenge(http(403, "no")), Err(GatewayError::Answer { what, .. }) if what == "status 403"));
    assert!(matches!(challenge(http(204, "")), Err(GatewayError::Answer { .. })));
}
