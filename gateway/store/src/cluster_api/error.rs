//! Failures of the cluster's API, and their texts.

use std::error::Error;
use std::path::PathBuf;

use attest_system::causes::with_causes;
use kube::config::{InClusterError, KubeconfigError};

/// Longest text of the API that is passed on, in characters: its longest refusals have about 250. A proxy in front of it may answer with a whole page.
const MESSAGE_LIMIT_CHARACTERS: usize = 300;
const UNAUTHORIZED: u16 = 401;
const NOT_FOUND: u16 = 404;
const TOO_MANY_REQUESTS: u16 = 429;

/// An error of a request to the cluster's API. No text contains anything of a token or of an object's contents. Causes are part of the
/// text, and no `source`, which would be printed again.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The process does not run in a pod, or the pod has no service account.
    #[error("cannot read the pod's service account: {}; outside of a pod, set cluster.api to the path of a kubeconfig", with_causes(.0))]
    InCluster(InClusterError),
    /// The kubeconfig cannot be used.
    #[error("{path}: {}", with_causes(.error))]
    Kubeconfig { path: PathBuf, error: KubeconfigError },
    /// The kubeconfig accepts any server as the API: it sets `insecure-skip-tls-verify`.
    #[error("{path}: insecure-skip-tls-verify would accept answers of any server: configure the CA instead")]
    Insecure { path: PathBuf },
    /// The API's URL is not https.
    #[error("{api}: https is required, because the answers decide who is trusted")]
    Plain { api: String },
    /// The client cannot be created.
    #[error("{api}: {}", explain(.error))]
    Client { api: String, error: kube::Error },
    /// The API did not answer, or refused the request.
    #[error("{what}: {}", explain(.error))]
    Api { what: &'static str, error: kube::Error },
    /// The API did not answer in time.
    #[error("{what}: no answer within {seconds} s")]
    Silent { what: &'static str, seconds: u64 },
    /// A list without an end.
    #[error("{what}: more than {limit} objects")]
    TooMany { what: &'static str, limit: usize },
    /// The API serves the kind in other versions only.
    #[error("{what}: the API serves version {served}, and release {release} reads {known}", release = env!("CARGO_PKG_VERSION"))]
    Version {
        what: &'static str,
        /// Versions that the API serves.
        served: String,
        known: &'static str,
    },
}

/// Cause of a failed request, as far as it distinguishes failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestCause {
    /// The API is unreachable, overloaded, or not ready.
    Unavailable,
    /// The API does not accept this gateway's token or certificate.
    Unauthorized,
    /// Another refusal, of this HTTP status.
    Refused(u16),
    /// A failure other than an answer of the API, as text.
    Other(String),
}

impl RequestCause {
    /// Returns the cause of a failed request.
    #[must_use]
    pub fn from_error(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                UNAUTHORIZED => Self::Unauthorized,
                TOO_MANY_REQUESTS | 500.. => Self::Unavailable,
                code => Self::Refused(code),
            },
            kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => Self::Unavailable,
            other => Self::Other(explain(other)),
        }
    }

    /// Returns whether requests for any other object fail by it, too.
    #[must_use]
    pub const fn concerns_all(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Unauthorized)
    }
}

impl ClusterError {
    /// Returns the cause, as far as it distinguishes this failure from others.
    #[must_use]
    pub fn cause(&self) -> RequestCause {
        match self {
            Self::Api { error, .. } => RequestCause::from_error(error),
            Self::Silent { .. } => RequestCause::Unavailable,
            other => RequestCause::Other(other.to_string()),
        }
    }

    /// Returns the text without the object that was asked for.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Api { error, .. } => explain(error),
            Self::Silent { seconds, .. } => format!("no answer within {seconds} s"),
            other => other.to_string(),
        }
    }

    /// Returns whether the API answered that the object, or its kind, does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is_status(NOT_FOUND)
    }

    /// Returns whether the API answered with this HTTP status.
    #[must_use]
    pub fn is_status(&self, code: u16) -> bool {
        matches!(self, Self::Api { error: kube::Error::Api(status), .. } if status.code == code)
    }

    /// Returns whether the API has answered at all, with any status.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Api {
                error: kube::Error::Api(_),
                ..
            }
        )
    }
}

/// Returns the text of a failed request: one bounded line. The client's own text of an answer is the answer's fields, printed twice.
#[must_use]
pub fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == UNAUTHORIZED => {
            "401 Unauthorized: the API does not accept this gateway's token or certificate: it has expired, was revoked, or its account was deleted"
                .to_owned()
        }
        kube::Error::Api(status) => {
            let reason = if status.message.is_empty() { &status.reason } else { &status.message };
            format!("{} {}", status.code, line(reason)).trim_end().to_owned()
        }
        // What comes before a cause names a type of the client.
        kube::Error::Service(error) => line(&with_causes(error.as_ref())),
        kube::Error::HyperError(error) => line(&with_causes(error)),
        kube::Error::ReadEvents(error) => line(&with_causes(error)),
        error => line(&with_causes(error)),
    }
}

/// Returns whether a request failed because the API's certificate is not accepted.
#[must_use]
pub fn is_untrusted_certificate(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return true;
        }
        // `source` of an I/O error passes over the error that it was made of.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(cause) => Some(cause),
            None => error.source(),
        };
    }
    false
}

/// Returns a text as one line without control characters, of limited length.
fn line(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MESSAGE_LIMIT_CHARACTERS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(message, reason).with_code(code)))
    }

    #[track_caller]
    fn check(error: kube::Error, expected: &str) {
        let error = ClusterError::Api { what: "nodes", error };
        assert_eq!(error.to_string(), format!("nodes: {expected}"));
        assert_eq!(error.reason(), expected);
        // An error report prints the chain of causes: nothing is said twice.
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), format!("nodes: {expected}"));
    }

    #[test]
    fn explains_an_api_error_in_one_line() {
        let message =
            "nodes is forbidden: User \"system:serviceaccount:a:b\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
        check(answered(403, "Forbidden", message), &format!("403 {message}"));
        check(answered(500, "InternalError", ""), "500 InternalError");
        check(answered(503, "", ""), "503");
        let page = "<html>\n <h1>503\u{1b}[2K Service Unavailable</h1>\r\n</html>";
        check(answered(503, "", page), "503 <html> <h1>503 [2K Service Unavailable</h1> </html>");
        let long = explain(&answered(502, "", &"ä".repeat(100_000)));
        assert_eq!(long.chars().count(), "502 ".len() + MESSAGE_LIMIT_CHARACTERS + 1);
    }

    #[test]
    fn distinguishes_an_expired_token_from_missing_rbac() {
        let text = explain(&answered(401, "Unauthorized", "Unauthorized"));
        assert!(text.starts_with("401 Unauthorized: ") && text.contains("has expired"), "{text}");
        assert!(!text.contains("right"), "{text}");
        assert_eq!(
            RequestCause::from_error(&answered(401, "Unauthorized", "")),
            RequestCause::Unauthorized
        );
        assert_eq!(
            RequestCause::from_error(&answered(403, "Forbidden", "")),
            RequestCause::Refused(403)
        );
    }

    #[test]
    fn distinguishes_general_failures_from_those_of_one_request() {
        for code in [401, 429, 500, 503, 504] {
            assert!(RequestCause::from_error(&answered(code, "", "")).concerns_all(), "{code}");
        }
        for code in [400, 403, 404, 410, 422] {
            assert!(!RequestCause::from_error(&answered(code, "", "")).concerns_all(), "{code}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let refused = kube::Error::Service(Box::new(refused));
        assert!(RequestCause::from_error(&refused).concerns_all());
        assert_eq!(explain(&refused), "connection refused");
    }
}
