//! Simulated `attest-node` with its own pauses and patience: discovery, challenge and evidence on one connection, each retried for as long
//! as `attest-node` retries.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use attest::SpkiSha256;
use attest::protocol::{CHALLENGE_PATH, ChallengeResponse, DISCOVERY_PATH, Discovery, EVIDENCE_PATH, EvidenceResponse, Problem};
use tokio::time::timeout;

use super::http::{Connection, Lost, Server};
use super::tally::{Noted, Step};
use crate::deadline::Deadline;
use crate::support::POOL;
use crate::support::node::Node;
use crate::wait_limits::WaitLimits;
use crate::waits::attest_node::{
    Asking, CHALLENGES_LIMIT, CONNECT_LIMIT, REQUEST_LIMIT, RETRY_AFTER_LIMIT_SECONDS, SLOWEST_BODY_BYTES_PER_SECOND, patience,
};

/// Codes after which `attest-node` asks for another challenge, as far as a TPM can cause them.
const WORTH_ANOTHER_CHALLENGE: [&str; 2] = ["challenge-spent", "challenge-expired"];
const PROBLEM_TYPE: &str = "urn:attestation-gateway:problem:";

/// Single run of `attest-node`.
pub struct AttestNode<'a> {
    server: &'a Server,
    source: Ipv4Addr,
    noted: &'a mut Noted,
    wait_limits: WaitLimits,
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
        let patience = patience();
        Self {
            server,
            source,
            noted,
            deadline: patience.work(),
            wait_limits: patience,
            connection: None,
        }
    }

    /// Asks what the server is, like a node that only has a token.
    pub async fn discover(&mut self) -> Result<(), String> {
        let line = format!("GET {DISCOVERY_PATH}?pool={POOL}");
        let discovery: Discovery = self.exchange(Step::Discovery, &line, &[]).await?;
        self.wait_limits.record_wait(discovery.hold_seconds.unwrap());
        Ok(())
    }

    /// Attests until the gateway answers with a ticket. Returns the code of the obstacle otherwise.
    pub async fn attest(&mut self, node: &mut Node, server_key: &SpkiSha256) -> Result<EvidenceResponse, String> {
        let request = serde_json::to_vec(&node.challenge_request()).unwrap();
        let (mut challenges, mut held, mut waited) = (0, self.wait_limits.held(), self.wait_limits.times());
        loop {
            challenges += 1;
            self.deadline = self.wait_limits.work();
            let challenged: ChallengeResponse = self.post(Step::Challenge, CHALLENGE_PATH, &request).await?;
            let evidence = serde_json::to_vec(&node.answer(challenged, server_key)).unwrap();
            self.noted.evidence += 1;
            match self.post::<EvidenceResponse>(Step::Evidence, EVIDENCE_PATH, &evidence).await {
                Ok(response) => return Ok(response),
                Err(code) if WORTH_ANOTHER_CHALLENGE.contains(&code.as_str()) => {
                    if self.wait_limits.held() > held || (code == "challenge-expired" && self.wait_limits.times() > waited) {
                        (challenges, held, waited) = (0, self.wait_limits.held(), self.wait_limits.times());
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

    /// Sends a request until the answer is not a 5xx, and accepts it if it is a 200.
    async fn exchange<A: serde::de::DeserializeOwned>(&mut self, step: Step, line: &str, body: &[u8]) -> Result<A, String> {
        let seconds = u64::try_from(body.len()).unwrap() / SLOWEST_BODY_BYTES_PER_SECOND;
        let limit = REQUEST_LIMIT + Duration::from_secs(seconds);
        let headers = [("accept", "*/*"), ("user-agent", "attest-node/0.1.0")];
        let request = self.server.request(line, &headers, body);
        let mut asking = Asking::begun(Instant::now());
        loop {
            let attempt = timeout(self.deadline.remaining().min(limit), self.attempt(&request)).await;
            match attempt.unwrap_or(Err("timeout")) {
                Ok(answer) if answer.status == 200 => {
                    self.wait_limits.answered(Instant::now());
                    return serde_json::from_slice(&answer.body).map_err(|_| "gateway-answer".to_owned());
                }
                Ok(answer) => {
                    let problem = answer.problem();
                    let code = problem.as_ref().map(|problem| problem.code.clone()).unwrap_or_default();
                    self.noted.failed(step, &format!("{} {code}", answer.status));
                    let comes_again = problem.is_some_and(|problem| problem.kind.starts_with(PROBLEM_TYPE));
                    if answer.status < 500 {
                        self.wait_limits.answered(Instant::now());
                        return Err(code);
                    } else if answer.status == 503 && comes_again {
                        self.rest(asking.held(&self.wait_limits, &code, answer.not_before, Instant::now())?)
                            .await;
                    } else {
                        let soon = step == Step::Discovery;
                        self.rest(asking.unanswered(&self.wait_limits, soon, Instant::now())?).await;
                    }
                }
                Err(lost) => {
                    self.noted.failed(step, lost);
                    self.rest(asking.unanswered(&self.wait_limits, false, Instant::now())?).await;
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
        self.noted.received += u64::try_from(body.len()).unwrap();
        self.connection = (!head.closes).then_some(connection);
        Ok(Answer {
            status: head.status,
            body,
            not_before: head
                .retry_after
                .map(|seconds| Duration::from_secs(seconds.min(RETRY_AFTER_LIMIT_SECONDS))),
        })
    }

    async fn rest(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.deadline = self.wait_limits.work();
    }
}
