//! Client that speaks the gateway's protocol itself, to send requests that a node could send and attest-node would not.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use attest::SpkiSha256;
use attest::nonce::qualifying_data;
use attest::protocol::{
    CHALLENGE_PATH, CONFIG_PREFIX, ChallengeRequest, ChallengeResponse, EVIDENCE_PATH, EvidenceRequest, Problem, TpmEvidence, TpmTask,
};
use reqwest::header::ACCEPT;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::gateway::{IGNITION_ACCEPT, TestGateway, client_tls};

/// Timeout of a request on a loaded machine.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

/// Client that trusts the gateway's CA only. It uses a new connection for each request, so that a gateway may be killed between any two.
/// Any number of threads may use it at once.
pub struct Client {
    runtime: Runtime,
    http: reqwest::Client,
    base: String,
}

/// Answer of the gateway.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    /// Key that the server presented in the TLS handshake.
    pub server_key: Option<SpkiSha256>,
}

/// Challenge, and the server that issued it.
#[derive(Debug, Clone)]
pub struct IssuedChallenge {
    /// Requested pool: part of the data that the quote is bound to.
    pub pool: String,
    pub response: ChallengeResponse,
    /// Key of the server that issued the challenge.
    pub server_key: SpkiSha256,
}

impl Client {
    /// Creates a client of this gateway, which need not run yet.
    pub fn new(gateway: &TestGateway) -> Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
            http: reqwest::Client::builder()
                .tls_backend_preconfigured(client_tls(&gateway.ca())?)
                .tls_info(true)
                .pool_max_idle_per_host(0)
                .timeout(REQUEST_LIMIT)
                .build()?,
            base: format!("https://127.0.0.1:{}", gateway.port()),
        })
    }

    /// Sends `POST path` with any bytes.
    pub fn post(&self, path: &str, body: Vec<u8>) -> Result<Reply> {
        self.send(self.http.post(format!("{}{path}", self.base)).body(body))
    }

    /// Sends `GET path` like Ignition, with a ticket or token or nothing.
    pub fn get(&self, path: &str, bearer: Option<&str>) -> Result<Reply> {
        let request = self.http.get(format!("{}{path}", self.base)).header(ACCEPT, IGNITION_ACCEPT);
        self.send(match bearer {
            Some(bearer) => request.bearer_auth(bearer),
            None => request,
        })
    }

    /// Sends a `GET` request for a pool's config.
    pub fn config(&self, pool: &str, bearer: Option<&str>) -> Result<Reply> {
        self.get(&format!("{CONFIG_PREFIX}{pool}"), bearer)
    }

    /// Requests a challenge, and returns any answer.
    pub fn challenge(&self, request: &ChallengeRequest) -> Result<Reply> {
        self.post_json(CHALLENGE_PATH, request)
    }

    /// Requests a challenge. Fails if the gateway does not issue one.
    pub fn challenged(&self, request: &ChallengeRequest) -> Result<IssuedChallenge> {
        let reply = self.challenge(request)?;
        Ok(IssuedChallenge {
            pool: request.pool.clone(),
            response: reply.json()?,
            server_key: reply.server_key.context("the server showed no key")?,
        })
    }

    /// Sends evidence, and returns any answer.
    pub fn evidence(&self, request: &EvidenceRequest) -> Result<Reply> {
        self.post_json(EVIDENCE_PATH, request)
    }

    fn post_json(&self, path: &str, body: &impl Serialize) -> Result<Reply> {
        self.post(path, serde_json::to_vec(body)?)
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<Reply> {
        self.runtime.block_on(async {
            let response = request.send().await?;
            let certificate = response
                .extensions()
                .get::<reqwest::tls::TlsInfo>()
                .and_then(reqwest::tls::TlsInfo::peer_certificate);
            Ok(Reply {
                server_key: certificate.and_then(SpkiSha256::from_certificate),
                status: response.status().as_u16(),
                body: response.bytes().await?.to_vec(),
            })
        })
    }
}

impl Reply {
    /// Parses the body of a success.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        if self.status != 200 {
            bail!("HTTP {}: {}", self.status, String::from_utf8_lossy(&self.body));
        }
        serde_json::from_slice(&self.body).context("the body")
    }

    /// Returns the code of a refusal; empty for anything else.
    #[must_use]
    pub fn code(&self) -> String {
        serde_json::from_slice(&self.body)
            .map(|problem: Problem| problem.code)
            .unwrap_or_default()
    }
}

impl IssuedChallenge {
    /// Returns the challenge's task for the TPM.
    ///
    /// # Panics
    /// If the gateway asks for no TPM.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test may panic")]
    pub fn task(&self) -> &TpmTask {
        self.response.task.tpm.as_ref().expect("the gateway asks for a TPM")
    }

    /// Returns the required `extraData` of the quote.
    #[must_use]
    pub fn extra_data(&self) -> [u8; 32] {
        let ChallengeResponse { nonce, purpose, .. } = &self.response;
        qualifying_data(nonce.as_ref(), purpose, &self.pool, &self.server_key)
    }

    /// Returns the request that answers this challenge.
    #[must_use]
    pub fn answered(&self, evidence: TpmEvidence) -> EvidenceRequest {
        EvidenceRequest {
            challenge: self.response.challenge.clone(),
            evidence: evidence.into(),
            config: None,
        }
    }
}
