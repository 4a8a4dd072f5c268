//! The gateway's API as the node uses it: three requests over TLS that trusts the pointer's CAs only, and a fourth for the config of a
//! node that the cluster has approved.

mod described;
mod error;
mod exchange;
mod go_compat;
mod http;
pub mod identity;
pub mod tls;

use std::cell::Cell;
use std::collections::BTreeSet;

use attest_wire::protocol::{
    CHALLENGE_PATH, CONFIG_PREFIX, ChallengeRequest, ChallengeResponse, DISCOVERY_PATH, Discovery, EVIDENCE_PATH, EvidenceRequest,
    EvidenceResponse, KUBELET_KEY_PARAMETER, NOT_ATTESTED_HEADER, POOL_PARAMETER, REPORT_PATH, RehearsalResponse, ReportRequest,
    ReportResponse, SERVICE, VERSION,
};
use attest_wire::{Kind, SpkiSha256};
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use self::error::{GatewayError, TlsProblem};
use self::exchange::{ANSWER, CONFIG, refused};
pub use self::http::Http;
pub(crate) use self::http::{POLLS_BETWEEN_TIMERS, chain};
use crate::deadline::Deadline;
use crate::failure::is_id;
use crate::pointer::GatewaySource;
use crate::wait::WaitLimits;

/// Codes of 503 answers to evidence that the gateway does not take a second time.
const NEEDS_ANOTHER_CHALLENGE: &[&str] = &["cloud-unavailable", "machine-pending", "machines-unavailable", "answer-pending"];

/// Kind of server at a source of the pointer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovered {
    /// An attestation gateway, with the evidence that it accepts.
    Gateway(Takes),
    /// Another server, such as a Machine Config Server; with its answer.
    Other(String),
}

/// Evidence and keys that a gateway accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takes {
    /// The kinds of evidence.
    pub kinds: BTreeSet<Kind>,
    /// `true` if a challenge accepts the key of the node's kubelet. Only known if the request asked for it.
    pub kubelet_key: bool,
    /// Seconds by which this node's clock is behind the gateway's, negative if it is ahead; `None` if the answer has no date.
    pub clock_behind: Option<i64>,
}

/// Client for one gateway, with the time limits for it.
#[derive(Debug)]
pub struct GatewayClient<'http> {
    http: &'http Http,
    base: &'http str,
    /// The pool whose config the node wants, if it waits for that.
    pool: Option<&'http str>,
    /// `true` if Ignition shows it a provisioning token.
    has_token: bool,
    deadline: Cell<Deadline>,
    wait_limits: Option<&'http WaitLimits>,
}

impl<'http> GatewayClient<'http> {
    /// Returns the URL before `/config/<pool>`.
    #[must_use]
    pub const fn base(&self) -> &'http str {
        self.base
    }

    /// Creates a client for the gateway at `base`, the URL before `/config/<pool>`.
    #[must_use]
    pub const fn new(http: &'http Http, base: &'http str, deadline: Deadline) -> Self {
        Self {
            http,
            base,
            pool: None,
            has_token: false,
            deadline: Cell::new(deadline),
            wait_limits: None,
        }
    }

    /// The gateway of a source, waited for while it does not answer, and if it says "come again".
    #[must_use]
    pub const fn patiently(http: &'http Http, source: &'http GatewaySource, deadline: Deadline, patience: &'http WaitLimits) -> Self {
        Self {
            http,
            base: source.base.as_str(),
            pool: Some(source.pool.as_str()),
            has_token: false,
            deadline: Cell::new(deadline),
            wait_limits: Some(patience),
        }
    }

    /// Sets whether Ignition shows this gateway a provisioning token.
    #[must_use]
    pub const fn with_token(mut self, has_token: bool) -> Self {
        self.has_token = has_token;
        self
    }

    /// The time there is for it at the moment. Each time that it is waited for moves it on.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline.get()
    }

    /// Returns the number of 503 answers from gateways that made this node wait.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.wait_limits.map_or(0, WaitLimits::held)
    }

    /// Returns the number of times that this node has waited for gateways, for that reason or because they did not answer.
    #[must_use]
    pub fn waited(&self) -> u32 {
        self.wait_limits.map_or(0, WaitLimits::times)
    }

    /// Asks for the server's kind, on behalf of a node of this pool, which may offer to attest a key for its kubelet. A gateway that
    /// approves only CSRs for attested keys asks for one by itself.
    ///
    /// # Errors
    /// All variants but [`GatewayError::Refused`].
    pub fn discover(&self, pool: &str, offers_key: bool) -> Result<Discovered, GatewayError> {
        // A pool's name needs no escaping.
        let of_key = if offers_key {
            format!("&{KUBELET_KEY_PARAMETER}=1")
        } else {
            String::new()
        };
        let url = self.url(&format!("{DISCOVERY_PATH}?{POOL_PARAMETER}={pool}{of_key}"));
        let answer = self.exchange(&url, ANSWER, &[], || self.http.client.get(&url))?;
        if answer.status != StatusCode::OK {
            return Ok(Discovered::Other(format!("{url} answers {}", answer.status.as_u16())));
        }
        match serde_json::from_slice::<Discovery>(&answer.body) {
            Ok(discovery) if discovery.service != SERVICE => Ok(Discovered::Other(format!("{url} belongs to another service"))),
            Ok(discovery) if discovery.protocol != VERSION => Err(GatewayError::Protocol {
                url,
                found: discovery.protocol,
            }),
            Ok(discovery) => {
                if let (Some(patience), Some(seconds)) = (self.wait_limits, discovery.hold_seconds) {
                    patience.record_wait(seconds);
                }
                // A gateway of a later release may take kinds that this node has never heard of.
                let known = Kind::ALL
                    .into_iter()
                    .filter(|kind| discovery.kinds.iter().any(|word| word == kind.as_str()));
                let kinds: BTreeSet<Kind> = known.collect();
                if kinds.iter().any(|kind| *kind != Kind::Token) {
                    let kubelet_key = discovery.kubelet_key == Some(true);
                    return Ok(Discovered::Gateway(Takes {
                        kinds,
                        kubelet_key,
                        clock_behind: answer.clock_behind,
                    }));
                }
                Ok(Discovered::Other(format!(
                    "the attestation gateway at {url} accepts no kind of evidence that this node supports"
                )))
            }
            Err(_) => Ok(Discovered::Other(format!("{url} does not answer with discovery JSON"))),
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
    /// [`GatewayError`]; [`GatewayError::Refused`] with one of [`NEEDS_ANOTHER_CHALLENGE`] after a pause: now is the time for another challenge.
    pub fn evidence(&self, request: &EvidenceRequest) -> Result<EvidenceResponse, GatewayError> {
        self.post(&self.url(EVIDENCE_PATH), NEEDS_ANOTHER_CHALLENGE, request)
            .map(|(response, _)| response)
    }

    /// Sends the evidence of a rehearsal.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn rehearse(&self, request: &EvidenceRequest) -> Result<RehearsalResponse, GatewayError> {
        self.post(&self.url(EVIDENCE_PATH), NEEDS_ANOTHER_CHALLENGE, request)
            .map(|(response, _)| response)
    }

    /// Reports a failed boot. Returns the id of the gateway's record.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn report(&self, request: &ReportRequest) -> Result<String, GatewayError> {
        let url = self.url(REPORT_PATH);
        let (ReportResponse { report }, _) = self.post(&url, &[], request)?;
        match is_id(&report) {
            true => Ok(report),
            false => Err(GatewayError::Answer {
                url,
                what: "the id of its record is none".to_owned(),
            }),
        }
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
            return Err(garbage("not an Ignition config".to_owned()));
        }
        Ok(answer.body)
    }

    /// Tells the gateway why this node shows nothing, if Ignition cannot: by a `HEAD` request for the pool's config, which the gateway
    /// decides and records like any other. Any answer shows that the gateway knows the reason.
    ///
    /// # Errors
    /// [`GatewayError::Unreachable`], [`GatewayError::Failing`], [`GatewayError::Tls`].
    pub fn not_attested(&self, pool: &str, code: &str) -> Result<(), GatewayError> {
        let url = self.url(&format!("{CONFIG_PREFIX}{pool}"));
        let request = || self.http.client.head(&url).header(ACCEPT, "*/*").header(NOT_ATTESTED_HEADER, code);
        self.exchange(&url, ANSWER, &[], request).map(drop)
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
        let garbage = |what: String| GatewayError::Answer { url: url.to_owned(), what };
        let body = serde_json::to_vec(request).map_err(|error| GatewayError::Client(error.to_string()))?;
        let bounds = ANSWER.with_body(body.len());
        let answer = self.exchange(url, bounds, spent, || {
            let post = self.http.client.post(url).header(CONTENT_TYPE, "application/json");
            post.body(body.clone())
        })?;
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
}

/// Minimum content of an Ignition config. An empty answer is rejected: a node that accepted it would be left without its config.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
