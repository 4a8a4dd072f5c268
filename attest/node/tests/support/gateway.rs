//! Small gateway over TLS on a port that the kernel chooses, with answers that a test sets.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use attest::SpkiSha256;
use attest::nonce::PURPOSE_CONFIG;
use attest::protocol::{ChallengeRequest, EvidenceRequest, NOT_ATTESTED_HEADER};
use data_encoding::BASE64;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};

pub const NONCE: [u8; 32] = [7; 32];
/// Secret that must not reach any output or other server.
pub const TOKEN: &str = "SECRETTOKEN";

/// Value in place of the waiting time: the gateway is of an earlier release, and accepts no kubelet key.
pub const OF_AN_EARLIER_RELEASE: u64 = u64::MAX;

/// Requests to a gateway, by path.
pub type Told = Arc<Mutex<Vec<(String, Value)>>>;

/// An answer in place of the usual one: status, further headers (each with its line's end), body; `None` closes the connection.
pub type Instead = Option<(u16, String, String)>;

/// Issuer of a gateway's certificate.
#[derive(Clone, Copy)]
pub enum By {
    ItsCa,
    Itself,
}

/// Answer in place of the usual one, by the path and the number of requests for it before.
type Answering = dyn Fn(&str, usize) -> Option<Instead> + Send + Sync;

/// Gateway that asks for a task and accepts any evidence.
pub struct Gateway {
    pub port: u16,
    pub authority: String,
    /// Its own certificate, as a pointer would have it as an authority.
    pub certificate: String,
    pub server_key: SpkiSha256,
    pub told: Told,
}

impl Gateway {
    pub fn start(kinds: &Value, task: &Value) -> Self {
        Self::answering(kinds, task, None, |_, _| None)
    }

    /// The same, whose discovery says how long nodes wait, and which answers some requests otherwise: by the path, and the number of
    /// requests for that path before, from 0.
    pub fn answering(
        kinds: &Value,
        task: &Value,
        hold_seconds: Option<u64>,
        instead: impl Fn(&str, usize) -> Option<Instead> + Send + Sync + 'static,
    ) -> Self {
        let (ca, issuer) = authority();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        Self::serving(&certificate, &key, &ca, kinds, task, hold_seconds, instead)
    }

    /// Starts a gateway that shows its CA's certificate as its own.
    pub fn start_with_own_ca() -> Self {
        Self::showing(By::Itself, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))
    }

    /// Starts a gateway for Google's instances, with another certificate than usual.
    pub fn showing(by: By, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let (ca, issuer) = authority();
        let certificate = match by {
            By::ItsCa => params.signed_by(&key, &issuer),
            By::Itself => params.self_signed(&key),
        };
        let certificate = certificate.unwrap();
        let ca = match by {
            By::ItsCa => &ca,
            By::Itself => &certificate,
        };
        let task = json!({"gcp": {"gateway": "api-int.example"}});
        Self::serving(&certificate, &key, ca, &json!(["gcp"]), &task, None, |_, _| None)
    }

    fn serving(
        certificate: &Certificate,
        key: &KeyPair,
        ca: &Certificate,
        kinds: &Value,
        task: &Value,
        hold_seconds: Option<u64>,
        instead: impl Fn(&str, usize) -> Option<Instead> + Send + Sync + 'static,
    ) -> Self {
        let (shown, certificate) = (data_url(certificate), certificate.der().clone());
        let server_key = SpkiSha256::from_certificate(&certificate).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let told = Told::default();
        let mut discovery = json!({"service": "attestation-gateway", "protocol": 1, "kinds": kinds});
        if let Some(seconds) = hold_seconds.filter(|seconds| *seconds != OF_AN_EARLIER_RELEASE) {
            discovery["hold_seconds"] = json!(seconds);
        }
        let challenge = json!({
            "challenge": "c", "nonce": BASE64.encode(&NONCE), "purpose": PURPOSE_CONFIG, "expires": 0, "task": task,
        });
        let ticket = json!({"ticket": "ticket.abc", "expires": 0, "url": "/config/worker"});
        let answers = Answers {
            discovery,
            challenge,
            ticket,
            told: Arc::clone(&told),
            takes_key: hold_seconds != Some(OF_AN_EARLIER_RELEASE),
            instead: Box::new(instead),
        };
        let answers = Arc::new(answers);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let session = ServerConnection::new(Arc::clone(&config)).unwrap();
                let answers = Arc::clone(&answers);
                thread::spawn(move || answers.serve(StreamOwned::new(session, connection)));
            }
        });
        Self {
            port,
            authority: data_url(ca),
            certificate: shown,
            server_key,
            told,
        }
    }

    pub fn pointer(&self) -> String {
        json!({"ignition": {
            "version": "3.2.0",
            "config": {"merge": [{"source": format!("https://127.0.0.1:{}/config/worker?token={TOKEN}", self.port)}]},
            "security": {"tls": {"certificateAuthorities": [{"source": self.authority}]}},
        }})
        .to_string()
    }

    pub fn received<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let told = self.told.lock().unwrap();
        let (_, body) = told
            .iter()
            .find(|(asked, _)| asked == path)
            .unwrap_or_else(|| panic!("{path}: {told:?}"));
        serde_json::from_value(body.clone()).unwrap()
    }

    pub fn offer(&self) -> ChallengeRequest {
        self.received("/v1/attest/challenge")
    }

    pub fn evidence(&self) -> EvidenceRequest {
        self.received("/v1/attest/evidence")
    }
}

fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    (ca, Issuer::new(params, key))
}

fn data_url(certificate: &Certificate) -> String {
    format!("data:;base64,{}", BASE64.encode(certificate.pem().as_bytes()))
}

struct Answers {
    discovery: Value,
    challenge: Value,
    ticket: Value,
    told: Told,
    takes_key: bool,
    instead: Box<Answering>,
}

impl Answers {
    /// Records a request. Returns the number of earlier requests for that path.
    fn note(&self, path: &str, body: Value) -> usize {
        let mut told = self.told.lock().unwrap();
        let before = told.iter().filter(|(asked, _)| asked == path).count();
        told.push((path.to_owned(), body));
        before
    }

    fn serve(&self, stream: StreamOwned<ServerConnection, TcpStream>) {
        let mut stream = BufReader::new(stream);
        while let Some((path, body)) = read(&mut stream) {
            let (mut discovery, mut challenge) = (self.discovery.clone(), self.challenge.clone());
            if let Some(key) = body["kubelet_key_sha256"].as_str() {
                challenge["purpose"] = json!(format!("{PURPOSE_CONFIG}.kubelet-key.{key}"));
            }
            // An older one does not look at it.
            let path = match path.strip_suffix("&kubelet-key=1") {
                Some(rest) if self.takes_key => {
                    discovery["kubelet_key"] = json!(true);
                    rest.to_owned()
                }
                Some(rest) => rest.to_owned(),
                None => path,
            };
            let usual = match path.as_str() {
                "/v1/attest?pool=worker" => &discovery,
                "/v1/attest/challenge" => &challenge,
                "/v1/attest/evidence" => &self.ticket,
                "/v1/report" => &json!({ "report": "ab".repeat(16) }),
                // Not for the config, but to say why it shows nothing.
                "/config/worker" => &Value::Null,
                _ => panic!("nobody asks for {path}"),
            };
            let is_head = body.get("HEAD").is_some();
            let before = self.note(&path, body);
            let answer = (self.instead)(&path, before).unwrap_or_else(|| Some((200, String::new(), usual.to_string())));
            let Some((status, headers, body)) = answer else { break };
            let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
            let body = if is_head { "" } else { &body };
            // A client that has no time left is gone.
            let written = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
            if written.and_then(|()| stream.get_mut().flush()).is_err() {
                break;
            }
        }
    }
}

/// Reads one request: its path, and its body as JSON, or the header of a `HEAD`. The handshake is a part of the first read.
fn read(stream: &mut BufReader<StreamOwned<ServerConnection, TcpStream>>) -> Option<(String, Value)> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let is_head = line.starts_with("HEAD ");
    let (mut length, mut said, mut accepts) = (0, Value::Null, String::new());
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        assert!(!name.eq_ignore_ascii_case("authorization"), "nothing is shown in a header");
        if name.eq_ignore_ascii_case("accept") {
            value.trim().clone_into(&mut accepts);
        }
        if name.eq_ignore_ascii_case(NOT_ATTESTED_HEADER) {
            said = json!(value.trim());
        }
    }
    if is_head {
        // Without it a config of 3.x is none for who asks.
        let as_ignition = accepts.starts_with("application/vnd.coreos.ignition+json;version=3.");
        assert!(as_ignition || !said.is_null(), "{accepts}");
        return Some((path, json!({ "HEAD": said })));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or_default()))
}
