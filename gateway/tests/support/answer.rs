//! Answers of the gateway, and assertions about them.

use attest::protocol::{EvidenceResponse, Problem};
use reqwest::StatusCode;

/// Maximum number of attempts for a request with a large body.
const LARGE_LIMIT: usize = 20;

/// Answer of the gateway.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub async fn send(request: reqwest::RequestBuilder) -> Self {
        Self::try_send(request).await.unwrap()
    }

    /// Returns the answer of a gateway that may be gone.
    pub async fn try_send(request: reqwest::RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await?.to_vec();
        Ok(Self { status, headers, body })
    }

    /// Returns the answer to a request with too large a body. The gateway answers before it has read all of it, and closes. A client that
    /// still writes at that time may fail to read the answer; it is sent again.
    pub async fn send_large(request: reqwest::RequestBuilder) -> Self {
        for _ in 0..LARGE_LIMIT {
            if let Ok(answer) = Self::try_send(request.try_clone().unwrap()).await {
                return answer;
            }
        }
        panic!("no answer to {LARGE_LIMIT} requests");
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the code of a refusal.
    #[track_caller]
    pub fn code(&self) -> String {
        self.problem().code
    }

    #[track_caller]
    pub fn problem(&self) -> Problem {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem.status, self.status.as_u16());
        assert!(!problem.next_step.is_empty() && !problem.title.is_empty());
        problem
    }

    /// Verifies that it is a refusal with this status and code.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status.as_u16(), self.code().as_str()),
            (status, code),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
    }

    /// Verifies that it is the empty 503 that Ignition retries.
    #[track_caller]
    pub fn check_retry(&self) {
        assert_eq!(
            (self.status.as_u16(), self.body.len()),
            (503, 0),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
    }

    /// Verifies that it is this config, with everything that Ignition needs around it.
    #[track_caller]
    pub fn is_config(&self, config: &[u8]) {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.body));
        assert!(self.body == config, "another config: {}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        assert_eq!(self.header("content-length"), Some(config.len().to_string().as_str()));
    }

    #[track_caller]
    pub fn ticket(&self) -> String {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice::<EvidenceResponse>(&self.body).unwrap().ticket
    }
}
