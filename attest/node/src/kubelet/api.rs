//! The API of the cluster, as far as a kubelet without a certificate is let: it makes a CertificateSigningRequest, and looks at it until there is a
//! certificate in it. Nothing that it answers is believed but a certificate for this node's own key and name.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use attest_wire::nonce::sha256;
use data_encoding::{BASE64, HEXLOWER};
use reqwest::StatusCode;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use super::csr::{self, NODE_USER, NODES};
use super::key::Key;
use super::kubeconfig::Kubeconfig;
use super::pem::pem;
use super::validity::is_valid;
use crate::console::say;
use crate::deadline::{Backoff, Deadline};
use crate::failure::{Failure, printable};
use crate::gateway::Http;
use crate::gateway::tls::Trust;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Who signs kubelets' client certificates.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// What a kubelet's certificate is for, with a key that is no RSA key (`DefaultKubeletClientGetUsages` in `client-go/util/certificate`).
const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// How requests of this program are called, before a digest of key and name.
const PREFIX: &str = "attest-node-";
/// Hexadecimal digits of that.
const DIGEST_CHARACTERS: usize = 32;
/// Largest answer read: a request with its certificate has some KiB.
const ANSWER_LIMIT_BYTES: usize = 256 * 1024;
/// How long one request may take, with its connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// How often the console is told what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// Most bytes of certificates taken: as the kubelet's file is read (`gateway::identity`), with room for the key.
const CERTIFICATES_LIMIT_BYTES: usize = 48 * 1024;

/// What is asked for.
pub struct Wanted {
    name: String,
    public: Vec<u8>,
    /// PKCS#10, PEM.
    request: String,
    /// How the request is called: the same for the same key and name, so that a run that begins again finds it.
    called: String,
}

impl Wanted {
    /// A certificate for this key, for the node of this name.
    ///
    /// # Errors
    /// `internal`, which does not happen.
    pub fn of(key: &Key, name: &str) -> Result<Self, Failure> {
        let made = key.public().and_then(|public| Some((public, csr::request(key, name)?)));
        let (public, request) =
            made.ok_or_else(|| Failure::new("internal", "the key for the kubelet signs nothing", "report this message"))?;
        let digest = HEXLOWER.encode(&sha256(&[&public, name.as_bytes()]));
        let called = format!("{PREFIX}{}", digest.chars().take(DIGEST_CHARACTERS).collect::<String>());
        Ok(Self {
            name: name.to_owned(),
            public,
            request,
            called,
        })
    }

    /// What is sent; with a name that the API makes up, if somebody else has the usual one.
    fn body(&self, is_taken: bool) -> Value {
        let metadata = match is_taken {
            true => json!({"generateName": PREFIX}),
            false => json!({"name": self.called}),
        };
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": metadata,
            "spec": {"request": BASE64.encode(self.request.as_bytes()), "signerName": SIGNER, "usages": USAGES},
        })
    }

    /// Whether a request is for this key. Nobody else can have made one: the API wants it signed by its key.
    fn is_for(&self, object: &Object) -> bool {
        let der = BASE64.decode(object.spec.request.as_bytes()).ok();
        let der = der.and_then(|pem| x509_parser::pem::parse_x509_pem(&pem).ok().map(|(_, block)| block.contents));
        let has_key = der.is_some_and(|der| der.windows(self.public.len()).any(|part| part == self.public));
        has_key && object.spec.signer_name == SIGNER
    }
}

/// A certificate, and the CAs between, for the key and the name that were asked for: nothing else has one.
pub struct Certificate(String);

impl Certificate {
    fn read(encoded: &str, wanted: &Wanted) -> Result<Self, String> {
        let text = BASE64.decode(encoded.as_bytes()).map_err(|_| "it is no Base64".to_owned())?;
        if text.len() > CERTIFICATES_LIMIT_BYTES {
            return Err(format!("it is larger than {CERTIFICATES_LIMIT_BYTES} bytes"));
        }
        let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|_| "it is no PEM".to_owned())?;
        let leaf = chain.first().ok_or_else(|| "there is no certificate in it".to_owned())?;
        let (_, read) = X509Certificate::from_der(leaf).map_err(|_| "it is no certificate".to_owned())?;
        if read.public_key().raw != wanted.public {
            return Err("it is for another key".to_owned());
        }
        let subject = read.subject();
        let mut texts = subject.iter_common_name().map(|name| name.as_str().unwrap_or_default());
        let (common_name, more) = (texts.next().unwrap_or_default(), texts.next());
        if common_name.strip_prefix(NODE_USER) != Some(wanted.name.as_str()) || more.is_some() {
            return Err(format!("it is for {:?}", printable(&subject.to_string())));
        }
        if !subject.iter_organization().any(|name| name.as_str() == Ok(NODES)) {
            return Err(format!("it is not for a node: {:?}", printable(&subject.to_string())));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if !is_valid(leaf, now) {
            return Err("by this node's clock it is not good any more".to_owned());
        }
        Ok(Self(chain.iter().map(|certificate| pem("CERTIFICATE", certificate)).collect()))
    }

    /// PEM.
    #[must_use]
    pub fn pem(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    request: String,
    signer_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    certificate: Option<String>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

/// What came of one request.
enum Step {
    /// It is there, under this name, and nobody has decided yet.
    Pending(String),
    /// It was approved, and is not signed yet.
    Approved(String),
    /// Somebody else's has that name.
    Taken,
    /// It is not there any more.
    Gone,
    /// The API does not do it at the moment.
    Away(String),
    Issued(Certificate),
}

/// The API.
pub struct Api {
    http: Http,
    server: String,
    token: Zeroizing<String>,
}

impl Api {
    /// The one of a kubeconfig.
    ///
    /// # Errors
    /// Its CAs cannot be used.
    pub fn new(config: &Kubeconfig) -> Result<Self, Failure> {
        let trust = Trust::new(&config.authorities).map_err(|error| {
            Failure::new(
                "kubelet-kubeconfig",
                error,
                "correct the CAs in the kubelet's bootstrap kubeconfig, or name another one with --kubeconfig",
            )
        })?;
        Ok(Self {
            http: Http::new(trust)?,
            server: config.server.clone(),
            token: config.token.clone(),
        })
    }

    /// Asks for a certificate, and waits for it until the deadline: for the API, for who approves, for who signs.
    ///
    /// # Errors
    /// `kubelet-request-denied`, `kubelet-request-unanswered`, `kubelet-certificate-answer`.
    pub fn certificate(&self, wanted: &Wanted, deadline: Deadline) -> Result<Certificate, Failure> {
        let (mut asked, mut is_taken) = (None::<String>, false);
        let (mut backoff, begun) = (Backoff::default(), Instant::now());
        let (mut said_last, mut said_at) = (String::new(), None::<Instant>);
        loop {
            let step = match &asked {
                None => self.ask(wanted, is_taken, deadline)?,
                Some(name) => self.look(name, wanted, deadline)?,
            };
            let waits_for = match step {
                Step::Issued(certificate) => return Ok(certificate),
                // Once: then it has a name that the API makes up.
                Step::Taken if !is_taken => {
                    (is_taken, asked) = (true, None);
                    continue;
                }
                Step::Taken => {
                    asked = None;
                    format!("{} answers with a request for another key", self.server)
                }
                Step::Gone => {
                    asked = None;
                    "its request is gone, and it asks anew".to_owned()
                }
                Step::Pending(name) => {
                    let what = format!(
                        "CSR {name} is not approved yet; `kubectl describe csr {name}` says why, or `oc adm certificate approve {name}` approves it"
                    );
                    asked = Some(name);
                    what
                }
                Step::Approved(name) => {
                    let what = format!("CSR {name} is approved, and not signed yet");
                    asked = Some(name);
                    what
                }
                Step::Away(why) => why,
            };
            if waits_for != said_last || said_at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                let seconds = begun.elapsed().as_secs();
                say(&format!(
                    "waiting for the kubelet's certificate as {} for {seconds} s: {waits_for}",
                    wanted.name
                ));
                (said_last, said_at) = (waits_for.clone(), Some(Instant::now()));
            }
            let pause = backoff.held(None);
            if pause >= deadline.remaining() {
                return Err(Failure::new(
                    "kubelet-request-unanswered",
                    format!("there was none in {} s: {waits_for}", begun.elapsed().as_secs()),
                    "when what it waits for is there: `systemctl restart attest-node-kubelet-certificate.service`, then kubelet.service",
                ));
            }
            thread::sleep(pause);
        }
    }

    /// Makes the request; the one of the same key that is there already is as good.
    fn ask(&self, wanted: &Wanted, is_taken: bool, deadline: Deadline) -> Result<Step, Failure> {
        let body = wanted.body(is_taken).to_string();
        match self.send(Some(body), REQUESTS, deadline) {
            Ok((StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED, answer)) => self.understand(&answer, wanted),
            Ok((StatusCode::CONFLICT, _)) if !is_taken => match self.look(&wanted.called, wanted, deadline)? {
                // Between the two requests.
                Step::Gone => Ok(Step::Away("its request was removed at this moment".to_owned())),
                step => Ok(step),
            },
            Ok((status, answer)) => Ok(Step::Away(refused(status, &answer))),
            Err(why) => Ok(Step::Away(why)),
        }
    }

    /// Looks at a request.
    fn look(&self, name: &str, wanted: &Wanted, deadline: Deadline) -> Result<Step, Failure> {
        match self.send(None, &format!("{REQUESTS}/{name}"), deadline) {
            Ok((StatusCode::OK, answer)) => self.understand(&answer, wanted),
            Ok((StatusCode::NOT_FOUND, _)) => Ok(Step::Gone),
            Ok((status, answer)) => Ok(Step::Away(refused(status, &answer))),
            Err(why) => Ok(Step::Away(why)),
        }
    }

    fn understand(&self, answer: &[u8], wanted: &Wanted) -> Result<Step, Failure> {
        let Ok(object) = serde_json::from_slice::<Object>(answer) else {
            return Ok(Step::Away(format!("{} answers with something else than a request", self.server)));
        };
        // It becomes a part of a path, and of a line.
        let name = object.metadata.name.clone();
        let is_name =
            !name.is_empty() && name.len() <= 253 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte));
        if !is_name || name.starts_with('.') || !wanted.is_for(&object) {
            return Ok(Step::Taken);
        }
        let condition = |kind: &str| object.status.conditions.iter().find(|condition| condition.kind == kind);
        if let Some(closed) = condition("Denied").or_else(|| condition("Failed")) {
            let why = [&closed.reason, &closed.message].map(|text| printable(text.as_deref().unwrap_or_default()));
            return Err(Failure::new(
                "kubelet-request-denied",
                format!("CSR {name} is {}: {}", closed.kind.to_lowercase(), why.join(" ").trim()),
                format!("if that was wrong, delete the CSR {name} and start the unit again"),
            ));
        }
        match object.status.certificate.filter(|certificate| !certificate.is_empty()) {
            Some(certificate) => match Certificate::read(&certificate, wanted) {
                Ok(certificate) => Ok(Step::Issued(certificate)),
                Err(problem) => Err(Failure::new(
                    "kubelet-certificate-answer",
                    format!("the certificate in CSR {name} is not what was asked for: {problem}"),
                    "look at who signs certificates of kubelets in this cluster; then delete the CSR and start the unit again",
                )),
            },
            None if condition("Approved").is_some() => Ok(Step::Approved(name)),
            None => Ok(Step::Pending(name)),
        }
    }

    fn send(&self, body: Option<String>, path: &str, deadline: Deadline) -> Result<(StatusCode, Zeroizing<Vec<u8>>), String> {
        let url = format!("{}{path}", self.server);
        let limit = deadline.remaining().min(REQUEST_LIMIT);
        let answer = self.http.ask(ANSWER_LIMIT_BYTES, limit, |client| {
            let request = match body {
                Some(body) => client.post(&url).header("content-type", "application/json").body(body),
                None => client.get(&url),
            };
            request.header("accept", "application/json").bearer_auth(self.token.as_str())
        });
        answer.map_err(|problem| format!("{} cannot be asked: {problem}", self.server))
    }
}

/// What an API says that does not do it, as far as it says why.
fn refused(status: StatusCode, answer: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Said {
        message: String,
    }
    let said = serde_json::from_slice::<Said>(answer).unwrap_or_default();
    format!("the API answers {} {}", status.as_u16(), printable(&said.message))
        .trim_end()
        .to_owned()
}
