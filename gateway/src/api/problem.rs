//! The one place that converts errors into HTTP.

mod causes;

use attest::NodeIdentity;
use attest::protocol::{CLAIMANT_BYTES, CLAIMANT_HEADER, CONFIG_PREFIX, PROBLEM_CONTENT_TYPE, Problem};
use attest_log::codes::{
    ANSWER_PENDING, ATTESTED_NOT_ACCEPTED, BODY_TOO_LARGE, CLIENT_GONE, CREDENTIAL_AMBIGUOUS, CREDENTIAL_MALFORMED, Code,
    EVIDENCE_REQUIRED, INSTANCE_WRONG_POOL, KUBELET_CA_PENDING, KUBELET_NOT_ACCEPTED, MACHINE_PENDING, NO_SUCH_METHOD, NO_SUCH_PATH,
    POOL_UNKNOWN, REPORTS_OFF, SPEC_VERSION_UNKNOWN, TOKEN_NOT_ACCEPTED, UNAVAILABLE,
};
use attest_log::{Acceptable, DecidedBy, accept_command, with_next_step};
use attest_store::StoreError;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

/// `Retry-After` for a machine that waits for its Machine object, in seconds. Objects are reported within a second of being written, and a
/// cloud gives an instance its id in some.
const MACHINE_AWAITED_SECONDS: u16 = 5;
/// `Retry-After` for a kubelet while the cluster has not reported its CAs, in seconds: an API that is back is queried within 30.
const KUBELET_CA_UNTOLD_SECONDS: u16 = 10;

/// Refusal with the message for the node, and the reason for the log and the record.
#[derive(Debug, Clone)]
pub struct Refusal {
    code: Code,
    /// Message for the node.
    message: Box<str>,
    /// Full reason, for the log and the record.
    detail: Box<str>,
    /// The next step, if it is one command; otherwise the code's advice has it.
    command: Option<Box<str>>,
    /// Set if the inputs of the decision have changed meanwhile.
    outdated: bool,
    /// `Retry-After` in seconds, if that is known.
    again_seconds: Option<u16>,
    /// Obstacle that an administrator may accept, if the refusal names it.
    acceptable: Option<Box<Acceptable>>,
}

impl Refusal {
    /// Creates a refusal whose whole reason the node may know.
    fn new(code: Code, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self::guarded(code, reason.clone(), reason)
    }

    /// Creates a refusal whose reason is more than the node may know.
    fn guarded(code: Code, told: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            code,
            message: told.into().into(),
            detail: detail.to_string().into(),
            command: None,
            outdated: false,
            again_seconds: None,
            acceptable: None,
        }
    }

    /// Returns the refusal with what an administrator would have to accept.
    fn with_acceptable(self, acceptable: Acceptable) -> Self {
        Self {
            acceptable: Some(Box::new(acceptable)),
            ..self
        }
    }

    /// Returns the refusal of something that no acceptance changes.
    pub(super) fn without_acceptable(self) -> Self {
        Self { acceptable: None, ..self }
    }

    /// Returns what an administrator would have to accept, if the refusal says that by itself.
    pub(super) fn acceptable(&self) -> Option<&Acceptable> {
        self.acceptable.as_deref()
    }

    /// Returns the refusal with one command as the next step.
    fn with_command(self, command: String) -> Self {
        Self {
            command: Some(command.into()),
            ..self
        }
    }

    /// Returns the stable code of the refusal.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code.advice.code
    }

    /// Returns the message for the node.
    #[cfg(test)]
    fn message(&self) -> &str {
        &self.message
    }

    /// Returns the reason, for the log and the record.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the next step: the command, or else the code's advice.
    #[must_use]
    pub fn next_step(&self) -> &str {
        self.command.as_deref().unwrap_or(self.code.advice.next_step)
    }

    /// Returns the reason and the next step, for the record.
    #[must_use]
    pub fn reason(&self) -> String {
        with_next_step(self.detail(), self.next_step())
    }

    /// Returns the origin of the refusal, from which `audit` knows what to expect of the evidence.
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.code.by
    }

    /// Returns whether the gateway itself has a problem: that is not a verdict on the node.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.code.status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
    }

    /// 503: the cause is the gateway's own and stays in its log.
    pub(super) fn unavailable() -> Self {
        Self::new(UNAVAILABLE, "the gateway cannot answer now")
    }

    /// 503, with the cause in the log.
    pub(super) fn because(error: &(dyn std::error::Error + 'static)) -> Self {
        // The engine runs the work again: nothing is answered by this.
        let is_interrupted = matches!(error.downcast_ref(), Some(StoreError::Interrupted));
        if !is_interrupted {
            tracing::error!(%error, "cannot decide a request; answering 503");
        }
        Self::unavailable()
    }

    /// 503: the inputs of the decision have changed meanwhile, so that it may be retried.
    pub(super) fn outdated() -> Self {
        Self {
            outdated: true,
            ..Self::unavailable()
        }
    }

    /// 503: a machine that no Machine object names; one may be reported in a moment.
    pub(super) fn machine_awaited(machine: &NodeIdentity) -> Self {
        tracing::info!("no Machine object names {machine} yet; answering 503 with Retry-After");
        Self {
            again_seconds: Some(MACHINE_AWAITED_SECONDS),
            ..Self::new(MACHINE_PENDING, format!("no Machine object of the cluster names {machine} yet"))
        }
    }

    /// 503: a machine that waits until an administrator has answered a question about it.
    pub(super) fn answer_awaited(waits_for: &str, question: &str, again_seconds: u16) -> Self {
        Self {
            again_seconds: Some(again_seconds),
            ..Self::new(ANSWER_PENDING, waits_for).with_command(format!(
                "An administrator must answer: `attest-gateway waiting show {question}`. attest-node retries by itself."
            ))
        }
    }

    /// 503: a ticket for a config that another gateway has, and this one has not read yet.
    pub(super) fn config_awaited(pool: &str, sha256: &str) -> Self {
        Self::new(
            UNAVAILABLE,
            format!("pool {pool}: the config with SHA-256 {sha256} is not here yet"),
        )
    }

    /// Returns whether the machine is refused because the pool's inventory does not list it.
    pub(super) fn is_not_in_inventory(&self) -> bool {
        self.code() == attest::reject::NOT_IN_INVENTORY.code
    }

    /// 503: a kubelet's certificate, before the cluster has said by which CAs it is judged.
    pub(super) fn kubelet_ca_untold() -> Self {
        tracing::debug!("cannot verify a kubelet's certificate before its CAs are known; answering 503 with Retry-After");
        Self {
            again_seconds: Some(KUBELET_CA_UNTOLD_SECONDS),
            ..Self::new(
                KUBELET_CA_PENDING,
                "the CAs of kubelets' certificates are not read from the cluster yet",
            )
        }
    }

    /// Returns the answer for paths that give no reasons: an empty 503, with `Retry-After` if that is known.
    pub(super) fn empty_response(&self) -> Response {
        let mut answer = empty_503();
        if let Some(seconds) = self.again_seconds {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }

    /// Returns whether the inputs of the decision have changed meanwhile, so that it may be retried.
    pub(super) const fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// Returns the refusal of a decision whose client is gone: it is recorded, and never delivered.
    pub(super) fn client_gone() -> Self {
        let reason = "the client had hung up, or its time was over, before what it asked for could be given";
        Self::new(CLIENT_GONE, reason)
    }

    pub(super) fn pool_unknown(pool: &str) -> Self {
        let shown: String = pool.chars().filter(|c| c.is_ascii_graphic()).take(63).collect();
        Self::new(POOL_UNKNOWN, format!("pool {shown:?} does not exist"))
    }

    pub(super) fn spec_version_unknown(major: u64, minor: u64) -> Self {
        Self::new(SPEC_VERSION_UNKNOWN, format!("the client asks for spec {major}.{minor}"))
    }

    pub(super) fn body_too_large() -> Self {
        Self::new(BODY_TOO_LARGE, "the request's body is larger than this path takes")
    }

    pub(super) fn malformed(problem: impl ToString) -> Self {
        Self::new(Code::MALFORMED, problem)
    }

    pub(super) fn attested_not_accepted(pool: &str) -> Self {
        Self::new(ATTESTED_NOT_ACCEPTED, format!("pool {pool} grants no config for an attestation"))
    }

    pub(super) fn instance_wrong_pool(instance: &NodeIdentity, pool: &str) -> Self {
        Self::new(INSTANCE_WRONG_POOL, format!("the allowlist keeps {instance} out of pool {pool}"))
    }

    pub(super) fn token_not_accepted(pool: &str) -> Self {
        Self::new(TOKEN_NOT_ACCEPTED, format!("pool {pool} accepts no provisioning tokens"))
    }

    pub(super) fn kubelet_not_accepted(pool: &str) -> Self {
        Self::new(
            KUBELET_NOT_ACCEPTED,
            format!("pool {pool} grants no config for a kubelet's certificate"),
        )
    }

    pub(super) fn evidence_required(pool: &str) -> Self {
        Self::new(
            EVIDENCE_REQUIRED,
            format!("pool {pool} grants no config to unauthenticated clients"),
        )
    }

    pub(super) fn credential_malformed(problem: &str) -> Self {
        Self::new(CREDENTIAL_MALFORMED, problem)
    }

    pub(super) fn reports_off() -> Self {
        Self::new(REPORTS_OFF, "this gateway takes no reports of failed boots")
    }

    pub(super) fn claimant_malformed() -> Self {
        let problem = format!("the header {CLAIMANT_HEADER} is not {CLAIMANT_BYTES} bytes in base64url without padding");
        Self::new(CREDENTIAL_MALFORMED, problem)
    }

    pub(super) fn claimant_ambiguous() -> Self {
        Self::new(
            CREDENTIAL_AMBIGUOUS,
            format!("the header {CLAIMANT_HEADER} is there more than once"),
        )
    }

    pub(super) fn credential_ambiguous() -> Self {
        Self::new(CREDENTIAL_AMBIGUOUS, "more than one credential was shown")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.recorded_as(None, false)
    }
}

impl Refusal {
    /// Returns the answer, which names the record of the attestation log, if there is one, and the command that accepts what it was refused
    /// for.
    pub(super) fn recorded_as(self, decision: Option<String>, is_acceptable: bool) -> Response {
        let again_seconds = self.again_seconds;
        let problem = self.problem(decision, is_acceptable);
        let Ok(body) = serde_json::to_vec(&problem) else {
            return empty_503();
        };
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        let Ok(status) = StatusCode::from_u16(problem.status) else {
            return empty_503();
        };
        let mut answer = (status, headers, body).into_response();
        if let Some(seconds) = again_seconds {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }

    /// Returns the refusal as the node gets it.
    pub(super) fn problem(self, decision: Option<String>, is_acceptable: bool) -> Problem {
        let mut next_step = self.next_step().to_owned();
        if let (Some(decision), true, false) = (&decision, is_acceptable, self.is_unavailable()) {
            next_step = format!("{next_step} To accept it: `{}`.", accept_command(decision));
        }
        let Self {
            code: Code { status, advice, .. },
            message: told,
            ..
        } = self;
        Problem {
            kind: format!("urn:attestation-gateway:problem:{}", advice.code),
            title: advice.title.to_owned(),
            status,
            code: advice.code.to_owned(),
            detail: Some(told.into()),
            next_step,
            decision,
        }
    }
}

/// Returns the answer that Ignition retries for ever, on the same connection: with a body it would open a new one for each retry.
pub(super) fn empty_503() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// Returns whether Ignition asks for this path.
pub(super) fn is_config(path: &str) -> bool {
    path.starts_with(CONFIG_PREFIX)
}

pub(super) async fn no_such_path(uri: Uri) -> Refusal {
    let shown: String = uri.path().chars().take(128).collect();
    Refusal::new(NO_SUCH_PATH, format!("there is nothing at {shown:?}"))
}

pub(super) async fn no_such_method(method: Method) -> Refusal {
    Refusal::new(NO_SUCH_METHOD, format!("this path does not know {method}"))
}

#[cfg(test)]
mod tests;
