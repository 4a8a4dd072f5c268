//! Codes of refusals, as records have them: each with its HTTP status, its origin, and advice.

use attest::Reject;
use attest::advice::Advice;
use attest::reject::{CHALLENGE_EXPIRED, EVIDENCE_INCOMPLETE, MALFORMED_REQUEST};
use attest::tpm::TPM_MALFORMED;

use super::record::DecidedBy;

/// The code of a refusal.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The status of the answer.
    pub status: u16,
    pub by: DecidedBy,
    pub advice: Advice,
}

const BAD_REQUEST: u16 = 400;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const METHOD_NOT_ALLOWED: u16 = 405;
const NOT_ACCEPTABLE: u16 = 406;
const REQUEST_TIMEOUT: u16 = 408;
const PAYLOAD_TOO_LARGE: u16 = 413;
const SERVICE_UNAVAILABLE: u16 = 503;

macro_rules! codes {
    ($($name:ident = $status:ident, $by:ident, $code:literal, $title:literal, $next:literal;)*) => {
        $(pub const $name: Code = Code {
            status: $status,
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
    TPM_COUNTERS_BACK = FORBIDDEN, Store, "tpm-counters-back", "The TPM's counters ran backwards", "If the TPM was cleared, or this virtual machine was set back: run `attest-gateway node forget-history` with the identity of the gateway's log, then boot again; if not, something else may answer in its place.";
    TPM_FIRMWARE_BACK = FORBIDDEN, Store, "tpm-firmware-back", "The TPM's firmware is older than it was", "Update the TPM's firmware; if it was set back on purpose, run `attest-gateway node forget-history` with the identity of the gateway's log, then boot again.";
    TPM_ANOTHER_LOG = FORBIDDEN, Store, "tpm-another-log", "The event log tells of the same PCR values what it did not tell before", "Compare both boots by `attest-audit log boot-diff --html`, as the gateway's log says. If the machine boots the same files from another place: run `attest-gateway node forget-history` with the identity of the gateway's log, then boot again.";
    KUBELET_CERTIFICATE_INVALID = FORBIDDEN, Evidence, "kubelet-certificate-invalid", "The client certificate does not hold", "Compare the CAs that the gateway goes by (the file in tls.client_ca, or with cluster.client_ca state/cluster/kubelet-client-ca.crt) with the cluster's config map csr-controller-ca in openshift-config-managed; if one of them has signed the certificate, let the kubelet get another one.";
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
    MACHINE_AWAITED = SERVICE_UNAVAILABLE, Gateway, "machine-awaited", "No Machine object of the cluster names this machine yet", "attest-node asks again by itself; if it is refused in the end, this cluster has not made the machine, or its Machine object has no providerID.";
    VALUE_AWAITED = SERVICE_UNAVAILABLE, Gateway, "value-awaited", "The machine has booted something that nobody has accepted or denied yet", "attest-node asks again by itself, for as long as the pool says; the administrator is asked, and says yes or no: `attest-gateway reference-values pending`, then `accept` or `deny`.";
    KUBELET_CA_UNTOLD = SERVICE_UNAVAILABLE, Gateway, "kubelet-ca-untold", "The cluster has not said yet which CAs sign kubelets' certificates", "Ask again in a moment; if this stays, the gateway's log says why the cluster's API does not tell: cluster.client_ca.";
    MACHINES_UNKNOWN = SERVICE_UNAVAILABLE, Gateway, "machines-unknown", "The gateway does not know now which machines the cluster has made", "attest-node asks again by itself; if this stays, the gateway's log says why the cluster's API does not tell.";
    UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "unavailable", "The gateway cannot answer now", "Nodes retry by themselves; the gateway's log says what is wrong.";
}

/// Codes of the crate `attest` about requests in which no evidence was examined. Its others are about evidence.
const BY_REQUEST: [Advice; 2] = [CHALLENGE_EXPIRED, MALFORMED_REQUEST];

impl Code {
    /// The code of a request that is not well-formed.
    pub const MALFORMED: Self = Self {
        status: BAD_REQUEST,
        by: DecidedBy::Request,
        advice: MALFORMED_REQUEST,
    };

    /// Returns the code of a refusal of evidence.
    #[must_use]
    pub fn of_reject(reject: &Reject) -> Self {
        let advice = reject.advice();
        Self {
            status: match advice {
                MALFORMED_REQUEST | TPM_MALFORMED | EVIDENCE_INCOMPLETE => BAD_REQUEST,
                _ => FORBIDDEN,
            },
            by: decided_by(advice.code),
            advice,
        }
    }
}

/// Returns whether a refusal can have this code.
#[must_use]
pub fn is_code(code: &str) -> bool {
    CODES.iter().chain(attest::reject::advices()).any(|advice| advice.code == code)
}

/// Returns the origin of a refusal with this code.
#[must_use]
pub fn decided_by(code: &str) -> DecidedBy {
    match OWN.iter().find(|own| own.advice.code == code) {
        Some(own) => own.by,
        None if BY_REQUEST.iter().any(|advice| advice.code == code) => DecidedBy::Request,
        None => DecidedBy::Evidence,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_a_refusal_comes_from_is_said_of_each_code() {
        for (code, by) in [
            ("ticket-withdrawn", DecidedBy::Store),
            ("instance-claimed", DecidedBy::Store),
            ("evidence-required", DecidedBy::Policy),
            ("kubelet-wrong-pool", DecidedBy::Evidence),
            ("client-gone", DecidedBy::Gateway),
            ("ticket-invalid", DecidedBy::Request),
            ("challenge-expired", DecidedBy::Request),
            ("pcr-mismatch", DecidedBy::Evidence),
        ] {
            assert_eq!(decided_by(code), by, "{code}");
        }
        // The library's are about evidence, but for these.
        let others = attest::reject::advices().filter(|advice| decided_by(advice.code) != DecidedBy::Evidence);
        let codes: BTreeSet<&str> = others.map(|advice| advice.code).collect();
        assert_eq!(codes, BTreeSet::from(["challenge-expired", "malformed-request"]));
    }
}
