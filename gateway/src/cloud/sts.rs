//! The call to AWS STS, in a node's name: what was checked is sent as it is, once.

use std::sync::Arc;
use std::time::Duration;

use attest::aws::sts::{ANSWER_LIMIT_BYTES, CheckedRequest};
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::CloudUnavailable;
use super::outgoing::Outgoing;
use crate::metrics::{FetchResult, Metrics};

/// Name of this service in errors.
const WHAT: &str = "AWS STS";
/// Most calls at once. STS takes some hundred a second for an account and answers within a fraction of one. If it does not answer, it must
/// not hold all requests of the gateway.
const CALLS_LIMIT: usize = 32;

/// Answer of STS, for [`attest::aws::sts::verify_answer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StsAnswer {
    pub status: u16,
    /// Value of the header `content-type`.
    pub content_type: Option<String>,
    /// The body, at most [`ANSWER_LIMIT_BYTES`] and one.
    pub body: Vec<u8>,
}

/// Client of AWS STS.
pub(super) struct StsClient {
    outgoing: Outgoing,
    calls: Semaphore,
    wait: Duration,
    metrics: Arc<Metrics>,
}

impl StsClient {
    pub(super) fn new(outgoing: &Outgoing, wait: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            outgoing: outgoing.clone(),
            calls: Semaphore::new(CALLS_LIMIT),
            wait,
            metrics,
        }
    }

    /// Sends the request and returns the answer, with any status.
    pub(super) async fn ask(&self, request: &CheckedRequest) -> Result<StsAnswer, CloudUnavailable> {
        let deadline = Instant::now() + self.wait;
        let Ok(permit) = timeout_at(deadline, self.calls.acquire()).await else {
            self.metrics.cloud_fetched("aws-sts", FetchResult::Limited);
            return Err(CloudUnavailable::Busy {
                what: WHAT,
                limit: CALLS_LIMIT,
                waited: self.wait,
            });
        };
        let answer = timeout_at(deadline, self.send(request))
            .await
            .unwrap_or(Err(CloudUnavailable::Slow {
                what: WHAT,
                limit: self.wait,
            }));
        drop(permit);
        let fetched = if answer.is_ok() {
            FetchResult::Answered
        } else {
            FetchResult::Failed
        };
        self.metrics.cloud_fetched("aws-sts", fetched);
        answer
    }

    async fn send(&self, request: &CheckedRequest) -> Result<StsAnswer, CloudUnavailable> {
        let failed = |problem: String| CloudUnavailable::Failed { what: WHAT, problem };
        let mut post = self.outgoing.post(request.url()).body(request.body());
        for (name, value) in request.headers() {
            // Its text is of no use in an error: it may be a secret.
            let mut value = HeaderValue::from_str(value).map_err(|_| failed(format!("the value of {name} cannot be sent")))?;
            value.set_sensitive(true);
            post = post.header(HeaderName::from_static(name), value);
        }
        let answer = self.outgoing.send(post, ANSWER_LIMIT_BYTES).await.map_err(failed)?;
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(StsAnswer {
            status: answer.status,
            content_type: content_type.map(ToOwned::to_owned),
            body: answer.body,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest::aws::sts::{BODY, Expected, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest, check, expected_server_id};
    use attest::{SpkiSha256, UnixTime};

    use super::*;
    use crate::settings::OutgoingSettings;

    fn request() -> CheckedRequest {
        let server_id = expected_server_id(&[7; 32], "config", "worker", &SpkiSha256([9; 32]));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=ASIAIOSFODNN7EXAMPLE/20270115/eu-central-1/sts/aws4_request, SignedHeaders={SIGNED_HEADERS}, Signature={}",
            "0".repeat(64)
        );
        let headers = [
            ("accept", "application/json"),
            ("authorization", &authorization),
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("host", "sts.eu-central-1.amazonaws.com"),
            ("x-amz-date", "20270115T080000Z"),
            ("x-amz-security-token", "AAAA"),
            (SERVER_ID_HEADER, &server_id),
        ];
        let header = |(name, value): (&str, &str)| SignedHeader {
            name: name.to_owned(),
            value: value.to_owned().into(),
        };
        let request = SignedRequest {
            method: "POST".to_owned(),
            url: "https://sts.eu-central-1.amazonaws.com/".to_owned(),
            headers: headers.map(header).into(),
            body: BODY.to_owned(),
        };
        let rules = serde_json::json!({ "accounts": [], "roles": [], "regions": ["eu-central-1"] });
        let expected = Expected {
            nonce: &[7; 32],
            purpose: "config",
            pool: "worker",
            server_keys: &[SpkiSha256([9; 32])],
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
        check(&request, &serde_json::from_value(rules).unwrap(), &expected, now).unwrap()
    }

    #[tokio::test]
    async fn concurrent_sts_calls_are_limited() {
        let nowhere = OutgoingSettings {
            ca: None,
            connect: [("sts.eu-central-1.amazonaws.com".to_owned(), ([127, 0, 0, 1], 1).into())].into(),
        };
        let metrics = Arc::new(Metrics::default());
        let sts = StsClient::new(&Outgoing::new(&nowhere).unwrap(), Duration::from_millis(1), Arc::clone(&metrics));
        let all = sts.calls.acquire_many(32).await.unwrap();
        let error = sts.ask(&request()).await.unwrap_err();
        assert!(matches!(error, CloudUnavailable::Busy { limit: CALLS_LIMIT, .. }), "{error}");
        assert!(metrics.text().unwrap().contains(r#"{what="aws-sts",result="limited"} 1"#));
        drop(all);
        assert!(!matches!(sts.ask(&request()).await, Err(CloudUnavailable::Busy { .. })));
    }
}
