use crate::advice::{Advice, advice};
use crate::gcp::IDENTITY_TOKEN_LIMIT_BYTES;
use crate::gcp::profile::{AGE_LIMIT_SECONDS, CLOCK_SKEW_SECONDS, ISSUER, LIFETIME_LIMIT_SECONDS};
use crate::withheld::Withheld;

/// Longest text of others that is taken over into an error, in characters.
const TEXT_LIMIT_CHARS: usize = 256;

/// Reason why evidence of an instance of Google Compute Engine is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GcpError {
    #[error("the identity token has {bytes} bytes, at most {IDENTITY_TOKEN_LIMIT_BYTES} are read")]
    TooLarge { bytes: usize },
    /// The token is not a compact JWS.
    #[error("the identity token has {found} parts, a signed JWT has 3")]
    Parts { found: usize },
    #[error("the identity token cannot be read: {problem}")]
    Malformed { problem: String },
    /// Its algorithm is not Google's.
    #[error("the identity token's algorithm is {found}, Google's is RS256")]
    Algorithm {
        /// Algorithm named in the header.
        found: String,
    },
    /// Its header chooses a key, or another way to read it.
    #[error("the identity token's header has {field:?}; keys are Google's, and chosen by \"kid\" only")]
    HeaderField { field: &'static str },
    /// The token does not name the key that it is signed with.
    #[error("the identity token's header names no key (\"kid\")")]
    KeyIdMissing,
    /// No key of Google has the token's key id. The keys may have changed since they were fetched.
    #[error("the identity token is signed with key {kid:?}, which is not among Google's known keys")]
    KeyUnknown {
        /// Key id named in the header.
        kid: String,
    },
    /// The signature does not verify.
    #[error("the identity token's signature does not verify under Google's key")]
    Signature,
    /// The token is from another issuer.
    #[error("the identity token is issued by {found:?}, required is {ISSUER:?}")]
    Issuer {
        /// Value of the claim `iss`.
        found: String,
    },
    /// The token was made for another audience.
    #[error("the identity token is for {found:?}, this challenge requires {expected:?}")]
    Audience {
        /// Value of the claim `aud`.
        found: String,
        /// The requested audiences, one for each server key.
        expected: String,
    },
    /// The token has several audiences.
    #[error("the identity token has {found} audiences, required is exactly one")]
    AudienceCount { found: usize },
    /// Its time is over.
    #[error("the identity token expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired {
        /// Value of the claim `exp`.
        expires: u64,
        now: u64,
    },
    /// The token was signed too long ago.
    #[error("the identity token is from {issued}, it is now {now} (seconds since 1970); at most {AGE_LIMIT_SECONDS} s are accepted")]
    TooOld {
        /// Value of the claim `iat`.
        issued: u64,
        now: u64,
    },
    /// The token is from the future.
    #[error("the identity token is from {issued}, it is now {now} (seconds since 1970); clocks may differ by {CLOCK_SKEW_SECONDS} s")]
    IssuedInFuture {
        /// Value of the claim `iat`.
        issued: u64,
        now: u64,
    },
    /// The token is valid for longer than Google's are, or for no time.
    #[error(
        "the identity token is valid from {issued} to {expires} (seconds since 1970); Google's are valid for {LIFETIME_LIMIT_SECONDS} s"
    )]
    Lifetime {
        /// Value of the claim `iat`.
        issued: u64,
        /// Value of the claim `exp`.
        expires: u64,
    },
    /// The token is not about an instance: Google signs such tokens for service accounts everywhere.
    #[error("the identity token has no google.compute_engine: it was not issued to an instance, or not with format=full")]
    NotAnInstance,
    /// A claim is missing.
    #[error("the identity token has no claim {claim:?}")]
    ClaimMissing { claim: &'static str },
    /// A value is not of Google's form.
    #[error("{field} is {found:?}, which is not of Google's form")]
    ClaimForm {
        /// The claim, or the field of the certificate's extension.
        field: &'static str,
        found: String,
    },
    /// The instance is younger than its token.
    #[error("the instance was created at {created}, its identity token is from {issued} (seconds since 1970)")]
    CreatedAfterIssue {
        /// Value of the claim `instance_creation_timestamp`.
        created: u64,
        /// Value of the claim `iat`.
        issued: u64,
    },
    /// The token was issued to another party than the account that it is about.
    #[error("the identity token names service account {subject}, but was issued to {party}")]
    AuthorizedParty {
        /// Value of the claim `sub`.
        subject: String,
        /// Value of the claim `azp`.
        party: String,
    },
    /// Google does not vouch for the service account's address.
    #[error("the service account's address {email:?} is not verified")]
    EmailNotVerified { email: String },

    /// The pool does not accept the instance's project.
    #[error("the instance is in project {found}")]
    ProjectRefused {
        /// Id and number of the project.
        found: String,
        accepted: Withheld,
    },
    /// The pool does not accept the instance's zone.
    #[error("the instance is in zone {found}")]
    LocationRefused {
        /// Zone of the instance.
        found: String,
        /// The pool's zones and regions.
        accepted: Withheld,
    },
    /// The pool does not accept the instance's name.
    #[error("the instance's name is {found}")]
    NameRefused {
        /// Name of the instance.
        found: String,
        /// Patterns of the pool for names.
        accepted: Withheld,
    },
    /// The pool does not accept the instance's service account.
    #[error("the instance runs as {found}")]
    ServiceAccountRefused {
        /// Email address of the service account.
        found: String,
        accepted: Withheld,
    },
    /// The instance has none of the required licences.
    #[error("the instance's licences are {found}")]
    LicenseRefused {
        /// Licence codes of the instance.
        found: String,
        accepted: Withheld,
    },
    /// The instance is too old.
    #[error("the instance was created {age} s ago")]
    InstanceTooOld {
        /// Seconds since it was created.
        age: u64,
        accepted: Withheld,
    },
    /// The pool has a rule about what a vTPM's certificate does not state.
    #[error("the pool has a rule about a fact that a vTPM's certificate does not contain")]
    RuleNotProvable {
        /// The rule that cannot be checked.
        accepted: Withheld,
    },
    /// Identity token and certificate are about different instances.
    #[error("the identity token names instance {identity_token}, but the vTPM's certificate {certificate}")]
    InstanceMismatch {
        /// The identity token's instance.
        identity_token: String,
        certificate: String,
    },
}

advice! {
    /// Every code a [`GcpError`] can have.
    MALFORMED = "gcp-identity-malformed", "The identity token cannot be read", "Use the unmodified attest-node. If this repeats, find out which server answers at metadata.google.internal.";
    ALGORITHM = "gcp-identity-algorithm", "The identity token does not have Google's signature algorithm", "Use the unmodified attest-node. If this repeats, somebody forges identity tokens.";
    KEY = "gcp-identity-key-unknown", "The identity token is signed with an unknown key", "Boot again. If this repeats, check in the gateway's log whether the gateway can fetch Google's keys, or update its file of keys.";
    SIGNATURE = "gcp-identity-signature", "The identity token's signature does not verify", "Use the unmodified attest-node. If this repeats, somebody forges identity tokens.";
    ISSUER_CODE = "gcp-identity-issuer", "Google is not the identity token's issuer", "Use the unmodified attest-node, on an instance of Compute Engine.";
    AUDIENCE = "gcp-identity-audience", "The identity token is for another challenge or server", "Boot again. If this repeats, a proxy terminates TLS: nodes must connect to the gateway directly.";
    TIME = "gcp-identity-time", "The identity token has expired, or is from the future", "Compare the gateway's clock, then boot again.";
    NOT_AN_INSTANCE = "gcp-identity-not-an-instance", "The identity token was not issued to an instance", "Use the unmodified attest-node, on an instance of Compute Engine with a service account.";
    SERVICE_ACCOUNT = "gcp-identity-service-account", "The identity token was issued to another service account than it names", "Use the unmodified attest-node, on an instance of Compute Engine with a service account.";
    PROJECT_REFUSED = "gcp-project-refused", "The pool does not accept the instance's project", "If the instance is yours, add its project, id and number, to pool.toml.";
    LOCATION_REFUSED = "gcp-location-refused", "The pool does not accept the instance's zone", "If the instance is yours, add its zone or region to pool.toml.";
    NAME_REFUSED = "gcp-name-refused", "The pool does not accept the instance's name", "If the instance is yours, add a pattern for its name to pool.toml.";
    SERVICE_ACCOUNT_REFUSED = "gcp-service-account-refused", "The pool does not accept the instance's service account", "Give the instance the pool's service account, or add its own to pool.toml.";
    LICENSE_REFUSED = "gcp-license-refused", "The instance has none of the pool's licences", "Create the instance from the pool's image, or add its image's licence code to pool.toml.";
    INSTANCE_TOO_OLD = "gcp-instance-too-old", "The instance was created too long ago", "Create the instance again, or raise `max_instance_age_seconds` in pool.toml.";
    RULE_NOT_PROVABLE = "gcp-rule-not-provable", "The pool has a rule that a vTPM's certificate cannot prove", "Require an identity token together with the TPM, or remove the rule from pool.toml.";
    INSTANCE_MISMATCH = "gcp-instance-mismatch", "The identity token and the vTPM identify different instances", "Boot again. If this repeats, somebody may be presenting another machine's evidence.";
}

impl GcpError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::TooLarge { .. } | Self::Parts { .. } | Self::Malformed { .. } => MALFORMED,
            Self::Algorithm { .. } | Self::HeaderField { .. } => ALGORITHM,
            Self::KeyIdMissing | Self::KeyUnknown { .. } => KEY,
            Self::Signature => SIGNATURE,
            Self::Issuer { .. } => ISSUER_CODE,
            Self::Audience { .. } | Self::AudienceCount { .. } => AUDIENCE,
            Self::Expired { .. }
            | Self::TooOld { .. }
            | Self::IssuedInFuture { .. }
            | Self::Lifetime { .. }
            | Self::CreatedAfterIssue { .. } => TIME,
            Self::NotAnInstance | Self::ClaimMissing { .. } | Self::ClaimForm { .. } => NOT_AN_INSTANCE,
            Self::AuthorizedParty { .. } | Self::EmailNotVerified { .. } => SERVICE_ACCOUNT,
            Self::ProjectRefused { .. } => PROJECT_REFUSED,
            Self::LocationRefused { .. } => LOCATION_REFUSED,
            Self::NameRefused { .. } => NAME_REFUSED,
            Self::ServiceAccountRefused { .. } => SERVICE_ACCOUNT_REFUSED,
            Self::LicenseRefused { .. } => LICENSE_REFUSED,
            Self::InstanceTooOld { .. } => INSTANCE_TOO_OLD,
            Self::RuleNotProvable { .. } => RULE_NOT_PROVABLE,
            Self::InstanceMismatch { .. } => INSTANCE_MISMATCH,
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::ProjectRefused { accepted, .. }
            | Self::LocationRefused { accepted, .. }
            | Self::NameRefused { accepted, .. }
            | Self::ServiceAccountRefused { accepted, .. }
            | Self::LicenseRefused { accepted, .. }
            | Self::InstanceTooOld { accepted, .. }
            | Self::RuleNotProvable { accepted } => Some(accepted),
            _ => None,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }

    pub(super) fn malformed(problem: impl ToString) -> Self {
        Self::Malformed {
            problem: printable(&problem.to_string()),
        }
    }

    pub(super) fn claim_form(field: &'static str, found: &str) -> Self {
        Self::ClaimForm {
            field,
            found: printable(found),
        }
    }
}

/// A text of others, fit for a log: bounded, without control characters.
pub(crate) fn printable(text: &str) -> String {
    crate::values::printable(text, TEXT_LIMIT_CHARS)
}
