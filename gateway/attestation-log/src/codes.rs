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
        /// The same with their statuses and origins.
        pub const OWN: &[Code] = &[$($name),*];
    };
}

codes! {
    CHALLENGE_INVALID = FORBIDDEN, Request, "challenge-invalid", "This gateway did not issue the challenge", "attest-node asks for a new challenge by itself; if this repeats, the node's requests reach gateways that do not share their seal, or its keys were dropped.";
    CHALLENGE_SPENT = FORBIDDEN, Store, "challenge-spent", "The challenge was answered before", "attest-node asks for a new challenge by itself; if this repeats, someone replays this node's evidence.";
    NODE_NAME_TAKEN = FORBIDDEN, Store, "node-name-taken", "The node's name belongs to another machine", "If the machine was replaced: run `attest-gateway node forget NAME`, then boot again.";
    INSTANCE_CLAIMED = FORBIDDEN, Store, "instance-claimed", "The instance belongs to another claimant", "If this node was provisioned again, or its console said during the first boot that its claim secret could not be kept: run `attest-gateway node release INSTANCE` with the instance from the gateway's log, then boot again. Otherwise someone else presents this machine's identity.";
    INSTANCE_WRONG_POOL = FORBIDDEN, Store, "instance-wrong-pool", "The allowlist keeps the instance out of the pool", "If the instance should join: add the pool to its row with `attest-gateway machines import`, then boot again.";
    NODE_REVOKED = FORBIDDEN, Store, "node-revoked", "The node is revoked", "If the machine should join again: run `attest-gateway node restore` with the name or identity from the gateway's log.";
    TPM_COUNTERS_DECREASED = FORBIDDEN, Store, "tpm-counters-decreased", "The TPM's counters ran backwards", "If the TPM was cleared, or the virtual machine was rolled back: run `attest-gateway node forget-history` with the identity from the gateway's log, then boot again. Otherwise another TPM may answer in its place.";
    TPM_FIRMWARE_DOWNGRADED = FORBIDDEN, Store, "tpm-firmware-downgraded", "The TPM's firmware was downgraded", "Update the TPM's firmware. If it was downgraded on purpose, run `attest-gateway node forget-history` with the identity from the gateway's log, then boot again.";
    TPM_EVENT_LOG_CHANGED = FORBIDDEN, Store, "tpm-event-log-changed", "Event log differs from the last trusted boot although the PCRs match", "Compare both boots with `attest-audit log compare-boots --html`; the gateway's log names their decisions. If the machine boots the same files from another device: run `attest-gateway node forget-history` with the identity from the gateway's log, then boot again.";
    KUBELET_CERTIFICATE_INVALID = FORBIDDEN, Evidence, "kubelet-certificate-invalid", "The client certificate does not verify", "Compare the gateway's client CAs (the file in tls.client_ca, or with cluster.client_ca state/cluster/kubelet-client-ca.crt) with the cluster's ConfigMap csr-controller-ca in openshift-config-managed. If one of them has signed the certificate, have the kubelet request a new one.";
    KUBELET_CERTIFICATE_EXPIRED = FORBIDDEN, Evidence, "kubelet-certificate-expired", "The client certificate is not valid at this time", "Compare the gateway's clock with the certificate's dates. If the certificate has expired, have the kubelet request a new one.";
    KUBELET_CERTIFICATE_NOT_A_NODE = FORBIDDEN, Evidence, "kubelet-certificate-not-a-node", "The client certificate is not that of a node", "Show the kubelet's own certificate: CN=system:node:NAME, O=system:nodes.";
    KUBELET_NOT_ACCEPTED = FORBIDDEN, Policy, "kubelet-not-accepted", "The pool grants no config for a kubelet's certificate", "Set grants.kubelet and kubelet.names in pool.toml.";
    KUBELET_WRONG_POOL = FORBIDDEN, Evidence, "kubelet-wrong-pool", "The node does not belong to the pool", "Ask for the node's own pool, or add its name to kubelet.names in pool.toml.";
    TICKET_INVALID = FORBIDDEN, Request, "ticket-invalid", "This gateway did not issue the ticket", "Boot again; if this repeats, the node's requests reach gateways that do not share their seal, or its keys were dropped.";
    TICKET_EXPIRED = FORBIDDEN, Request, "ticket-expired", "The ticket has expired", "Boot again.";
    TICKET_SPENT = FORBIDDEN, Store, "ticket-spent", "All uses of the ticket are spent", "Boot again; if this repeats, something else fetches with this node's ticket.";
    TICKET_WITHDRAWN = FORBIDDEN, Store, "ticket-withdrawn", "The attestation that earned the ticket is no longer accepted", "Since the attestation, the machine was removed from the allowlist or the pool's inventory, or restricted to other pools. If it should join: run `attest-gateway ek add`, or add it to the inventory, and boot again.";
    TICKET_CONFIG_CHANGED = FORBIDDEN, Request, "ticket-config-changed", "The config changed after the node attested", "Boot again: the node then attests for the current config.";
    TICKET_WRONG_POOL = FORBIDDEN, Request, "ticket-wrong-pool", "The ticket is for another pool", "Let the pointer config name one pool.";
    TOKEN_INVALID = FORBIDDEN, Store, "token-invalid", "The provisioning token does not exist", "Put an existing token into the pointer config, or create one: `attest-gateway token create`.";
    TOKEN_EXPIRED = FORBIDDEN, Store, "token-expired", "The provisioning token has expired", "Put its successor into the pointer config, or create a token: `attest-gateway token create`.";
    TOKEN_SPENT = FORBIDDEN, Store, "token-spent", "All uses of the provisioning token are spent", "Create a token: `attest-gateway token create`. If one machine used several because it rebooted during its first boot, put attest-node into its initramfs, or use --again.";
    TOKEN_WRONG_POOL = FORBIDDEN, Store, "token-wrong-pool", "The provisioning token is for another pool", "Create a token for this pool: `attest-gateway token create --pool POOL`.";
    TOKEN_WRONG_NETWORK = FORBIDDEN, Store, "token-wrong-network", "The provisioning token is not for use from this address", "Boot the machine in a network of the token, or create a token for this network: `attest-gateway token create --pool POOL --network NETWORK`.";
    TOKEN_NOT_ACCEPTED = FORBIDDEN, Policy, "token-not-accepted", "The pool accepts no provisioning tokens", "Set grants.token in pool.toml, or let the node attest.";
    ATTESTED_NOT_ACCEPTED = FORBIDDEN, Policy, "attested-not-accepted", "The pool grants no config for an attestation", "Set grants.attested in pool.toml.";
    EVIDENCE_REQUIRED = FORBIDDEN, Policy, "evidence-required", "The pool grants no config to unauthenticated clients", "Put attest-node into the node's initramfs, or a provisioning token into its pointer config.";
    CREDENTIAL_MALFORMED = FORBIDDEN, Request, "credential-malformed", "The credential cannot be read", "Use `Authorization: Bearer TICKET-OR-TOKEN`, or `?token=TOKEN`, once.";
    CREDENTIAL_AMBIGUOUS = FORBIDDEN, Request, "credential-ambiguous", "More than one credential was shown", "Show one ticket, or one token, or one client certificate.";
    POOL_UNKNOWN = NOT_FOUND, Request, "pool-unknown", "The pool does not exist", "Name a pool of this gateway in the pointer config.";
    SPEC_VERSION_UNKNOWN = BAD_REQUEST, Request, "spec-version-unknown", "The version of Ignition's config specification does not exist", "Boot an image whose Ignition reads spec 2.2, or any 3.x.";
    SPEC_VERSION_TOO_OLD = NOT_ACCEPTABLE, Policy, "spec-version-too-old", "The pool's config cannot be expressed in the spec version that the node's Ignition reads", "Boot a newer image, or remove what that version does not support from the pool's config; `attest-gateway check` lists it.";
    BODY_TOO_LARGE = PAYLOAD_TOO_LARGE, Request, "body-too-large", "The request is too large", "Use an attest-node of the gateway's release.";
    NO_SUCH_PATH = NOT_FOUND, Request, "no-such-path", "The path does not exist", "See docs/reference/protocol.md for the paths of this API.";
    NO_SUCH_METHOD = METHOD_NOT_ALLOWED, Request, "no-such-method", "The path does not support the method", "See docs/reference/protocol.md for the methods of this API.";
    REPORTS_OFF = FORBIDDEN, Request, "reports-off", "The gateway takes no reports of failed boots", "Read the failure on the node's console, or set reports = \"on\" in gateway.toml.";
    REPORT_PROOF_INVALID = FORBIDDEN, Request, "report-proof-invalid", "The proof of the attestation does not hold", "attest-node sends the report again without the proof, so that it counts as unverified. If this repeats, the node's requests reach gateways that do not share their seal, or its keys were dropped.";
    CLIENT_GONE = REQUEST_TIMEOUT, Gateway, "client-gone", "The client hung up before the answer", "Nothing: no config was sent, and no use of a ticket or token was spent. If this repeats, the gateway is too slow: check its CPU, its disk and limits.request_seconds.";
    CLOUD_UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "cloud-unavailable", "The gateway cannot verify this kind of evidence now", "attest-node retries by itself. If this continues, the gateway's log names the cloud's server that does not answer.";
    MACHINE_PENDING = SERVICE_UNAVAILABLE, Gateway, "machine-pending", "No Machine object of the cluster names this machine yet", "attest-node retries by itself. If the machine is finally refused, this cluster has not created it, or its Machine object has no providerID.";
    ANSWER_PENDING = SERVICE_UNAVAILABLE, Gateway, "answer-pending", "The machine waits for an administrator's answer", "attest-node retries by itself, for as long as the pool allows. List the questions with `attest-gateway waiting list`, then run `attest-gateway waiting accept` or `attest-gateway waiting refuse`.";
    KUBELET_CA_PENDING = SERVICE_UNAVAILABLE, Gateway, "kubelet-ca-pending", "The gateway has not read the CAs of kubelets' certificates from the cluster yet", "Retry in a moment. If this continues, the gateway's log says why the cluster's API does not answer: cluster.client_ca.";
    MACHINES_UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "machines-unavailable", "The gateway does not know now which machines the cluster has created", "attest-node retries by itself. If this continues, the gateway's log says why the cluster's API does not answer.";
    UNAVAILABLE = SERVICE_UNAVAILABLE, Gateway, "unavailable", "The gateway cannot answer now", "Nodes retry by themselves; the gateway's log has the reason.";
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
    pub fn from_reject(reject: &Reject) -> Self {
        let advice = reject.advice();
        Self {
            status: status_of_evidence(advice),
            by: decided_by(advice.code),
            advice,
        }
    }
}

/// Returns the status of the answer to evidence that is refused with this code.
#[must_use]
pub fn status_of_evidence(advice: Advice) -> u16 {
    match advice {
        MALFORMED_REQUEST | TPM_MALFORMED | EVIDENCE_INCOMPLETE => BAD_REQUEST,
        _ => FORBIDDEN,
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
    fn each_refusal_code_names_its_decision_source() {
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
