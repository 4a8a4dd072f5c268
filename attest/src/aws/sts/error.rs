//! Reasons why a signed request, or AWS's answer to it, is refused. No variant contains a secret of the request: neither its signature nor
//! its session token.

use crate::advice::{Advice, advice};
use crate::withheld::Withheld;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StsError {
    /// The request's method is not `POST`.
    #[error("the request's method is {found:?}, accepted is {accepted}")]
    Method {
        /// Method of the request.
        found: String,
        accepted: &'static str,
    },
    /// Another URL than those of the pool's regions.
    #[error("the request's URL is {found:?}")]
    Url {
        found: String,
        /// The URLs of the pool's regions.
        accepted: Withheld,
    },
    /// The request's body is not the accepted one.
    #[error("the request's body is {found:?}, accepted is {accepted:?}")]
    Body {
        /// Body of the request.
        found: String,
        accepted: &'static str,
    },
    /// A header that the request must not have.
    #[error("the request has a header {name:?}, which is not accepted")]
    HeaderUnknown { name: String },
    /// A header is there twice.
    #[error("the request has the header {name:?} twice")]
    HeaderRepeated { name: String },
    /// A header is not there.
    #[error("the request has no header {name:?}")]
    HeaderMissing { name: &'static str },
    /// A header has another value.
    #[error("the request's header {name:?} is {found:?}, accepted is {accepted:?}")]
    HeaderValue {
        name: &'static str,
        found: String,
        accepted: String,
    },
    /// The time of signing is not in the form `YYYYMMDDTHHMMSSZ`.
    #[error("the request's x-amz-date is {found:?}, accepted is YYYYMMDDTHHMMSSZ")]
    DateForm { found: String },
    /// Signed too long ago, or in the future.
    #[error("the request was signed at {signed}, it is now {now} (seconds since 1970); {limit_seconds} seconds between are accepted")]
    Date {
        /// The time of signing.
        signed: u64,
        /// The time of the check.
        now: u64,
        limit_seconds: u64,
    },
    /// Signed for another challenge, purpose, pool or server.
    #[error("the request's server id is {found:?}; for this challenge and this server it would be {expected}")]
    ServerId {
        /// Server id of the request.
        found: String,
        expected: String,
    },
    /// The server id is there, but not signed: any process could have put it there.
    #[error("the request's signature does not cover the server id, but {signed:?}")]
    ServerIdNotSigned {
        /// The headers that the signature covers.
        signed: String,
    },
    /// Other headers are signed.
    #[error("the request's signature covers {found:?}, accepted is {accepted:?}")]
    SignedHeaders {
        /// The headers that the signature covers.
        found: String,
        /// The headers that it must cover.
        accepted: &'static str,
    },
    /// No Signature Version 4.
    #[error("the request's authorization is not Signature Version 4: {part}")]
    Authorization {
        /// The part that is wrong.
        part: &'static str,
    },
    /// Signed for another day, region or service.
    #[error("the request is signed for {found:?}, accepted is {accepted:?}")]
    Scope {
        /// Credential scope of the signature.
        found: String,
        accepted: String,
    },
    /// The session token is not base64 of an accepted length.
    #[error("the request's session token has {bytes} bytes; accepted is base64 of 1 to {limit}")]
    SecurityToken { bytes: usize, limit: usize },
    /// AWS does not take the signature or the credentials.
    #[error("AWS refuses the request with status {status}")]
    Refused { status: u16 },
    /// AWS does not answer the question. Redirects are among these.
    #[error("AWS answers with status {found}, not with 200")]
    Status {
        /// HTTP status of the answer.
        found: u16,
    },
    /// Not the JSON that was asked for.
    #[error("AWS answers with {found:?}, not with application/json")]
    ContentType {
        /// Value of the header `content-type`.
        found: String,
    },
    /// More bytes than an answer has.
    #[error("AWS's answer has {found} bytes, at most {limit} are read")]
    AnswerTooLarge {
        /// Its length, as far as it was read.
        found: usize,
        limit: usize,
    },
    /// Not the answer to GetCallerIdentity.
    #[error("AWS's answer cannot be read: {problem}")]
    Answer { problem: String },
    /// The account does not have 12 digits.
    #[error("AWS's answer names the account {found:?}; those have 12 digits")]
    AnswerAccount { found: String },
    /// A user, another kind of role, or an instance of another account than the answer says.
    #[error("the credentials are those of {arn:?}; accepted is {wanted}")]
    NotAnInstance {
        /// ARN of the caller.
        arn: String,
        /// Form of an instance's ARN.
        wanted: String,
    },
    /// The answer contradicts itself.
    #[error("AWS's answer names the user {found:?}; accepted is {wanted}")]
    UserId {
        /// User id in the answer.
        found: String,
        /// Form of the user id that fits the ARN.
        wanted: String,
    },
    /// The pool does not accept the account of the credentials.
    #[error("its account is {found}")]
    Account {
        /// Account in AWS's answer.
        found: String,
        accepted: Withheld,
    },
    /// The pool does not accept the role of the credentials.
    #[error("its role is {found}")]
    Role {
        /// Role in AWS's answer.
        found: String,
        accepted: Withheld,
    },
    /// An instance that is not listed.
    #[error("its instance is {found}")]
    Instance {
        /// Instance in AWS's answer.
        found: String,
        accepted: Withheld,
    },
}

advice! {
    /// Every code a [`StsError`] can have.
    REQUEST = "sts-request", "The signed STS request does not have the required form", "Use the unmodified attest-node.";
    ENDPOINT = "sts-endpoint", "The signed STS request is for a region that the pool does not accept", "Add the node's region to `aws_sts.regions` in pool.toml.";
    DATE = "sts-date", "The STS request was signed too long ago, or in the future", "Compare the clocks of node and gateway.";
    SERVER_ID = "sts-server-id", "The signed STS request is for another challenge or server", "Boot again. If this repeats, a proxy terminates TLS, or somebody replays requests.";
    REFUSED = "sts-refused", "AWS rejects the node's credentials", "Give the instance an instance profile with a role. Boot again for new credentials.";
    UNAVAILABLE = "sts-unavailable", "AWS's answer cannot be used, for example a redirect", "Boot again. If this repeats, check the network between gateway and AWS.";
    NOT_AN_INSTANCE = "sts-not-an-instance", "The AWS credentials are not an instance's", "Attest with the credentials of the instance's own profile.";
    ACCOUNT = "sts-account", "The pool does not accept the instance's account", "If the account is yours, add it to `aws_sts.accounts` in pool.toml.";
    ROLE = "sts-role", "The pool does not accept the instance's role", "If only ec2.amazonaws.com may assume the role, add it to `aws_sts.roles` in pool.toml.";
    INSTANCE = "sts-instance", "The pool does not accept this instance", "If the instance is yours, add it to `aws_sts.instances` in pool.toml.";
}

impl StsError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Method { .. }
            | Self::Body { .. }
            | Self::HeaderUnknown { .. }
            | Self::HeaderRepeated { .. }
            | Self::HeaderMissing { .. }
            | Self::HeaderValue { .. }
            | Self::DateForm { .. }
            | Self::SignedHeaders { .. }
            | Self::Authorization { .. }
            | Self::Scope { .. }
            | Self::SecurityToken { .. } => REQUEST,
            Self::Url { .. } => ENDPOINT,
            Self::Date { .. } => DATE,
            Self::ServerId { .. } | Self::ServerIdNotSigned { .. } => SERVER_ID,
            Self::Refused { .. } => REFUSED,
            Self::Status { .. }
            | Self::ContentType { .. }
            | Self::AnswerTooLarge { .. }
            | Self::Answer { .. }
            | Self::AnswerAccount { .. }
            | Self::UserId { .. } => UNAVAILABLE,
            Self::NotAnInstance { .. } => NOT_AN_INSTANCE,
            Self::Account { .. } => ACCOUNT,
            Self::Role { .. } => ROLE,
            Self::Instance { .. } => INSTANCE,
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::Url { accepted, .. } | Self::Account { accepted, .. } | Self::Role { accepted, .. } | Self::Instance { accepted, .. } => {
                Some(accepted)
            }
            _ => None,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}
