//! The gateway's API as the node uses it: three requests over TLS that trusts the pointer's CAs only, and a fourth for the config of a
//! node that the cluster has approved.

pub mod identity;
pub mod tls;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::protocol::{
    CHALLENGE_PATH, CONFIG_PREFIX, ChallengeRequest, ChallengeResponse, DISCOVERY_PATH, Discovery, EVIDENCE_PATH, EvidenceRequest,
    EvidenceResponse, NOT_ATTESTED_HEADER, POOL_PARAMETER, Problem, SERVICE, VERSION,
};
use attest::{Kind, SpkiSha256};
use reqwest::header::{ACCEPT, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::console;
use crate::deadline::{Backoff, Deadline};
use crate::failure::{code_of, printable};
use crate::patience::{ComeAgain, Next, Patience};

use self::identity::Identity;
use self::tls::{TlsProblem, Trust};

/// Largest answer read. A challenge is about 3 KiB.
const ANSWER_LIMIT_BYTES: usize = 64 * 1024;
/// How long a connection may take: a TCP handshake with two retransmissions.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long one request may take before it counts as lost. A loaded gateway answers in milliseconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// Largest config read: a pool's files together have at most that much.
const CONFIG_LIMIT_BYTES: usize = 64 * 1024 * 1024;
/// How long a config may take: the largest one at 5 Mbit/s.
const CONFIG_LIMIT: Duration = Duration::from_secs(120);
/// Longest `Retry-After` that is heeded, seconds: what comes back sooner than that does no harm.
const RETRY_AFTER_LIMIT_SECONDS: u64 = 60;
/// What the `type` of a gateway's problem documents begins with.
const PROBLEM_TYPE: &str = "urn:attestation-gateway:problem:";
/// What a 503 says of evidence whose challenge is spent all the same: to send it again would be in vain.
const SPENT_ALL_THE_SAME: &[&str] = &["cloud-unavailable"];

/// What one answer may cost.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    bytes: usize,
    time: Duration,
}

const ANSWER: Bounds = Bounds {
    bytes: ANSWER_LIMIT_BYTES,
    time: REQUEST_LIMIT,
};
const CONFIG: Bounds = Bounds {
    bytes: CONFIG_LIMIT_BYTES,
    time: CONFIG_LIMIT,
};

/// Why a gateway could not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GatewayError {
    /// No connection, or it was lost, each time.
    #[error("{url} cannot be reached ({attempts} attempts): {error}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// How often.
        attempts: u32,
        /// What the last attempt ended in.
        error: String,
    },
    /// A 5xx each time.
    #[error("{url} answers {status} ({attempts} attempts)")]
    Failing {
        /// What was asked.
        url: String,
        /// How often.
        attempts: u32,
        /// HTTP status.
        status: u16,
    },
    /// It told this node to come again for as long as the pool has nodes wait.
    #[error("{url} has told this node to come again for {seconds} s ({attempts} attempts)")]
    Held {
        /// What was asked last.
        url: String,
        /// How often, that time.
        attempts: u32,
        /// For how long.
        seconds: u64,
    },
    /// The TLS connection is refused by this node.
    #[error(transparent)]
    Tls(TlsProblem),
    /// A CA of the pointer's that cannot be one.
    #[error("a CA in the pointer config cannot be used: {0}")]
    Authority(String),
    /// It answers with something else than the protocol says.
    #[error("{url} gave an answer that is not the attestation protocol's: {what}")]
    Answer {
        /// What was asked.
        url: String,
        /// What was wrong.
        what: String,
    },
    /// It speaks another version of the protocol.
    #[error("{url} speaks version {found} of the attestation protocol, this node version {VERSION}")]
    Protocol {
        /// What was asked.
        url: String,
        /// Its version.
        found: u32,
    },
    /// It refused.
    #[error("the gateway refused: {}", .0.title)]
    Refused(Box<Problem>),
    /// It did not ask for the client certificate: its answer is what anybody gets.
    #[error("{url} has not asked for a client certificate, so its answer is not for this node")]
    Unasked {
        /// What was asked.
        url: String,
    },
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
}

/// What stands behind a source of the pointer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovered {
    /// An attestation gateway, and the kinds of evidence that it takes.
    Gateway(BTreeSet<Kind>),
    /// Something else, such as a Machine Config Server; with what it answered.
    Other(String),
}

/// The HTTP client for all gateways of one pointer.
pub struct Http {
    /// There until this is dropped.
    runtime: Option<Runtime>,
    client: Client,
    trust: Arc<Trust>,
    identity: Option<Arc<Identity>>,
}

impl Http {
    /// A client that trusts `trust` and nothing else, and follows neither redirects nor proxies.
    ///
    /// # Errors
    /// [`GatewayError::Client`].
    pub fn new(trust: Trust) -> Result<Self, GatewayError> {
        Self::build(trust, None)
    }

    /// As [`Http::new`], and shows a client certificate to a server that asks for one.
    ///
    /// # Errors
    /// [`GatewayError::Client`].
    pub fn showing(trust: Trust, identity: Identity) -> Result<Self, GatewayError> {
        Self::build(trust, Some(Arc::new(identity)))
    }

    fn build(trust: Trust, identity: Option<Arc<Identity>>) -> Result<Self, GatewayError> {
        let trust = Arc::new(trust);
        let mut builder = Client::builder();
        if identity.is_some() {
            // Each attempt has a handshake of its own, so that it is known whether the certificate was shown.
            builder = builder.pool_max_idle_per_host(0);
        }
        let tls = trust.client_config(identity.as_ref());
        let client = builder
            .tls_backend_preconfigured(tls.map_err(|error| GatewayError::Client(error.to_string()))?)
            .tls_info(true)
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(concat!("attest-node/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| GatewayError::Client(chain(&error)))?;
        // One worker thread keeps the connection alive while this one waits for the TPM.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| GatewayError::Client(error.to_string()))?;
        Ok(Self {
            runtime: Some(runtime),
            client,
            trust,
            identity,
        })
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        // A name resolution that hangs cannot be cancelled; it must not hold up the report of what failed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// One gateway and the time there is for it.
#[derive(Debug)]
pub struct Gateway<'http> {
    http: &'http Http,
    base: &'http str,
    deadline: Cell<Deadline>,
    patience: Option<&'http Patience>,
}

/// An answer that was read to its end.
struct Answer {
    status: StatusCode,
    body: Zeroizing<Vec<u8>>,
    server_key: Option<SpkiSha256>,
    /// When to come again, if it says so.
    not_before: Option<Duration>,
}

/// One attempt that brought no answer.
enum Lost {
    /// Another attempt may bring one.
    Perhaps(String),
    /// None will.
    Surely(GatewayError),
}

impl<'http> Gateway<'http> {
    /// The gateway at `base`, which is what stands before `/config/<pool>`.
    #[must_use]
    pub const fn new(http: &'http Http, base: &'http str, deadline: Deadline) -> Self {
        Self {
            http,
            base,
            deadline: Cell::new(deadline),
            patience: None,
        }
    }

    /// The same, waited for while it does not answer, and if it says "come again".
    #[must_use]
    pub const fn patiently(http: &'http Http, base: &'http str, deadline: Deadline, patience: &'http Patience) -> Self {
        Self {
            http,
            base,
            deadline: Cell::new(deadline),
            patience: Some(patience),
        }
    }

    /// The time there is for it at the moment. Each time that it is waited for moves it on.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline.get()
    }

    /// How often gateways have told this node to come again.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.patience.map_or(0, Patience::held)
    }

    /// How often this node has waited for gateways, for that reason or because they did not answer.
    #[must_use]
    pub fn waited(&self) -> u32 {
        self.patience.map_or(0, Patience::times)
    }

    /// Asks what the server is, on behalf of a node of this pool.
    ///
    /// # Errors
    /// All but [`GatewayError::Refused`].
    pub fn discover(&self, pool: &str) -> Result<Discovered, GatewayError> {
        // A pool's name needs no escaping; a gateway of an earlier release does not look at it.
        let url = self.url(&format!("{DISCOVERY_PATH}?{POOL_PARAMETER}={pool}"));
        let answer = loop {
            match self.exchange(&url, ANSWER, &[], || self.http.client.get(&url)) {
                // Errors for this path only: nothing that a node would have to wait for, since its config is there.
                Err(error @ GatewayError::Failing { .. }) if self.waits_without_end() => {
                    if self.gives_configs(pool) {
                        return Ok(Discovered::Other(format!("{error}, and has configs all the same")));
                    }
                }
                answer => break answer?,
            }
        };
        if answer.status != StatusCode::OK {
            return Ok(Discovered::Other(format!("{url} answers {}", answer.status.as_u16())));
        }
        match serde_json::from_slice::<Discovery>(&answer.body) {
            Ok(discovery) if discovery.service != SERVICE => Ok(Discovered::Other(format!("{url} is of another service"))),
            Ok(discovery) if discovery.protocol != VERSION => Err(GatewayError::Protocol {
                url,
                found: discovery.protocol,
            }),
            Ok(discovery) => {
                if let (Some(patience), Some(seconds)) = (self.patience, discovery.hold_seconds) {
                    patience.told(seconds);
                }
                // A gateway of a later release may take kinds that this node has never heard of.
                let known = Kind::ALL
                    .into_iter()
                    .filter(|kind| discovery.kinds.iter().any(|word| word == kind.as_str()));
                let kinds: BTreeSet<Kind> = known.collect();
                if kinds.iter().any(|kind| *kind != Kind::Token) {
                    return Ok(Discovered::Gateway(kinds));
                }
                Ok(Discovered::Other(format!(
                    "the attestation gateway at {url} does not take evidence of any kind that this node knows"
                )))
            }
            Err(_) => Ok(Discovered::Other(format!("{url} answers with something else"))),
        }
    }

    /// Asks for a challenge. With it comes the key of the server that gave it, to be bound into the quote.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn challenge(&self, request: &ChallengeRequest) -> Result<(ChallengeResponse, SpkiSha256), GatewayError> {
        let url = self.url(CHALLENGE_PATH);
        let (response, server_key) = self.post(&url, &[], request)?;
        let server_key = server_key.ok_or_else(|| GatewayError::Answer {
            url,
            what: "the server's certificate cannot be read".to_owned(),
        })?;
        Ok((response, server_key))
    }

    /// Sends the evidence. If an answer is lost on the way, or it was to come again, the evidence is sent again and may be refused as spent.
    ///
    /// # Errors
    /// [`GatewayError`]; [`GatewayError::Refused`] with `cloud-unavailable` after a pause: now is the time for another challenge.
    pub fn evidence(&self, request: &EvidenceRequest) -> Result<EvidenceResponse, GatewayError> {
        self.post(&self.url(EVIDENCE_PATH), SPENT_ALL_THE_SAME, request)
            .map(|(response, _)| response)
    }

    /// Asks for the config of a pool, and shows the client certificate of [`Http::showing`].
    ///
    /// # Errors
    /// [`GatewayError`]; [`GatewayError::Unasked`] if the server has not looked at the certificate, whatever it gave.
    pub fn config(&self, pool: &str, spec: &str) -> Result<Zeroizing<Vec<u8>>, GatewayError> {
        let url = self.url(&format!("{CONFIG_PREFIX}{pool}"));
        let accept = format!("application/vnd.coreos.ignition+json;version={spec}, */*;q=0.1");
        let answer = self.exchange(&url, CONFIG, &[], || self.http.client.get(&url).header(ACCEPT, &accept))?;
        if !self.http.identity.as_ref().is_some_and(|identity| identity.was_shown()) {
            return Err(GatewayError::Unasked { url });
        }
        let garbage = |what: String| GatewayError::Answer { url: url.clone(), what };
        if answer.status != StatusCode::OK {
            return Err(refused(&answer).unwrap_or_else(|| garbage(format!("status {}", answer.status.as_u16()))));
        }
        if serde_json::from_slice::<AConfig>(&answer.body).is_err() {
            return Err(garbage("no Ignition config".to_owned()));
        }
        Ok(answer.body)
    }

    /// Says why this node shows nothing, where Ignition cannot say it: by a request for the pool's config that takes nothing and that the
    /// gateway decides and records as any other. Whatever it answers, it knows.
    ///
    /// # Errors
    /// [`GatewayError::Unreachable`], [`GatewayError::Failing`], [`GatewayError::Tls`].
    pub fn not_attested(&self, pool: &str, code: &str) -> Result<(), GatewayError> {
        let url = self.url(&format!("{CONFIG_PREFIX}{pool}"));
        let request = || self.http.client.head(&url).header(ACCEPT, "*/*").header(NOT_ATTESTED_HEADER, code);
        self.exchange(&url, ANSWER, &[], request).map(drop)
    }

    /// Whether a request for the pool's config is answered with something else than an error of the server's.
    fn gives_configs(&self, pool: &str) -> bool {
        let url = self.url(&format!("{CONFIG_PREFIX}{pool}"));
        let request = self.http.client.head(&url).header(ACCEPT, "*/*");
        self.attempt(&url, ANSWER, request)
            .is_ok_and(|answer| !answer.status.is_server_error())
    }

    /// Whether the failure that was the last one was not, for an administrator's limit or the pool's.
    fn waits_without_end(&self) -> bool {
        self.patience.is_some_and(|patience| patience.holds() && !patience.gave_up())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn post<Q: Serialize, A: DeserializeOwned>(
        &self,
        url: &str,
        spent: &[&str],
        request: &Q,
    ) -> Result<(A, Option<SpkiSha256>), GatewayError> {
        let answer = self.exchange(url, ANSWER, spent, || self.http.client.post(url).json(request))?;
        let garbage = |what: String| GatewayError::Answer { url: url.to_owned(), what };
        if answer.status == StatusCode::OK {
            // The message of serde_json may hold parts of the body, and the body may hold a ticket.
            let response = serde_json::from_slice(&answer.body).map_err(|error| {
                garbage(format!(
                    "JSON that does not fit ({:?} error at byte {})",
                    error.classify(),
                    error.column()
                ))
            })?;
            return Ok((response, answer.server_key));
        }
        Err(refused(&answer).unwrap_or_else(|| garbage(format!("status {}", answer.status.as_u16()))))
    }

    /// Asks until there is an answer that is not a 5xx, or no time. A 503 with one of the codes `spent` is an answer, after its pause.
    fn exchange(&self, url: &str, bounds: Bounds, spent: &[&str], request: impl Fn() -> RequestBuilder) -> Result<Answer, GatewayError> {
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        let began = Instant::now();
        loop {
            attempts += 1;
            // Whoever does not want this node to wait when it says "come again" is not waited for without end.
            let mut endless = true;
            let failed = match self.attempt(url, bounds, request()) {
                Ok(answer)
                    if is_told_to_come_again(&answer) && {
                        endless = self.waits(url, &answer, &mut backoff, attempts)?;
                        endless
                    } =>
                {
                    if problem(&answer).is_some_and(|problem| spent.contains(&problem.code.as_str())) {
                        return Ok(answer);
                    }
                    continue;
                }
                Ok(answer) if answer.status.is_server_error() => GatewayError::Failing {
                    url: url.to_owned(),
                    attempts,
                    status: answer.status.as_u16(),
                },
                Ok(answer) => {
                    self.patience.iter().for_each(|patience| patience.answered(Instant::now()));
                    return Ok(answer);
                }
                Err(Lost::Surely(GatewayError::Tls(problem))) if self.patience.is_some() && may_pass(url, &problem) => {
                    GatewayError::Tls(problem)
                }
                Err(Lost::Surely(error)) => return Err(error),
                Err(Lost::Perhaps(error)) => GatewayError::Unreachable {
                    url: url.to_owned(),
                    attempts,
                    error,
                },
            };
            let asked_long = self.patience.is_some_and(|patience| began.elapsed() >= patience.silence());
            if asked_long && discovers(url) && matches!(failed, GatewayError::Failing { .. }) {
                return Err(failed);
            }
            self.pause_after(failed, &mut backoff, endless)?;
        }
    }

    /// Makes the pause after an attempt that failed, and says so; gives the failure back if it was the last one.
    fn pause_after(&self, failed: GatewayError, backoff: &mut Backoff, endless: bool) -> Result<(), GatewayError> {
        let Some(patience) = self.patience.filter(|_| endless) else {
            return match backoff.pause(self.deadline.get()) {
                Some(pause) => {
                    std::thread::sleep(pause);
                    Ok(())
                }
                None => Err(failed),
            };
        };
        match patience.unanswered(&failed.clone().into(), backoff.endless(), Instant::now()) {
            Next::Pause { time, until, line } => {
                self.rest(time, until, line, "Waiting for a gateway that does not answer");
                Ok(())
            }
            Next::Over { .. } | Next::NotHeld => Err(failed),
        }
    }

    fn rest(&self, time: Duration, until: Duration, line: Option<String>, status: &str) {
        line.iter().for_each(|line| console::say(line));
        console::extend(until, status);
        std::thread::sleep(time);
        self.patience.iter().for_each(|patience| self.deadline.set(patience.work()));
    }

    /// Makes the pause of who was told to come again, and says so; `false` if nobody has this node wait.
    fn waits(&self, url: &str, answer: &Answer, backoff: &mut Backoff, attempts: u32) -> Result<bool, GatewayError> {
        let Some(patience) = self.patience else { return Ok(false) };
        let why = problem(answer).map(|problem| code_of(&problem.code)).unwrap_or_default();
        let again = ComeAgain {
            url,
            why: &why,
            pause: backoff.held(answer.not_before),
        };
        match patience.come_again(again, Instant::now()) {
            Next::NotHeld => Ok(false),
            Next::Over { held } => Err(GatewayError::Held {
                url: url.to_owned(),
                attempts,
                seconds: held.as_secs(),
            }),
            Next::Pause { time, until, line } => {
                self.rest(time, until, line, "Waiting for a gateway that tells this node to come again");
                Ok(true)
            }
        }
    }

    fn attempt(&self, url: &str, bounds: Bounds, request: RequestBuilder) -> Result<Answer, Lost> {
        let limit = self.deadline.get().remaining().min(bounds.time);
        if let Some(identity) = &self.http.identity {
            identity.begin();
        }
        let Some(runtime) = &self.http.runtime else {
            return Err(Lost::Surely(GatewayError::Client("it is shut down".to_owned())));
        };
        runtime.block_on(async {
            let lost = |error: reqwest::Error| match tls::certificate_error(&error) {
                Some(refused) => Lost::Surely(GatewayError::Tls(self.http.trust.explain(refused))),
                None => Lost::Perhaps(printable(&chain(&error))),
            };
            let mut response = request.timeout(limit).send().await.map_err(lost)?;
            let certificate = response
                .extensions()
                .get::<reqwest::tls::TlsInfo>()
                .and_then(|info| info.peer_certificate());
            let server_key = certificate.and_then(SpkiSha256::of_certificate);
            let status = response.status();
            let not_before = retry_after(&response);
            let mut body = Zeroizing::new(Vec::with_capacity(ANSWER_LIMIT_BYTES));
            while let Some(chunk) = response.chunk().await.map_err(lost)? {
                if body.len() + chunk.len() > bounds.bytes {
                    let what = format!("more than {} bytes", bounds.bytes);
                    return Err(Lost::Surely(GatewayError::Answer { url: url.to_owned(), what }));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(Answer {
                status,
                body,
                server_key,
                not_before,
            })
        })
    }
}

/// What every Ignition config has. An empty answer is none: a node that took it would be left without its config.
#[derive(Deserialize)]
struct AConfig {
    #[serde(rename = "ignition")]
    _ignition: AVersion,
}

#[derive(Deserialize)]
struct AVersion {
    #[serde(rename = "version")]
    _version: String,
}

/// Whether it is the gateway that says "come again", and not what stands before it while there is no gateway.
fn is_told_to_come_again(answer: &Answer) -> bool {
    answer.status == StatusCode::SERVICE_UNAVAILABLE && problem(answer).is_some_and(|problem| problem.kind.starts_with(PROBLEM_TYPE))
}

/// Whether a request is that for what the server is: nothing is known of it yet.
fn discovers(url: &str) -> bool {
    url.contains(&format!("{DISCOVERY_PATH}?"))
}

/// Whether a server's certificate that is refused may be accepted later: its dates have their time, or this node's clock; and a gateway's can be
/// replaced. A server that may be no gateway at all is not waited for, since Ignition may trust it otherwise than this program.
fn may_pass(url: &str, problem: &TlsProblem) -> bool {
    matches!(problem.code(), "tls-not-yet-valid" | "tls-expired") || !discovers(url)
}

/// The problem document in an answer, if it has one.
fn problem(answer: &Answer) -> Option<Problem> {
    serde_json::from_slice(&answer.body).ok()
}

/// The refusal in an answer, if it is one.
fn refused(answer: &Answer) -> Option<GatewayError> {
    Some(GatewayError::Refused(Box::new(problem(answer)?)))
}

/// `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is not heeded: this node's clock may be anything.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_LIMIT_SECONDS)))
}

/// What went wrong, from the innermost cause that says something. reqwest's own text repeats the URL.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    let innermost = texts.pop().unwrap_or_else(|| error.to_string());
    if error.is_timeout() {
        format!("timeout ({innermost})")
    } else {
        innermost
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
