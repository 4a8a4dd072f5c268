//! Where an error becomes HTTP: the one place.

use attest::advice::Advice;
use attest::protocol::{CLAIMANT_BYTES, CLAIMANT_HEADER, CONFIG_PREFIX, PROBLEM_CONTENT_TYPE, Problem};
use attest::reject::{CHALLENGE_EXPIRED, EVIDENCE_INCOMPLETE, MALFORMED_REQUEST};
use attest::tpm::TPM_MALFORMED;
use attest::{Reject, TpmEvidenceError};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::admission::TooBusy;
use crate::audit::DecidedBy;
use crate::cloud::CloudUnavailable;
use crate::credentials::challenges::ChallengeError;
use crate::credentials::kubelet::{KubeletError, MemberError};
use crate::credentials::tickets::TicketError;
use crate::credentials::tokens::TokenError;
use crate::ignition::Inexpressible;
use crate::machines::enrolment::EnrolmentError;
use crate::machines::instances::InstanceError;
use crate::machines::revocations::RevocationError;
use crate::store::StoreError;

/// What a refusal says, and what it comes from.
#[derive(Debug, Clone, Copy)]
struct Code {
    status: StatusCode,
    by: DecidedBy,
    advice: Advice,
}

macro_rules! codes {
    ($($name:ident = $status:ident, $by:ident, $code:literal, $title:literal, $next:literal;)*) => {
        $(const $name: Code = Code {
            status: StatusCode::$status,
            by: DecidedBy::$by,
            advice: Advice { code: $code, title: $title, next_step: $next },
        };)*
        /// Codes that are the gateway's own; [`attest::reject::ADVICE`] has the others.
        pub const CODES: &[Advice] = &[$($name.advice),*];
        const OWN: &[Code] = &[$($name),*];
    };
}

codes! {
    CHALLENGE_INVALID = FORBIDDEN, Request, "challenge-invalid", "The challenge is not this gateway's", "attest-node asks for a new challenge by itself; if this repeats, the node's requests reach gateways that do not share their seal, or its keys were dropped.";
    CHALLENGE_SPENT = FORBIDDEN, Store, "challenge-spent", "The challenge was answered before", "attest-node asks for a new challenge by itself; if this repeats, somebody replays this node's evidence.";
    NODE_NAME_TAKEN = FORBIDDEN, Store, "node-name-taken", "The node's name belongs to another machine", "If the machine was replaced: run `attest-gateway node forget NAME`, then boot again.";
    INSTANCE_CLAIMED = FORBIDDEN, Store, "instance-claimed", "The instance belongs to another claimant", "If this node was provisioned anew, or its first boot began again and its console had said that it could not be kept who it is: run `attest-gateway node release INSTANCE` with the instance of the gateway's log, then boot again; if not, somebody shows another machine's identity.";
    NODE_REVOKED = FORBIDDEN, Store, "node-revoked", "The node is revoked", "If the machine is to be trusted again: run `attest-gateway node restore` with the name or identity that the gateway's log says.";
    KUBELET_CERTIFICATE_INVALID = FORBIDDEN, Evidence, "kubelet-certificate-invalid", "The client certificate does not hold", "Compare tls.client_ca with the cluster's config map kube-apiserver-client-ca; if the certificate is that CA's, let the kubelet get another one.";
    KUBELET_CERTIFICATE_EXPIRED = FORBIDDEN, Evidence, "kubelet-certificate-expired", "The client certificate is not valid at this time", "Compare the gateway's clock with the certificate's dates; if it is too old, let the kubelet get another one.";
    KUBELET_CERTIFICATE_NOT_A_NODE = FORBIDDEN, Evidence, "kubelet-certificate-not-a-node", "The client certificate is not that of a node", "Show the kubelet's own certificate: CN=system:node:NAME, O=system:nodes.";
    KUBELET_NOT_ACCEPTED = FORBIDDEN, Policy, "kubelet-not-accepted", "The pool gives nothing for a kubelet's certificate", "Set grants.kubelet and kubelet.names in pool.toml.";
    KUBELET_WRONG_POOL = FORBIDDEN, Evidence, "kubelet-wrong-pool", "The node is none of the pool's", "Ask for the node's own pool, or add its name to kubelet.names in pool.toml.";
    TICKET_INVALID = FORBIDDEN, Request, "ticket-invalid", "The ticket is not this gateway's", "Boot again; if this repeats, the node's requests reach gateways that do not share their seal, or its keys were dropped.";
    TICKET_EXPIRED = FORBIDDEN, Request, "ticket-expired", "The ticket is too old", "Boot again.";
    TICKET_SPENT = FORBIDDEN, Store, "ticket-spent", "The ticket was used as often as it may be", "Boot again; if this repeats, something else fetches with this node's ticket.";
    TICKET_WITHDRAWN = FORBIDDEN, Store, "ticket-withdrawn", "What earned the ticket holds no longer", "The machine was taken off the allowlist or out of the pool's inventory, or kept from this pool, since it attested; if it is to join: run `attest-gateway ek add`, or name it in the inventory, and boot again.";
    TICKET_WRONG_POOL = FORBIDDEN, Request, "ticket-wrong-pool", "The ticket is for another pool", "Let the pointer config name one pool.";
    TOKEN_INVALID = FORBIDDEN, Store, "token-invalid", "There is no such provisioning token", "Make a pointer config with a token that exists: `attest-gateway token create`.";
    TOKEN_EXPIRED = FORBIDDEN, Store, "token-expired", "The provisioning token is too old", "Put the token that took its place into the pointer config, or make a new one: `attest-gateway token create`.";
    TOKEN_SPENT = FORBIDDEN, Store, "token-spent", "The provisioning token was used as often as it may be", "Make a new one: `attest-gateway token create`; if one machine has used it up by booting more than once in its first boot, put attest-node into its initramfs, or use --again.";
    TOKEN_WRONG_POOL = FORBIDDEN, Store, "token-wrong-pool", "The provisioning token is for another pool", "Make one for this pool: `attest-gateway token create --pool`.";
    TOKEN_WRONG_NETWORK = FORBIDDEN, Store, "token-wrong-network", "The provisioning token is not for use from this address", "Boot the machine in a network that the token is for, or make one for this network: `attest-gateway token create --network`.";
    TOKEN_NOT_ACCEPTED = FORBIDDEN, Policy, "token-not-accepted", "The pool accepts no provisioning tokens", "Set grants.token in pool.toml, or let the node attest.";
    ATTESTED_NOT_ACCEPTED = FORBIDDEN, Policy, "attested-not-accepted", "The pool gives nothing for an attestation", "Set grants.attested in pool.toml.";
    EVIDENCE_REQUIRED = FORBIDDEN, Policy, "evidence-required", "The pool gives nothing to a node that shows nothing", "Put attest-node into the node's initramfs, or a provisioning token into its pointer config.";
    CREDENTIAL_MALFORMED = FORBIDDEN, Request, "credential-malformed", "The credential cannot be read", "Use `Authorization: Bearer TICKET-OR-TOKEN`, or `?token=TOKEN`, once.";
    CREDENTIAL_AMBIGUOUS = FORBIDDEN, Request, "credential-ambiguous", "More than one credential was shown", "Show one ticket, or one token, or one client certificate.";
    POOL_UNKNOWN = NOT_FOUND, Request, "pool-unknown", "There is no such pool", "Name a pool of this gateway in the pointer config.";
    SPEC_VERSION_UNKNOWN = BAD_REQUEST, Request, "spec-version-unknown", "There is no such version of Ignition's config specification", "Boot an image whose Ignition reads spec 2.2, or any 3.x.";
    SPEC_VERSION_TOO_OLD = NOT_ACCEPTABLE, Policy, "spec-version-too-old", "The pool's config cannot be said in the spec version that the node's Ignition reads", "Boot a newer image, or take what the version does not know out of the pool's config; `attest-gateway check` lists it.";
    BODY_TOO_LARGE = PAYLOAD_TOO_LARGE, Request, "body-too-large", "The request is too large", "Use an attest-node of the gateway's release.";
    NO_SUCH_PATH = NOT_FOUND, Request, "no-such-path", "There is nothing at this path", "See docs/protocol.md for the paths of this API.";
    NO_SUCH_METHOD = METHOD_NOT_ALLOWED, Request, "no-such-method", "This path does not know this method", "See docs/protocol.md for the methods of this API.";
    CLIENT_GONE = REQUEST_TIMEOUT, Gateway, "client-gone", "Nobody waited for the answer any longer", "Nothing: nobody got anything, and no ticket or token was used up. If this repeats, the gateway is too slow: look at its processor, its disk and limits.request_seconds.";
    CLOUD_UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "cloud-unavailable", "The gateway cannot verify this kind of evidence now", "attest-node asks again by itself; if this stays, the gateway's log says which server of the cloud does not answer.";
    UNDECIDED = SERVICE_UNAVAILABLE, Gateway, "undecided", "Another decision about the same name or instance is under way", "attest-node asks again by itself; if this stays, a gateway was stopped in the middle of that decision: start it again.";
    UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "unavailable", "The gateway cannot answer now", "Nodes retry by themselves; the gateway's log says what is wrong.";
}

/// Longest reason in a record, in characters: twice the longest that is about one thing, a list of accepted digests of one PCR.
const REASON_LIMIT_CHARACTERS: usize = 4096;

/// Codes of the library's that are about requests in which nothing was looked at that could be held against anything. Its others are about
/// evidence.
const BY_REQUEST: [Advice; 2] = [CHALLENGE_EXPIRED, MALFORMED_REQUEST];

/// Whether a refusal can have this code.
#[must_use]
pub fn is_code(code: &str) -> bool {
    CODES.iter().chain(attest::reject::advices()).any(|advice| advice.code == code)
}

/// What a recorded refusal with this code came from: records of before do not say it.
#[must_use]
pub fn decided_by(code: &str) -> DecidedBy {
    match OWN.iter().find(|own| own.advice.code == code) {
        Some(own) => own.by,
        None if BY_REQUEST.iter().any(|advice| advice.code == code) => DecidedBy::Request,
        None => DecidedBy::Evidence,
    }
}

/// A refusal: what the node is told, and the reason that the log and the record get.
#[derive(Debug, Clone)]
pub struct Refusal {
    code: Code,
    /// What the node is told.
    told: String,
    /// What the log and the record say: all that is known.
    detail: Box<str>,
    /// The next step, where it is one command; otherwise it is the advice's.
    command: Option<Box<str>>,
    /// What it was decided from has changed meanwhile.
    outdated: bool,
}

impl Refusal {
    /// A refusal whose whole reason the node may know.
    fn new(code: Code, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self::guarded(code, reason.clone(), reason)
    }

    /// A refusal whose reason is more than the node may know.
    fn guarded(code: Code, told: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            code,
            told: told.into(),
            detail: detail.to_string().into(),
            command: None,
            outdated: false,
        }
    }

    /// The same, with one command as the next step.
    fn with_command(self, command: String) -> Self {
        Self {
            command: Some(command.into()),
            ..self
        }
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code.advice.code
    }

    /// What the node is told.
    #[cfg(test)]
    fn told(&self) -> &str {
        &self.told
    }

    /// The reason, for the log and the record.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What to do about it.
    #[must_use]
    pub fn next_step(&self) -> &str {
        self.command.as_deref().unwrap_or(self.code.advice.next_step)
    }

    /// Both, for the record. Some details are as long as what the node sent.
    #[must_use]
    pub fn reason(&self) -> String {
        let reason = format!("{}; next: {}", self.detail(), self.next_step());
        match reason.char_indices().nth(REASON_LIMIT_CHARACTERS) {
            Some((end, _)) => format!("{}…", reason.get(..end).unwrap_or_default()),
            None => reason,
        }
    }

    /// What the refusal came from: what `audit` can expect of the evidence.
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.code.by
    }

    /// Whether this is the gateway's own trouble, and no verdict on the node.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.code.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// 503: the cause is the gateway's own and stays in its log.
    pub(super) fn unavailable() -> Self {
        Self::new(UNAVAILABLE, "the gateway cannot answer now")
    }

    /// 503, with the cause in the log.
    pub(super) fn because(error: &(dyn std::error::Error + 'static)) -> Self {
        let outdated = matches!(error.downcast_ref(), Some(StoreError::Changed { .. }));
        match outdated {
            true => tracing::warn!(%error, "has to be decided anew"),
            false => tracing::error!(%error, "cannot answer"),
        }
        Self {
            outdated,
            ..Self::unavailable()
        }
    }

    /// 503, and what it was decided from has changed meanwhile: it may be decided anew.
    pub(super) fn outdated() -> Self {
        Self {
            outdated: true,
            ..Self::unavailable()
        }
    }

    /// 503: another's decision stands in the way, and may come to nothing. Who is refused now would be refused for good.
    fn undecided(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::warn!(%error, "told to come again");
        Self::guarded(UNDECIDED, "another decision about the same name or instance is under way", error)
    }

    /// Whether what it was decided from has changed meanwhile, so that it may be decided anew.
    pub(super) const fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// What would have been given, and was not: it is recorded, and nobody hears it.
    pub(super) fn client_gone() -> Self {
        let reason = "the client had hung up, or its time was over, before what it asked for could be given";
        Self::new(CLIENT_GONE, reason)
    }

    pub(super) fn pool_unknown(pool: &str) -> Self {
        let shown: String = pool.chars().filter(|c| c.is_ascii_graphic()).take(63).collect();
        Self::new(POOL_UNKNOWN, format!("there is no pool {shown:?}"))
    }

    pub(super) fn spec_version_unknown(major: u64, minor: u64) -> Self {
        Self::new(SPEC_VERSION_UNKNOWN, format!("the client asks for spec {major}.{minor}"))
    }

    pub(super) fn body_too_large() -> Self {
        Self::new(BODY_TOO_LARGE, "the request's body is larger than this path takes")
    }

    pub(super) fn malformed(problem: impl ToString) -> Self {
        let code = Code {
            status: StatusCode::BAD_REQUEST,
            by: DecidedBy::Request,
            advice: MALFORMED_REQUEST,
        };
        Self::new(code, problem)
    }

    pub(super) fn attested_not_accepted(pool: &str) -> Self {
        Self::new(ATTESTED_NOT_ACCEPTED, format!("pool {pool} gives nothing for an attestation"))
    }

    pub(super) fn token_not_accepted(pool: &str) -> Self {
        Self::new(TOKEN_NOT_ACCEPTED, format!("pool {pool} accepts no provisioning tokens"))
    }

    pub(super) fn kubelet_not_accepted(pool: &str) -> Self {
        Self::new(
            KUBELET_NOT_ACCEPTED,
            format!("pool {pool} gives nothing for a kubelet's certificate"),
        )
    }

    pub(super) fn evidence_required(pool: &str) -> Self {
        Self::new(EVIDENCE_REQUIRED, format!("pool {pool} gives nothing to a node that shows nothing"))
    }

    pub(super) fn credential_malformed(problem: &str) -> Self {
        Self::new(CREDENTIAL_MALFORMED, problem)
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

impl From<TooBusy> for Refusal {
    fn from(_: TooBusy) -> Self {
        Self::unavailable()
    }
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Self {
        let advice = reject.advice();
        let code = Code {
            status: match advice {
                MALFORMED_REQUEST | TPM_MALFORMED | EVIDENCE_INCOMPLETE => StatusCode::BAD_REQUEST,
                _ => StatusCode::FORBIDDEN,
            },
            by: if BY_REQUEST.contains(&advice) {
                DecidedBy::Request
            } else {
                DecidedBy::Evidence
            },
            advice,
        };
        let command = match &reject {
            Reject::Tpm(TpmEvidenceError::EkNotEndorsed { ek_digest, .. } | TpmEvidenceError::EkUnknown { ek_digest }) => Some(format!(
                "If this machine is yours: `attest-gateway ek add {ek_digest} --name NODE`, or let the pool trust the TPM's maker (docs/evidence/tpm.md); then boot again."
            )),
            _ => None,
        };
        let refusal = Self::guarded(code, reject.told(), reject.detail());
        match command {
            Some(command) => refusal.with_command(command),
            None => refusal,
        }
    }
}

impl From<ChallengeError> for Refusal {
    fn from(error: ChallengeError) -> Self {
        match error {
            ChallengeError::NotSealed(_) => Self::new(CHALLENGE_INVALID, error),
            ChallengeError::Expired { expires, now } => Reject::ChallengeExpired { expires, now }.into(),
            ChallengeError::Spent => Self::new(CHALLENGE_SPENT, error),
            ChallengeError::Store(error) => Self::because(&error),
        }
    }
}

impl From<EnrolmentError> for Refusal {
    fn from(error: EnrolmentError) -> Self {
        match &error {
            EnrolmentError::NameTaken { name, .. } => {
                // Which machine has the name is for the administrator to know.
                Self::guarded(NODE_NAME_TAKEN, format!("the name {name} belongs to another machine"), &error).with_command(format!(
                    "If this machine has taken the other's place: `attest-gateway node forget {name}`, then boot again."
                ))
            }
            EnrolmentError::OtherName { given, .. } => Self::new(NODE_NAME_TAKEN, &error).with_command(format!(
                "If this machine is to have another name: `attest-gateway node forget {given}`, then boot again."
            )),
            EnrolmentError::Undecided { .. } => Self::undecided(&error),
            EnrolmentError::Store(error) => Self::because(error),
        }
    }
}

impl From<RevocationError> for Refusal {
    fn from(error: RevocationError) -> Self {
        match &error {
            // Why, and by which of its names, is for the administrator to know: the asker may have said no more than another's name.
            RevocationError::Revoked { .. } => Self::guarded(NODE_REVOKED, "this machine is revoked", &error),
            RevocationError::Undecided { .. } => Self::undecided(&error),
            RevocationError::Store(error) => Self::because(error),
        }
    }
}

impl From<CloudUnavailable> for Refusal {
    fn from(error: CloudUnavailable) -> Self {
        tracing::warn!(%error, "cannot verify evidence of a cloud");
        Self::new(CLOUD_UNAVAILABLE, "what this evidence is verified against cannot be had now")
    }
}

impl From<InstanceError> for Refusal {
    fn from(error: InstanceError) -> Self {
        match &error {
            InstanceError::Claimed { instance, .. } => {
                // Who came first is for the administrator to know.
                Self::guarded(INSTANCE_CLAIMED, format!("{instance} belongs to another claimant"), &error).with_command(format!(
                    "If this node was provisioned anew, or its console had said that a reboot would not find who it is: `attest-gateway node release {instance}`, then boot again; if not, somebody shows another machine's identity."
                ))
            }
            InstanceError::Undecided { .. } => Self::undecided(&error),
            InstanceError::Store(error) => Self::because(error),
        }
    }
}

impl From<&Inexpressible> for Refusal {
    fn from(error: &Inexpressible) -> Self {
        // What the config is about is not everybody's business.
        let told = format!("the pool's config cannot be said in spec {}", error.version);
        Self::guarded(SPEC_VERSION_TOO_OLD, told, error)
    }
}

impl From<TicketError> for Refusal {
    fn from(error: TicketError) -> Self {
        let code = match error {
            TicketError::Invalid => TICKET_INVALID,
            TicketError::Expired { .. } | TicketError::ExpiredAfterUse { .. } => TICKET_EXPIRED,
            TicketError::WrongPool { .. } => TICKET_WRONG_POOL,
            TicketError::Spent { .. } => TICKET_SPENT,
            TicketError::Withdrawn { .. } | TicketError::Released { .. } | TicketError::NotInInventory { .. } => TICKET_WITHDRAWN,
            TicketError::Revocation(error) => return error.into(),
            TicketError::Undecided | TicketError::InstanceUndecided { .. } => return Self::undecided(&error),
            TicketError::Store(error) => return Self::because(&error),
        };
        Self::new(code, error)
    }
}

impl From<KubeletError> for Refusal {
    fn from(error: KubeletError) -> Self {
        let code = match &error {
            KubeletError::NotANode { .. } => KUBELET_CERTIFICATE_NOT_A_NODE,
            error if error.is_about_dates() => KUBELET_CERTIFICATE_EXPIRED,
            _ => KUBELET_CERTIFICATE_INVALID,
        };
        Self::new(code, error)
    }
}

impl From<MemberError> for Refusal {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::WrongPool { ref name, ref pool, .. } => {
                // Which nodes a pool has is for the administrator to know.
                Self::guarded(KUBELET_WRONG_POOL, format!("node {name} is none of pool {pool}"), &error)
            }
            MemberError::Revocation(error) => error.into(),
            MemberError::Store(error) => Self::because(&error),
        }
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        match &error {
            TokenError::Invalid => Self::new(TOKEN_INVALID, &error),
            TokenError::Expired { .. } => Self::new(TOKEN_EXPIRED, &error),
            // Whoever has found a token need not learn what it opens.
            TokenError::WrongPool { asked, .. } => Self::guarded(TOKEN_WRONG_POOL, format!("the token is not for pool {asked}"), &error),
            TokenError::Spent { .. } => Self::new(TOKEN_SPENT, &error),
            // How the networks lie is for the administrator to know.
            TokenError::WrongNetwork { peer, .. } => {
                Self::guarded(TOKEN_WRONG_NETWORK, format!("the token is not for use from {peer}"), &error)
            }
            TokenError::Store(error) => Self::because(error),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.recorded_as(None)
    }
}

impl Refusal {
    /// The answer, which says by which record of the attestation log it was refused, if there is one.
    pub(super) fn recorded_as(self, decision: Option<String>) -> Response {
        let next_step = self.next_step().to_owned();
        let Self {
            code: Code { status, advice, .. },
            told,
            ..
        } = self;
        let problem = Problem {
            kind: format!("urn:attestation-gateway:problem:{}", advice.code),
            title: advice.title.to_owned(),
            status: status.as_u16(),
            code: advice.code.to_owned(),
            detail: Some(told),
            next_step,
            decision,
        };
        let Ok(body) = serde_json::to_vec(&problem) else {
            return empty_503();
        };
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (status, headers, body).into_response()
    }
}

/// What Ignition retries for ever, on the same connection: a body would make it open a new one for each retry.
pub(super) fn empty_503() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// Whether a path is one that Ignition asks for.
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
