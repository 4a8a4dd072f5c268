//! Reasons why a request is left as it is.

use attest::SpkiSha256;
use attest::advice::Advice;
use attest_system::clock::rfc3339;

use super::request::RequestError;

/// Longest foreign text in a message, in characters.
const SHOWN_LIMIT_CHARACTERS: usize = 320;

/// A failed check, with what was found. Each has a stable code, which users can search for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("user {found:?} created it, but only {expected:?} may request client certificates of new nodes")]
    Requester { found: String, expected: String },
    #[error("{username:?} is in the groups {found:?}, but must be in exactly {expected:?}")]
    Groups {
        username: String,
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error("it requests the usages {found:?}, but a kubelet requests \"digital signature\", \"{of}\" and optionally \"key encipherment\"")]
    Usages { found: Vec<String>, of: &'static str },
    #[error("it requests a lifetime of {found} s, but a kubelet requests none")]
    Lifetime { found: i32 },
    #[error("the request has alternative names, which a kubelet's client certificate does not have")]
    AlternativeNames,
    #[error("no machine that may be {name} has attested, or its last attestation was used for another certificate")]
    NotAttested { name: String },
    #[error("{identity} may be {name}, but attested last at {}: more than {minutes} minutes ago, or in the future", rfc3339(*.at))]
    AttestedThen {
        name: String,
        identity: String,
        at: u64,
        minutes: u64,
    },
    #[error(
        "it was created at {}, but {identity} attested at {}: an attestation approves only newer CSRs; delete this one, and its kubelet creates another",
        rfc3339(*.created),
        rfc3339(*.at)
    )]
    BeforeAttestation { identity: String, created: u64, at: u64 },
    #[error(
        "it was judged before {identity} attested at {} (it was created at {}): an attestation approves only newer CSRs; delete this one, and its kubelet creates another",
        rfc3339(*.at),
        rfc3339(*.created)
    )]
    JudgedBefore { identity: String, created: u64, at: u64 },
    #[error("more than one attested machine may be {name}: {identities:?}")]
    Ambiguous { name: String, identities: Vec<String> },
    #[error("{0}")]
    Revoked(String),
    #[error("{identity} attested for pool {pool}, which is not in approval.pools")]
    Pool { identity: String, pool: String },
    #[error("{name} belongs to the control plane, by {by}, but {whose}")]
    ControlPlane { name: String, by: String, whose: String },
    #[error("{identity} attested for pool {pool}, but {name} is not a name of its nodes{}", .of.as_ref().map(|of| format!(", but of pool {of}")).unwrap_or_default())]
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
    #[error("a Node {name} exists already")]
    NodeExists { name: String },
    #[error("{name} belongs to {owner}, not to {identity}")]
    NameTaken { name: String, owner: String, identity: String },
    #[error("{identity} is registered as {known}, not as {name}")]
    OtherName { name: String, known: String, identity: String },
    #[error("other CSRs request {name} with other keys: {others:?}; cannot determine the machine's: deny or delete the others")]
    Duplicate { name: String, others: Vec<String> },
    #[error(
        "{other} (created at {}) was approved for {name} with another key{}, and {identity} attested at {}: two machines would have one name",
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
    #[error("it is for the key {found}, but {identity} attested the key {attested} for its kubelet")]
    Key {
        identity: String,
        found: SpkiSha256,
        attested: SpkiSha256,
    },
    #[error(
        "{identity} attested no key for its kubelet, but approval.keys requires one: check that its image has attest-node-keep.service, and its kernel command line no attest-node.kubelet-key=no"
    )]
    NoKey { identity: String },
    #[error("{username:?} requests a serving certificate of {name}, but only the node itself may")]
    ServingOfAnother { username: String, name: String },
    #[error("Node {name} does not exist")]
    NoNode { name: String },
    #[error("the client certificate of {name} was not approved by this controller: cannot determine its machine")]
    NotOurs { name: String },
    #[error("it requests a certificate without any name or address")]
    NoAddresses,
    #[error("{found} is not an address of {of}")]
    Address { found: String, of: String },
    #[error("the watch of {what} is failing")]
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
}

macro_rules! advice {
    ($($code:literal, $title:literal, $next_step:literal;)*) => {
        /// The codes of a [`Reason`], each with its meaning and the next step.
        pub const ADVICE: &[Advice] = &[$(Advice { code: $code, title: $title, next_step: $next_step }),*];

        impl Reason {
            /// All codes, in the order of [`ADVICE`].
            pub const CODES: &[&str] = &[$($code),*];
        }
    };
}

advice! {
    "csr-request", "The CSR is not a kubelet's PKCS#10 request: it is malformed, badly signed, or has another subject, key type or extension", "Get the CSR with `oc get csr NAME -o jsonpath={.spec.request}`, decode it with `base64 -d` and `openssl req -noout -text`. Find out who created it: no kubelet creates such a CSR.";
    "csr-requester", "Another user than `approval.requester` requested the client certificate of a new node", "If this user requests certificates of new nodes in this cluster, set `approval.requester` in controller.toml. Otherwise find out who has the credential.";
    "csr-groups", "The requester's groups differ from `approval.requester_groups`", "If these are the groups of new nodes in this cluster, set `approval.requester_groups` in controller.toml. Otherwise find out who has the credential.";
    "csr-usages", "The CSR requests usages that a kubelet does not request", "Find out who created it: no kubelet creates such a CSR.";
    "csr-lifetime", "The CSR requests a lifetime, which a kubelet does not request", "Find out who created it: no kubelet creates such a CSR.";
    "csr-alternative-names", "The CSR requests a client certificate with alternative names", "Find out who created it: no kubelet creates such a CSR.";
    "csr-not-attested", "No attested machine may have this node name, or its attestation was used for another certificate", "Look for the machine with `attest-gateway log show --node NAME`. If it booted without attesting, let it attest. If another machine's CSR was approved in its place, the log has a `csr.approve` event.";
    "csr-attested-too-long-ago", "The machine attested longer ago than `approval.within_minutes`, or in the future", "Repeat the machine's first boot, or raise `approval.within_minutes` in controller.toml.";
    "csr-before-attestation", "The CSR is older than the machine's attestation, or was judged before it", "Delete the CSR: `oc delete csr NAME`. The kubelet creates another one. If the node created only one CSR, somebody else has the bootstrap credential.";
    "csr-ambiguous", "More than one attested machine may have this node name", "Run `attest-gateway machines list`, and compare the providerIDs of the Machine objects. Remove the wrong machine's name with `attest-gateway node forget NAME`.";
    "csr-revoked", "The node name or the machine is revoked", "If the machine should be trusted again, run `attest-gateway node restore NAME`.";
    "csr-pool", "The machine attested for a pool that `approval.pools` does not list", "Add the pool to `approval.pools` in controller.toml, or run `oc adm certificate approve NAME`.";
    "csr-control-plane", "The name belongs to the control plane, and the machine has not attested for a pool of the control plane that is approved", "If it is a control plane host, let it request the config of that pool, and add the pool to `approval.pools` in controller.toml.";
    "csr-pool-name", "The pool's `kubelet.names` do not match the name, or another pool's match it, or the pool sets none", "Set `kubelet.names` in the pool.toml of the machine's pool.";
    "csr-asked-name", "Only the machine itself asked for this name; no administrator and no Machine object assigned it", "Assign the name: `attest-gateway ek add EK --name NAME`. If any attested machine may choose its name, set `approval.asked_names = true` in controller.toml.";
    "csr-machine", "No single usable Machine object has this InternalDNS: it is missing, duplicate, being removed, a node already, or of another role or instance", "Inspect the Machine objects: `oc -n openshift-machine-api get machines -o wide`. Without a Machine API, set `approval.machine_objects = false` in controller.toml.";
    "csr-node-exists", "A Node with this name exists", "If the same machine was provisioned again, run `oc delete node NAME`.";
    "csr-name-taken", "The name belongs to another machine, or the machine to another name, or another key was approved since the attestation", "Run `attest-gateway machines list`. If the machine was replaced, run `attest-gateway node forget NAME`.";
    "csr-duplicate", "Several CSRs request the same name with different keys", "Deny or delete the CSRs that are not the machine's: `oc delete csr NAME`.";
    "csr-key-not-attested", "The machine attested another key for its kubelet, or none, and `approval.keys` is \"attested\"", "If it attested none, check that its image has `attest-node-keep.service`, and its kernel command line no `attest-node.kubelet-key=no`. If the CSR is its kubelet's, check `attest-node-kubelet-certificate.service` on the machine. Otherwise somebody else has the bootstrap credential.";
    "csr-serving-of-another", "Another user than the node requested its serving certificate", "Find out who created the CSR.";
    "csr-no-node", "The serving certificate is for a Node that does not exist", "Wait if the node is about to register. Otherwise delete the CSR: `oc delete csr NAME`.";
    "csr-client-not-approved-here", "This controller did not approve the client certificate of the node", "Leave the CSR to the approver of the client certificate, such as OpenShift's machine-approver.";
    "csr-address", "The serving certificate is for no name and no address, or for one that is not the node's", "Compare it with the addresses of the Machine object and the node's egress IPs (`oc get egressip`). If it is the node's, run `oc adm certificate approve NAME`.";
    "csr-watch-failed", "A watch that the decision needs is failing", "The controller's log has the error. Check the controller's rights: `attest-controller check`.";
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
