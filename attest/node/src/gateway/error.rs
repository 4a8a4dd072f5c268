//! Errors of requests to a gateway.

use attest_wire::protocol::{GATEWAY_UNREACHABLE, Problem, RETRY_LIMIT_EXCEEDED, VERSION};

use crate::failure::{Failure, code_of, is_id, printable};

/// Reason why a gateway could not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GatewayError {
    /// No connection, or it was lost, each time.
    #[error("{url} cannot be reached ({attempts} attempts): {error}")]
    Unreachable {
        url: String,
        attempts: u32,
        /// Error of the last attempt.
        error: String,
    },
    /// A 5xx each time.
    #[error("{url} answers {status} ({attempts} attempts)")]
    Failing { url: String, attempts: u32, status: u16 },
    /// The attestation fails like this, but the server serves configs.
    #[error("{0}; but the server still serves configs, so Ignition would not wait")]
    BesideConfigs(Box<GatewayError>),
    /// The gateway has answered 503 with Retry-After until the pool's limit for waiting.
    #[error("{url} has answered 503 for {seconds} s ({attempts} attempts)")]
    Held {
        /// URL of the last request.
        url: String,
        /// Number of attempts for that request.
        attempts: u32,
        /// Duration of the wait, in seconds.
        seconds: u64,
    },
    /// The TLS connection is refused by this node.
    #[error(transparent)]
    Tls(TlsProblem),
    /// A CA of the pointer's that cannot be one.
    #[error("a CA in the pointer config cannot be used: {0}")]
    Authority(String),
    /// The answer does not follow the protocol.
    #[error("{url} gave an answer that does not follow the attestation protocol: {what}")]
    Answer {
        url: String,
        /// Description of the invalid answer.
        what: String,
    },
    /// The gateway speaks another version of the protocol.
    #[error("{url} has version {found} of the attestation protocol, this node has version {VERSION}")]
    Protocol {
        url: String,
        /// Protocol version of the gateway.
        found: u32,
    },
    #[error("the gateway refused: {}", .0.title)]
    Refused(Box<Problem>),
    /// It did not request the client certificate: its answer is the same for an unauthenticated client.
    #[error("{url} did not request a client certificate, so its answer would be an unauthenticated client's")]
    Unasked { url: String },
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
}

/// A server's certificate that this node refuses, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsProblem {
    /// A certificate that no CA of the pointer's issued.
    #[error("the gateway's certificate ({subject}) was issued by {issuer}, and this node trusts only {trusted}")]
    UnknownCa {
        subject: String,
        issuer: String,
        /// Subjects of the CAs in the pointer.
        trusted: String,
    },
    /// A certificate for another server.
    #[error("the gateway's certificate is for {presented}, and the pointer config says {wanted}")]
    WrongName {
        /// The host in the pointer's URL.
        wanted: String,
        /// The names in the certificate.
        presented: String,
    },
    /// A certificate that is not valid yet by this node's clock.
    #[error("this node's clock says {clock}, and the gateway's certificate is valid from {not_before} to {not_after}")]
    NotYetValid {
        /// Node's clock in RFC 3339, like the two dates.
        clock: String,
        not_before: String,
        not_after: String,
    },
    /// A certificate that has expired by this node's clock.
    #[error("the gateway's certificate was valid from {not_before} to {not_after}, and this node's clock says {clock}")]
    Expired {
        /// Node's clock in RFC 3339, like the two dates.
        clock: String,
        not_before: String,
        not_after: String,
    },
    #[error("the gateway's certificate is refused: {0}")]
    Other(String),
}

impl TlsProblem {
    /// Returns the stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownCa { .. } => "tls-unknown-ca",
            Self::WrongName { .. } => "tls-wrong-name",
            Self::NotYetValid { .. } => "tls-not-yet-valid",
            Self::Expired { .. } => "tls-expired",
            Self::Other(_) => "tls-failed",
        }
    }

    /// Returns the next step for the administrator.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Self::UnknownCa { .. } => {
                "put the gateway's current CA into the pointer config; if it is there, somebody else answers at this address".to_owned()
            }
            Self::WrongName { .. } => {
                "issue a gateway certificate that has this name or address, or correct the URL in the pointer config".to_owned()
            }
            Self::NotYetValid { .. } => "set this node's clock (the RTC, in the firmware setup) to the current time in UTC".to_owned(),
            Self::Expired { clock, .. } => format!(
                "if the current time is not {clock}, set this node's clock (the RTC, in the firmware setup); otherwise renew the gateway's certificate"
            ),
            Self::Other(_) => "check the gateway's certificate with `attest-gateway check`".to_owned(),
        }
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        let (code, next_step) = match &error {
            GatewayError::BesideConfigs(cause) => return attestation_failure(&error, cause),
            GatewayError::Unreachable { .. } => (
                GATEWAY_UNREACHABLE,
                "check that the gateway runs and that this node's network reaches it".to_owned(),
            ),
            GatewayError::Failing { .. } => ("gateway-failing", "read the gateway's log".to_owned()),
            GatewayError::Held { .. } => (
                RETRY_LIMIT_EXCEEDED,
                "on the gateway, answer what is open in `attest-gateway waiting list`, or find the bottleneck in its log and metrics; then boot \
                 again. attestation.hold_seconds in the pool's pool.toml limits the wait"
                    .to_owned(),
            ),
            GatewayError::Answer { .. } => (
                "gateway-answer",
                "check that the address in the pointer config is an attestation gateway's".to_owned(),
            ),
            GatewayError::Protocol { .. } => ("gateway-protocol", "use an attest-node of the gateway's release".to_owned()),
            GatewayError::Unasked { .. } => (
                "kubelet-certificate-unasked",
                "set tls.client_ca or cluster.client_ca in gateway.toml; if one is set, a proxy between node and gateway terminates TLS"
                    .to_owned(),
            ),
            GatewayError::Client(_) => ("internal", "report this message".to_owned()),
            GatewayError::Authority(_) => ("tls-ca", "correct the CA in the pointer config".to_owned()),
            GatewayError::Tls(problem) => (problem.code(), problem.next_step()),
            GatewayError::Refused(problem) => {
                let title = printable(problem.detail.as_deref().unwrap_or(&problem.title));
                let code = code_of(&problem.code);
                let decision = problem.decision.as_deref().filter(|id| is_id(id));
                return Self {
                    refusal: Some(decision.map_or_else(|| code.clone(), |id| format!("{code} {id}"))),
                    code,
                    reason: format!("the gateway refused: {title}"),
                    next_step: printable(&problem.next_step),
                };
            }
        };
        Self::new(code, &error, next_step)
    }
}

/// Builds the failure for a server that serves configs: its network is not the cause.
fn attestation_failure(error: &GatewayError, cause: &GatewayError) -> Failure {
    let code = match cause {
        GatewayError::Unreachable { .. } => GATEWAY_UNREACHABLE,
        _ => "gateway-failing",
    };
    let next_step = "check the gateway's log, and the load balancer before it: it forwards requests to /config, but not to /v1/attest";
    Failure {
        refusal: Some(GATEWAY_UNREACHABLE.to_owned()),
        ..Failure::new(code, error, next_step)
    }
}
