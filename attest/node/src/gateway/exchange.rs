//! Performs one request, and repeats it as long as [`WaitLimits`] allows.

use std::time::{Duration, Instant};

use attest_wire::SpkiSha256;
use attest_wire::protocol::{CONFIG_PREFIX, DISCOVERY_PATH, Problem};
use reqwest::header::{ACCEPT, DATE, RETRY_AFTER};
use reqwest::{RequestBuilder, StatusCode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use zeroize::Zeroizing;

use super::GatewayClient;
use super::error::{GatewayError, TlsProblem};
use super::http::chain;
use super::tls;
use crate::console;
use crate::deadline::Backoff;
use crate::failure::{code_of, printable};
use crate::wait::{NextStep, RetryRequest, WAY_OUT, WaitLimits};

/// Largest answer read. A challenge is about 3 KiB.
pub(super) const ANSWER_LIMIT_BYTES: usize = 64 * 1024;
/// Time limit of one request, after which it counts as lost, with its connection: on an open connection, a loaded gateway answers within 15
/// s.
const REQUEST_LIMIT: Duration = Duration::from_secs(45);
/// Interval between console messages about an overdue answer.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Largest config read: a pool's files together have at most that much.
pub(super) const CONFIG_LIMIT_BYTES: usize = 64 * 1024 * 1024;
/// Time limit for a config: the largest one at 5 Mbit/s.
const CONFIG_LIMIT: Duration = Duration::from_secs(120);
/// Longest `Retry-After` that is heeded, in seconds: a retry before its end does no harm.
const RETRY_AFTER_LIMIT_SECONDS: u64 = 60;
/// Multiple of the time for its own work that a node waits for a server that serves configs, but fails to attest: by default ten minutes,
/// since a gateway may be that busy.
const PARTIAL_OUTAGE_PARTS: u32 = 10;
/// The slowest that a body is sent, bytes a second: the gateway waits as long for one.
const SLOWEST_BODY_BYTES_PER_SECOND: u64 = 64 * 1024;
/// `Accept` header of Ignition's config requests. Without a version, servers give a config of spec 2.2 or none. The choice among 3.x
/// matters little here.
const IGNITION: &str = "application/vnd.coreos.ignition+json;version=3.3.0, */*;q=0.1";
/// Prefix of the `type` of a gateway's problem documents.
const PROBLEM_TYPE: &str = "urn:attestation-gateway:problem:";

/// Limits for one answer, in bytes and time.
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

impl Bounds {
    /// Extends the limits for a request with a body of so many bytes.
    pub(super) fn with_body(self, bytes: usize) -> Self {
        let seconds = u64::try_from(bytes).unwrap_or(u64::MAX) / SLOWEST_BODY_BYTES_PER_SECOND;
        Self {
            time: self.time + Duration::from_secs(seconds),
            ..self
        }
    }
}

/// An answer that was read to its end.
pub(super) struct GatewayAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Zeroizing<Vec<u8>>,
    pub(super) server_key: Option<SpkiSha256>,
    /// Earliest time for a retry, from `Retry-After`.
    not_before: Option<Duration>,
    /// Seconds by which this node's clock is behind the answer's `Date`.
    pub(super) clock_behind: Option<i64>,
}

/// A time in which there was nothing but failures.
struct Outage {
    since: Instant,
    /// Time of the last request for configs.
    asked: Option<Instant>,
    /// `true` if it had some, after the last failure.
    has_configs: bool,
}

impl Outage {
    fn begin() -> Self {
        Self {
            since: Instant::now(),
            asked: None,
            has_configs: false,
        }
    }
}

/// Failed attempt, without an answer.
pub(super) enum NoAnswer {
    /// Another attempt may bring one.
    Perhaps(String),
    /// A certificate that is refused: another one may come, or the dates of this one have their time.
    Refused(TlsProblem),
    /// No further attempt can succeed.
    Surely(GatewayError),
}

impl GatewayClient<'_> {
    /// Asks until there is an answer that is not a 5xx, or no time. A 503 with one of the codes `spent` is an answer, after its pause.
    pub(super) fn exchange(
        &self,
        url: &str,
        bounds: Bounds,
        spent: &[&str],
        request: impl Fn() -> RequestBuilder,
    ) -> Result<GatewayAnswer, GatewayError> {
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        let mut outage = Outage::begin();
        loop {
            attempts += 1;
            // Whoever does not want this node to wait when it says "come again" is not waited for without end.
            let mut endless = true;
            let failed = match self.attempt(url, bounds, request()) {
                Ok(answer)
                    if is_retry_later(&answer) && {
                        endless = self.waits(url, &answer, &mut backoff, attempts)?;
                        endless
                    } =>
                {
                    if problem(&answer).is_some_and(|problem| spent.contains(&problem.code.as_str())) {
                        return Ok(answer);
                    }
                    outage = Outage::begin();
                    continue;
                }
                Ok(answer) if answer.status.is_server_error() => GatewayError::Failing {
                    url: url.to_owned(),
                    attempts,
                    status: answer.status.as_u16(),
                },
                Ok(answer) => {
                    self.wait_limits.iter().for_each(|patience| patience.answered(Instant::now()));
                    return Ok(answer);
                }
                Err(NoAnswer::Refused(problem)) if self.wait_limits.is_some() => GatewayError::Tls(problem),
                Err(NoAnswer::Refused(problem)) => return Err(GatewayError::Tls(problem)),
                Err(NoAnswer::Surely(error)) => return Err(error),
                Err(NoAnswer::Perhaps(error)) => GatewayError::Unreachable {
                    url: url.to_owned(),
                    attempts,
                    error,
                },
            };
            if endless && self.should_probe_configs(url, &failed, outage.since) {
                if outage.has_configs {
                    return Err(GatewayError::BesideConfigs(Box::new(failed)));
                }
                if self.finds_configs(&mut outage) {
                    // It may have come back meanwhile: asked once more, at once, with the time of a request.
                    self.restart_time_limit("Asking a gateway again");
                    continue;
                }
            }
            outage.has_configs = false;
            self.pause_after(failed, &mut backoff, endless)?;
        }
    }

    /// Returns whether it is time to find out if attestation fails while configs are served. Ignition would then get the config of an
    /// unauthenticated client, and this node would wait in vain. The check comes soon if nothing is known of the server yet, and late if a
    /// gateway may only be busy.
    fn should_probe_configs(&self, url: &str, failed: &GatewayError, since: Instant) -> bool {
        let Some(patience) = self.wait_limits else { return false };
        let after = match failed {
            GatewayError::Failing { .. } if discovers(url) => patience.silence(),
            GatewayError::Failing { .. } | GatewayError::Unreachable { .. } => patience.silence() * PARTIAL_OUTAGE_PARTS,
            _ => return false,
        };
        since.elapsed() >= after
    }

    /// Finds out whether the server has configs. It does not ask at each failure, since a gateway decides and records each request. It
    /// takes the time of a request of its own, since the failed one may have used up all the time.
    fn finds_configs(&self, outage: &mut Outage) -> bool {
        let silence = self.wait_limits.map_or(Duration::ZERO, WaitLimits::silence);
        if outage.asked.is_some_and(|asked| asked.elapsed() < silence) {
            return false;
        }
        self.restart_time_limit("Asking whether a gateway has configs");
        outage.has_configs = self.gives_configs();
        outage.asked = Some(Instant::now());
        outage.has_configs
    }

    /// Returns whether Ignition would get the pool's config, or an answer that one exists in a version that it cannot read. The check shows
    /// no token. If the source has one, a refusal (403) counts as a server with configs.
    fn gives_configs(&self) -> bool {
        let Some(pool) = self.pool else { return false };
        let url = self.url(&format!("{CONFIG_PREFIX}{pool}"));
        let request = self.http.client.head(&url).header(ACCEPT, IGNITION);
        self.attempt(&url, ANSWER, request)
            .is_ok_and(|GatewayAnswer { status, .. }| match status {
                StatusCode::NOT_ACCEPTABLE => true,
                StatusCode::FORBIDDEN => self.has_token,
                status => status.is_success(),
            })
    }

    /// Restarts the time limit for this node's own work.
    fn restart_time_limit(&self, status: &str) {
        if let Some(patience) = self.wait_limits {
            console::extend(patience.begin(Duration::ZERO), status);
            self.deadline.set(patience.work());
        }
    }

    /// Pauses and reports after a failed attempt; returns the failure if it was the last attempt.
    fn pause_after(&self, failed: GatewayError, backoff: &mut Backoff, endless: bool) -> Result<(), GatewayError> {
        let Some(patience) = self.wait_limits.filter(|_| endless) else {
            return match backoff.pause(self.deadline.get()) {
                Some(pause) => {
                    std::thread::sleep(pause);
                    Ok(())
                }
                None => Err(failed),
            };
        };
        match patience.unanswered(&failed.clone().into(), backoff.endless(), Instant::now()) {
            NextStep::Pause { time, until, line } => {
                self.rest(time, until, line, "Waiting for a gateway that does not answer");
                Ok(())
            }
            NextStep::Over { .. } | NextStep::NotHeld => Err(failed),
        }
    }

    fn rest(&self, time: Duration, until: Duration, line: Option<String>, status: &str) {
        line.iter().for_each(|line| console::print_line(line));
        console::extend(until, status);
        std::thread::sleep(time);
        self.wait_limits.iter().for_each(|patience| self.deadline.set(patience.work()));
    }

    /// Pauses and reports after a 503 of the gateway; returns `false` if no gateway has set a time to wait.
    fn waits(&self, url: &str, answer: &GatewayAnswer, backoff: &mut Backoff, attempts: u32) -> Result<bool, GatewayError> {
        let Some(patience) = self.wait_limits else { return Ok(false) };
        let problem = problem(answer);
        let why = problem.as_ref().map(|problem| code_of(&problem.code)).unwrap_or_default();
        let what = problem
            .and_then(|problem| problem.detail)
            .map(|detail| printable(&detail))
            .unwrap_or_default();
        let again = RetryRequest {
            url,
            why: &why,
            what: &what,
            pause: backoff.held(answer.not_before),
        };
        match patience.retry_later(again, Instant::now()) {
            NextStep::NotHeld => Ok(false),
            NextStep::Over { held } => Err(GatewayError::Held {
                url: url.to_owned(),
                attempts,
                seconds: held.as_secs(),
            }),
            NextStep::Pause { time, until, line } => {
                self.rest(time, until, line, "Waiting for a gateway that tells this node to retry");
                Ok(true)
            }
        }
    }

    fn attempt(&self, url: &str, bounds: Bounds, request: RequestBuilder) -> Result<GatewayAnswer, NoAnswer> {
        let limit = self.deadline.get().remaining().min(bounds.time);
        if let Some(identity) = &self.http.identity {
            identity.begin();
        }
        let Some(runtime) = &self.http.runtime else {
            return Err(NoAnswer::Surely(GatewayError::Client("it is shut down".to_owned())));
        };
        let answer = async {
            let lost = |error: reqwest::Error| match tls::certificate_error(&error) {
                Some(refused) => match self.http.trust.explain(refused) {
                    // Ignition gets there, or may, with what it is about to show.
                    (problem, true) => NoAnswer::Surely(GatewayError::Tls(problem)),
                    // Nor does Ignition: it asks again for ever, and so may this node.
                    (problem, false) => NoAnswer::Refused(problem),
                },
                None => NoAnswer::Perhaps(printable(&chain(&error))),
            };
            let mut response = request.timeout(limit).send().await.map_err(lost)?;
            let certificate = response
                .extensions()
                .get::<reqwest::tls::TlsInfo>()
                .and_then(|info| info.peer_certificate());
            let server_key = certificate.and_then(SpkiSha256::from_certificate);
            let status = response.status();
            let not_before = retry_after(&response);
            let clock_behind = clock_behind(&response);
            let mut body = Zeroizing::new(Vec::with_capacity(ANSWER_LIMIT_BYTES));
            while let Some(chunk) = response.chunk().await.map_err(lost)? {
                if body.len() + chunk.len() > bounds.bytes {
                    let what = format!("more than {} bytes", bounds.bytes);
                    return Err(NoAnswer::Surely(GatewayError::Answer { url: url.to_owned(), what }));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(GatewayAnswer {
                status,
                body,
                server_key,
                not_before,
                clock_behind,
            })
        };
        runtime.block_on(telling(answer, SAY_EVERY, |waited| {
            if self.wait_limits.is_some() {
                console::print_line(&overdue(url, waited));
            }
        }))
    }
}

/// Awaits `work`, and calls `say` with the time waited at each interval.
async fn telling<T>(work: impl Future<Output = T>, every: Duration, mut say: impl FnMut(Duration)) -> T {
    let mut work = std::pin::pin!(work);
    let mut waited = Duration::ZERO;
    loop {
        if let Ok(done) = tokio::time::timeout(every, &mut work).await {
            return done;
        }
        waited += every;
        say(waited);
    }
}

fn overdue(url: &str, waited: Duration) -> String {
    format!(
        "waiting: {url} has not answered for {} s; a gateway under load serves nodes one after the other; {WAY_OUT}",
        waited.as_secs()
    )
}

/// Returns whether the 503 comes from the gateway, not from a proxy in front of it while no gateway runs.
fn is_retry_later(answer: &GatewayAnswer) -> bool {
    answer.status == StatusCode::SERVICE_UNAVAILABLE && problem(answer).is_some_and(|problem| problem.kind.starts_with(PROBLEM_TYPE))
}

/// Returns whether a request is for discovery, before anything is known of the server.
fn discovers(url: &str) -> bool {
    url.contains(&format!("{DISCOVERY_PATH}?"))
}

/// The problem document in an answer, if it has one.
fn problem(answer: &GatewayAnswer) -> Option<Problem> {
    serde_json::from_slice(&answer.body).ok()
}

/// The refusal in an answer, if it is one.
pub(super) fn refused(answer: &GatewayAnswer) -> Option<GatewayError> {
    Some(GatewayError::Refused(Box::new(problem(answer)?)))
}

/// `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is not heeded: this node's clock may be anything.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_LIMIT_SECONDS)))
}

/// Returns the seconds from this node's clock to `Date` (RFC 9110, section 6.6.1), whose form is one of RFC 2822's.
fn clock_behind(response: &reqwest::Response) -> Option<i64> {
    let date = response.headers().get(DATE)?.to_str().ok()?;
    let date = OffsetDateTime::parse(date, &Rfc2822).ok()?;
    Some((date - OffsetDateTime::now_utc()).whole_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_reports_a_pending_gateway_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let every = Duration::from_millis(20);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (mut sender, mut said) = (Some(sender), Vec::new());
        let answer = runtime.block_on(telling(receiver, every, |waited| {
            said.push(waited);
            if said.len() == 3 {
                sender.take().map(|sender| sender.send(7));
            }
        }));
        assert_eq!((answer, said), (Ok(7), vec![every, every * 2, every * 3]));
        // What comes at once is nothing to speak of.
        assert_eq!(runtime.block_on(telling(async { 8 }, every, |_| unreachable!())), 8);
        let line = overdue("https://a/v1/attest", Duration::from_secs(20));
        assert!(
            line.contains("https://a/v1/attest has not answered for 20 s") && line.contains("rd.systemd.mask=attest-node.service"),
            "{line}"
        );
    }
}
