//! One request and its answer: asked again for as long as there is patience.

use std::time::{Duration, Instant};

use attest::SpkiSha256;
use attest::protocol::{DISCOVERY_PATH, Problem};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, StatusCode};
use zeroize::Zeroizing;

use super::Gateway;
use super::error::GatewayError;
use super::http::chain;
use super::tls::{self, TlsProblem};
use crate::console;
use crate::deadline::Backoff;
use crate::failure::{code_of, printable};
use crate::patience::{ComeAgain, Next};

/// Largest answer read. A challenge is about 3 KiB.
pub(super) const ANSWER_LIMIT_BYTES: usize = 64 * 1024;
/// How long one request may take before it counts as lost. A loaded gateway answers in milliseconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// Largest config read: a pool's files together have at most that much.
pub(super) const CONFIG_LIMIT_BYTES: usize = 64 * 1024 * 1024;
/// How long a config may take: the largest one at 5 Mbit/s.
const CONFIG_LIMIT: Duration = Duration::from_secs(120);
/// Longest `Retry-After` that is heeded, seconds: what comes back sooner than that does no harm.
const RETRY_AFTER_LIMIT_SECONDS: u64 = 60;
/// What the `type` of a gateway's problem documents begins with.
const PROBLEM_TYPE: &str = "urn:attestation-gateway:problem:";

/// What one answer may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    bytes: usize,
    time: Duration,
}

pub(super) const ANSWER: Bounds = Bounds {
    bytes: ANSWER_LIMIT_BYTES,
    time: REQUEST_LIMIT,
};
pub(super) const CONFIG: Bounds = Bounds {
    bytes: CONFIG_LIMIT_BYTES,
    time: CONFIG_LIMIT,
};

/// An answer that was read to its end.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Zeroizing<Vec<u8>>,
    pub(super) server_key: Option<SpkiSha256>,
    /// When to come again, if it says so.
    not_before: Option<Duration>,
}

/// One attempt that brought no answer.
pub(super) enum Lost {
    /// Another attempt may bring one.
    Perhaps(String),
    /// None will.
    Surely(GatewayError),
}

impl Gateway<'_> {
    /// Asks until there is an answer that is not a 5xx, or no time. A 503 with one of the codes `spent` is an answer, after its pause.
    pub(super) fn exchange(
        &self,
        url: &str,
        bounds: Bounds,
        spent: &[&str],
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Answer, GatewayError> {
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

    pub(super) fn attempt(&self, url: &str, bounds: Bounds, request: RequestBuilder) -> Result<Answer, Lost> {
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
pub(super) fn refused(answer: &Answer) -> Option<GatewayError> {
    Some(GatewayError::Refused(Box::new(problem(answer)?)))
}

/// `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is not heeded: this node's clock may be anything.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_LIMIT_SECONDS)))
}
