//! Reasons why a request is left as it is.

use attest::SpkiSha256;
use attest_system::clock::rfc3339;

use super::request::RequestError;

/// Longest foreign text in a message, in characters.
const SHOWN_LIMIT_CHARACTERS: usize = 320;

/// A failed check, with what was found. Each has a stable code, which users can search for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("it is from {found:?}, and client certificates of new nodes are asked for by {expected:?}")]
    Requester { found: String, expected: String },
    #[error("{username:?} is in the groups {found:?}, expected are exactly {expected:?}")]
    Groups {
        username: String,
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error("it asks for the usages {found:?}, a kubelet for \"digital signature\", \"{of}\" and perhaps \"key encipherment\"")]
    Usages { found: Vec<String>, of: &'static str },
    #[error("it asks for a lifetime of {found} s, and a kubelet for none")]
    Lifetime { found: i32 },
    #[error("the request has alternative names, which a kubelet's client certificate does not have")]
    AlternativeNames,
    #[error("no machine that may be {name} has attested, or none since that was used for another certificate")]
    NotAttested { name: String },
    #[error("{identity} may be {name}, and has attested last at {}: longer ago than {minutes} minutes, or at a time to come", rfc3339(*.at))]
    AttestedThen {
        name: String,
        identity: String,
        at: u64,
        minutes: u64,
    },
    #[error(
        "it was created at {}, and {identity} attested at {}: an attestation approves only a CSR that is newer; delete this one, its kubelet asks again",
        rfc3339(*.created),
        rfc3339(*.at)
    )]
    BeforeAttestation { identity: String, created: u64, at: u64 },
    #[error(
        "it was judged before {identity} attested at {} (it was created at {}): an attestation approves only a CSR that comes later; delete this one, its kubelet asks again",
        rfc3339(*.at),
        rfc3339(*.created)
    )]
    JudgedBefore { identity: String, created: u64, at: u64 },
    #[error("more than one machine that has attested may be {name}: {identities:?}")]
    Ambiguous { name: String, identities: Vec<String> },
    #[error("{0}")]
    Revoked(String),
    #[error("{identity} has attested for pool {pool}, whose nodes are not approved here")]
    Pool { identity: String, pool: String },
    #[error("{name} is a name of the control plane, by {by}, and {whose}")]
    ControlPlane { name: String, by: String, whose: String },
    #[error("{identity} has attested for pool {pool}, and {name} is not a name of its nodes{}", .of.as_ref().map(|of| format!(", but of pool {of}")).unwrap_or_default())]
    PoolName {
        name: String,
        identity: String,
        pool: String,
        of: Option<String>,
    },
    #[error(
        "the name {name} of {identity} comes only from its own request: neither the administrator nor a Machine object has assigned it"
    )]
    AskedName { name: String, identity: String },
    #[error("no Machine object has the InternalDNS {name}")]
    NoMachine { name: String },
    #[error("more than one Machine object has the InternalDNS {name}: {machines:?}")]
    Machines { name: String, machines: Vec<String> },
    #[error("the Machine object {machine} {why}")]
    Machine { machine: String, why: String },
    #[error("there is a Node {name} already")]
    NodeExists { name: String },
    #[error("{name} is the name of {owner}, not of {identity}")]
    NameTaken { name: String, owner: String, identity: String },
    #[error("{identity} is registered as {known}, not as {name}")]
    OtherName { name: String, known: String, identity: String },
    #[error(
        "others ask for {name} with other keys: {others:?}; which of them is the machine's cannot be told, deny or delete those that are not"
    )]
    Duplicate { name: String, others: Vec<String> },
    #[error(
        "{other} (created at {}) was approved for {name} with another key{}, and {identity} attested at {}: there would be two machines of one name",
        rfc3339(*.created),
        .approved.map(|approved| format!(" at {}", rfc3339(approved))).unwrap_or_default(),
        rfc3339(*.at)
    )]
    ApprovedElsewhere {
        name: String,
        other: String,
        created: u64,
        approved: Option<u64>,
        identity: String,
        at: u64,
    },
    #[error("it is for the key {found}, and {identity} has attested the key {attested} for its kubelet")]
    Key {
        identity: String,
        found: SpkiSha256,
        attested: SpkiSha256,
    },
    #[error(
        "{identity} has attested no key for its kubelet, and only attested keys are approved here: does its image have attest-node-keep.service, and no attest-node.kubelet-key=no on its kernel command line?"
    )]
    NoKey { identity: String },
    #[error("{username:?} asks for a serving certificate of {name}: a node asks for its own")]
    ServingOfAnother { username: String, name: String },
    #[error("Node {name} does not exist")]
    NoNode { name: String },
    #[error("the client certificate of {name} was not approved by this controller: cannot determine its machine")]
    NotOurs { name: String },
    #[error("it asks for a certificate of no name and no address")]
    NoAddresses,
    #[error("{found} is not an address of {of}")]
    Address { found: String, of: String },
    #[error("the watch of {what} fails at the moment")]
    WatchFailed { what: &'static str },
}

impl Reason {
    /// Returns the code, which stays the same when the text changes.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Request(_) => "csr-request",
            Self::Requester { .. } => "csr-requester",
            Self::Groups { .. } => "csr-groups",
            Self::Usages { .. } => "csr-usages",
            Self::Lifetime { .. } => "csr-lifetime",
            Self::AlternativeNames => "csr-alternative-names",
            Self::NotAttested { .. } => "csr-not-attested",
            Self::AttestedThen { .. } => "csr-attested-too-long-ago",
            Self::BeforeAttestation { .. } | Self::JudgedBefore { .. } => "csr-before-attestation",
            Self::Ambiguous { .. } => "csr-ambiguous",
            Self::Revoked(_) => "csr-revoked",
            Self::Pool { .. } => "csr-pool",
            Self::ControlPlane { .. } => "csr-control-plane",
            Self::PoolName { .. } => "csr-pool-name",
            Self::AskedName { .. } => "csr-asked-name",
            Self::NoMachine { .. } | Self::Machines { .. } | Self::Machine { .. } => "csr-machine",
            Self::NodeExists { .. } => "csr-node-exists",
            Self::NameTaken { .. } | Self::OtherName { .. } | Self::ApprovedElsewhere { .. } => "csr-name-taken",
            Self::Duplicate { .. } => "csr-duplicate",
            Self::Key { .. } | Self::NoKey { .. } => "csr-key-not-attested",
            Self::ServingOfAnother { .. } => "csr-serving-of-another",
            Self::NoNode { .. } => "csr-no-node",
            Self::NotOurs { .. } => "csr-client-not-approved-here",
            Self::NoAddresses | Self::Address { .. } => "csr-address",
            Self::WatchFailed { .. } => "csr-watch-failed",
        }
    }

    /// All codes, for the document that explains them.
    pub const CODES: &[&str] = &[
        "csr-request",
        "csr-requester",
        "csr-groups",
        "csr-usages",
        "csr-lifetime",
        "csr-alternative-names",
        "csr-not-attested",
        "csr-attested-too-long-ago",
        "csr-before-attestation",
        "csr-ambiguous",
        "csr-revoked",
        "csr-pool",
        "csr-control-plane",
        "csr-pool-name",
        "csr-asked-name",
        "csr-machine",
        "csr-node-exists",
        "csr-name-taken",
        "csr-duplicate",
        "csr-key-not-attested",
        "csr-serving-of-another",
        "csr-no-node",
        "csr-client-not-approved-here",
        "csr-address",
        "csr-watch-failed",
    ];
}

/// Returns a text that an unauthenticated client may have written, cut to a line's limit.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_LIMIT_CHARACTERS).collect()
}

/// Like [`shown`], for the first ten texts.
pub(super) fn all_shown<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    const LIMIT: usize = 10;
    texts.into_iter().take(LIMIT).map(shown).collect()
}
