//! What `attest-node` does, with its own pauses and patience: discovery, challenge and evidence on one connection, each asked for again for as
//! long as `attest-node` asks. The figures that are its own stand in its `exchange.rs` and `attestation/mod.rs`; a test holds these equal.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use attest::SpkiSha256;
use attest::protocol::{
    CHALLENGE_PATH, ChallengeResponse, DISCOVERY_PATH, Discovery, EVIDENCE_PATH, EvidenceResponse, HOLD_LIMIT_SECONDS, Problem,
};
use tokio::time::timeout;

use super::http::{Connection, Lost, Server};
use super::tally::{Noted, Step};
use crate::deadline::{Backoff, Deadline};
use crate::failure::Failure;
use crate::patience::{ComeAgain, Next, Patience};
use crate::support::POOL;
use crate::support::node::Node;

/// For what a node does by itself: the default of `--deadline`.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
const RETRY_AFTER_LIMIT_SECONDS: u64 = 60;
const SLOWEST_BODY_BYTES_PER_SECOND: u64 = 64 * 1024;
const PARTIAL_OUTAGE_PARTS: u32 = 10;
const CHALLENGES_LIMIT: usize = 3;
/// Of the codes that are worth another challenge, those that a TPM can meet.
const WORTH_ANOTHER_CHALLENGE: [&str; 2] = ["challenge-spent", "challenge-expired"];
const PROBLEM_TYPE: &str = "urn:attestation-gateway:problem:";

/// One run of it.
pub struct AttestNode<'a> {
    server: &'a Server,
    source: Ipv4Addr,
    noted: &'a mut Noted,
    patience: Patience,
    deadline: Deadline,
    connection: Option<Connection>,
}

struct Answer {
    status: u16,
    body: Vec<u8>,
    not_before: Option<Duration>,
}

impl Answer {
    fn problem(&self) -> Option<Problem> {
        serde_json::from_slice(&self.body).ok()
    }
}

impl<'a> AttestNode<'a> {
    pub fn new(server: &'a Server, source: Ipv4Addr, noted: &'a mut Noted) -> Self {
        let patience = Patience::new(SILENCE, Duration::from_secs(HOLD_LIMIT_SECONDS), None);
        Self {
            server,
            source,
            noted,
            deadline: patience.work(),
            patience,
            connection: None,
        }
    }

    /// Asks what the server is, as who has a token only does, too.
    pub async fn discover(&mut self) -> Result<(), String> {
        let line = format!("GET {DISCOVERY_PATH}?pool={POOL}");
        let discovery: Discovery = self.exchange(Step::Discovery, &line, &[]).await?;
        self.patience.told(discovery.hold_seconds.unwrap());
        Ok(())
    }

    /// Until there is a ticket, or the code that stands in the way.
    pub async fn attest(&mut self, node: &mut Node, server_key: &SpkiSha256) -> Result<String, String> {
        let request = serde_json::to_vec(&node.challenge_request()).unwrap();
        let (mut challenges, mut held, mut waited) = (0, self.patience.held(), self.patience.times());
        loop {
            challenges += 1;
            self.deadline = self.patience.work();
            let challenged: ChallengeResponse = self.post(Step::Challenge, CHALLENGE_PATH, &request).await?;
            let evidence = serde_json::to_vec(&node.answer(challenged, server_key)).unwrap();
            self.noted.evidence += 1;
            match self.post::<EvidenceResponse>(Step::Evidence, EVIDENCE_PATH, &evidence).await {
                Ok(response) => return Ok(response.ticket),
                Err(code) if WORTH_ANOTHER_CHALLENGE.contains(&code.as_str()) => {
                    if self.patience.held() > held || (code == "challenge-expired" && self.patience.times() > waited) {
                        (challenges, held, waited) = (0, self.patience.held(), self.patience.times());
                    } else if challenges >= CHALLENGES_LIMIT {
                        return Err(code);
                    }
                }
                Err(code) => return Err(code),
            }
        }
    }

    async fn post<A: serde::de::DeserializeOwned>(&mut self, step: Step, path: &str, body: &[u8]) -> Result<A, String> {
        self.exchange(step, &format!("POST {path}"), body).await
    }

    /// Asks until there is an answer that is no 5xx, and takes it if it is a 200.
    async fn exchange<A: serde::de::DeserializeOwned>(&mut self, step: Step, line: &str, body: &[u8]) -> Result<A, String> {
        let seconds = u64::try_from(body.len()).unwrap() / SLOWEST_BODY_BYTES_PER_SECOND;
        let limit = REQUEST_LIMIT + Duration::from_secs(seconds);
        let headers = [("accept", "*/*"), ("user-agent", "attest-node/0.1.0")];
        let request = self.server.request(line, &headers, body);
        let mut backoff = Backoff::default();
        let mut since = Instant::now();
        loop {
            let attempt = timeout(self.deadline.remaining().min(limit), self.attempt(&request)).await;
            match attempt.unwrap_or(Err("timeout")) {
                Ok(answer) if answer.status == 200 => {
                    self.patience.answered(Instant::now());
                    return serde_json::from_slice(&answer.body).map_err(|_| "gateway-answer".to_owned());
                }
                Ok(answer) => {
                    let problem = answer.problem();
                    let code = problem.as_ref().map(|problem| problem.code.clone()).unwrap_or_default();
                    self.noted.failed(step, &format!("{} {code}", answer.status));
                    let comes_again = problem.is_some_and(|problem| problem.kind.starts_with(PROBLEM_TYPE));
                    if answer.status < 500 {
                        self.patience.answered(Instant::now());
                        return Err(code);
                    } else if answer.status == 503 && comes_again {
                        self.hold(&code, backoff.held(answer.not_before)).await?;
                        since = Instant::now();
                    } else {
                        self.wait(&mut backoff, since, step == Step::Discovery).await?;
                    }
                }
                Err(lost) => {
                    self.noted.failed(step, lost);
                    self.wait(&mut backoff, since, false).await?;
                }
            }
        }
    }

    async fn attempt(&mut self, request: &[u8]) -> Result<Answer, Lost> {
        let mut connection = match self.connection.take().and_then(Connection::if_open) {
            Some(connection) => connection,
            None => {
                let opened = timeout(CONNECT_LIMIT, self.server.connect(self.source, CONNECT_LIMIT, CONNECT_LIMIT));
                opened.await.map_err(|_| "no connection: timeout")??
            }
        };
        connection.send(request).await?;
        let mut head = connection.head().await?;
        let mut body = Vec::with_capacity(head.length);
        connection.body(&mut head, |chunk| body.extend_from_slice(chunk)).await?;
        self.connection = (!head.closes).then_some(connection);
        Ok(Answer {
            status: head.status,
            body,
            not_before: head
                .retry_after
                .map(|seconds| Duration::from_secs(seconds.min(RETRY_AFTER_LIMIT_SECONDS))),
        })
    }

    /// The gateway has told this node to come again.
    async fn hold(&mut self, code: &str, pause: Duration) -> Result<(), String> {
        let again = ComeAgain { url: "", why: code, pause };
        match self.patience.come_again(again, Instant::now()) {
            Next::Pause { time, .. } => self.rest(time).await,
            Next::Over { .. } | Next::NotHeld => return Err("held-too-long".to_owned()),
        }
        Ok(())
    }

    /// There was no answer. A gateway that may have configs all the same is given up at once, which is sooner than `attest-node` does it: it asks.
    async fn wait(&mut self, backoff: &mut Backoff, since: Instant, soon: bool) -> Result<(), String> {
        if since.elapsed() >= SILENCE * if soon { 1 } else { PARTIAL_OUTAGE_PARTS } {
            return Err("gateway-unreachable".to_owned());
        }
        let failure = Failure::new("gateway-unreachable", "", "");
        match self.patience.unanswered(&failure, backoff.endless(), Instant::now()) {
            Next::Pause { time, .. } => self.rest(time).await,
            Next::Over { .. } | Next::NotHeld => return Err("gateway-unreachable".to_owned()),
        }
        Ok(())
    }

    async fn rest(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.deadline = self.patience.work();
    }
}
