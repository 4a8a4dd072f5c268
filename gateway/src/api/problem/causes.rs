//! Conversion of other modules' errors into refusals, with the part that the node may know.

use attest::Reject;
use attest_certificates::kubelet::{KubeletError, WrongPool};
use attest_ignition::Inexpressible;
use attest_log::codes::{
    CHALLENGE_INVALID, CHALLENGE_SPENT, CLOUD_UNAVAILABLE, Code, INSTANCE_CLAIMED, KUBELET_CERTIFICATE_EXPIRED,
    KUBELET_CERTIFICATE_INVALID, KUBELET_CERTIFICATE_NOT_A_NODE, KUBELET_WRONG_POOL, MACHINES_UNAVAILABLE, NODE_NAME_TAKEN, NODE_REVOKED,
    REPORT_PROOF_INVALID, SPEC_VERSION_TOO_OLD, TICKET_CONFIG_CHANGED, TICKET_EXPIRED, TICKET_INVALID, TICKET_SPENT, TICKET_WITHDRAWN,
    TICKET_WRONG_POOL, TOKEN_EXPIRED, TOKEN_INVALID, TOKEN_SPENT, TOKEN_WRONG_NETWORK, TOKEN_WRONG_POOL, TPM_COUNTERS_DECREASED,
    TPM_EVENT_LOG_CHANGED, TPM_FIRMWARE_DOWNGRADED,
};
use attest_log::{Acceptable, command_for, unknown_ek};
use attest_machines::enrolment::EnrolmentError;
use attest_machines::history::{HistoryFinding, HistoryRefusal};
use attest_machines::instances::InstanceError;
use attest_machines::objects::MachinesUnknown;
use attest_machines::revocations::RevocationError;
use attest_store::StoreError;

use super::Refusal;
use crate::admission::TooBusy;
use crate::cloud::CloudUnavailable;
use crate::credentials::challenges::ChallengeError;
use crate::credentials::kubelet::MemberError;
use crate::credentials::report_proofs::ReportProofError;
use crate::credentials::tickets::TicketError;
use crate::credentials::tokens::TokenError;

impl From<TooBusy> for Refusal {
    fn from(_: TooBusy) -> Self {
        Self::unavailable()
    }
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Self {
        let code = Code::from_reject(&reject);
        let mut refusal = Self::guarded(code, reject.client_message(), reject.detail());
        if let Some(command) = command_for(&reject) {
            refusal = refusal.with_command(command);
        }
        match unknown_ek(&reject) {
            Some(ek) => refusal.with_acceptable(Acceptable::Ek(ek.clone())),
            None => refusal,
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::because(&error)
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

impl From<ReportProofError> for Refusal {
    fn from(error: ReportProofError) -> Self {
        Self::new(REPORT_PROOF_INVALID, error)
    }
}

impl From<EnrolmentError> for Refusal {
    fn from(error: EnrolmentError) -> Self {
        let acceptable = |name: &String, claimant: &String| Acceptable::Name {
            name: name.clone(),
            identity: claimant.clone(),
        };
        match &error {
            EnrolmentError::NameTaken { name, claimant, .. } => {
                // Which machine has the name is for the administrator to know.
                let refusal = Self::guarded(NODE_NAME_TAKEN, format!("the name {name} belongs to another machine"), &error);
                refusal.with_acceptable(acceptable(name, claimant)).with_command(format!(
                    "If this machine replaces the other one: `attest-gateway node forget {name}`, then boot again."
                ))
            }
            EnrolmentError::OtherName {
                asked,
                claimant,
                pools: Some(pools),
                ..
            } => {
                let pools: String = pools.iter().flat_map(|pool| [" --pool ", pool]).collect();
                let refusal = Self::new(NODE_NAME_TAKEN, &error).with_acceptable(acceptable(asked, claimant));
                refusal.with_command(format!(
                    "The allowlist gives this machine its name. If it should be {asked}: `attest-gateway ek add EK --name {asked}{pools} --replace`, with the EK's digest from the gateway's log; then boot again."
                ))
            }
            EnrolmentError::OtherName {
                given,
                asked,
                claimant,
                pools: None,
            } => {
                let refusal = Self::new(NODE_NAME_TAKEN, &error).with_acceptable(acceptable(asked, claimant));
                refusal.with_command(format!(
                    "If this machine should get another name: `attest-gateway node forget {given}`, then boot again. If it is an instance that was imported with its name, remove its entry first: `attest-gateway ek remove INSTANCE --leave-to-roots`."
                ))
            }
            EnrolmentError::Store(error) => Self::because(error),
        }
    }
}

impl From<HistoryRefusal> for Refusal {
    fn from(refusal: HistoryRefusal) -> Self {
        let HistoryRefusal { tpm, finding } = &refusal;
        let (code, told, if_meant) = match finding {
            HistoryFinding::CountersBack { .. } => (
                TPM_COUNTERS_DECREASED,
                "this TPM's counters went backwards",
                "the TPM was cleared, or this virtual machine was rolled back",
            ),
            HistoryFinding::FirmwareBack { .. } => (
                TPM_FIRMWARE_DOWNGRADED,
                "this TPM's firmware was downgraded",
                "the TPM's firmware was downgraded on purpose",
            ),
            HistoryFinding::AnotherLog { .. } => (
                TPM_EVENT_LOG_CHANGED,
                "the event log differs from the last trusted boot, although the PCRs match",
                "the machine boots the same files from another device",
            ),
        };
        // How far it had come, and when, is for the administrator to know.
        let acceptable = Acceptable::History {
            tpm: tpm.clone(),
            change: finding.change(),
        };
        Self::guarded(code, told, &refusal).with_acceptable(acceptable).with_command(format!(
            "If {if_meant}: `attest-gateway node forget-history {tpm}`, then boot again. Otherwise find the cause first: another TPM may answer in its place."
        ))
    }
}

impl From<RevocationError> for Refusal {
    fn from(error: RevocationError) -> Self {
        match &error {
            // Why, and by which of its names, is for the administrator to know: the asker may have said no more than another's name.
            RevocationError::Revoked { .. } => Self::guarded(NODE_REVOKED, "this machine is revoked", &error),
            RevocationError::Store(error) => Self::because(error),
        }
    }
}

impl From<CloudUnavailable> for Refusal {
    fn from(error: CloudUnavailable) -> Self {
        tracing::warn!(%error, "cannot verify cloud evidence; answering 503");
        Self::new(
            CLOUD_UNAVAILABLE,
            "the keys or certificates that verify this evidence cannot be fetched now",
        )
    }
}

impl From<MachinesUnknown> for Refusal {
    fn from(error: MachinesUnknown) -> Self {
        tracing::warn!(%error, "cannot determine the cluster's machines; answering 503 with Retry-After");
        Self::guarded(
            MACHINES_UNAVAILABLE,
            "the gateway does not know now which machines the cluster has created",
            error,
        )
    }
}

impl From<InstanceError> for Refusal {
    fn from(error: InstanceError) -> Self {
        match &error {
            InstanceError::Claimed { instance, .. } => {
                // Who came first is for the administrator to know.
                Self::guarded(INSTANCE_CLAIMED, format!("{instance} belongs to another claimant"), &error).with_command(format!(
                    "If this node was provisioned again, or its console said that its claim secret could not be kept: `attest-gateway node release {instance}`, then boot again. Otherwise someone else presents this machine's identity."
                ))
            }
            InstanceError::Store(error) => Self::because(error),
        }
    }
}

impl From<&Inexpressible> for Refusal {
    fn from(error: &Inexpressible) -> Self {
        // What the config is about is not everybody's business.
        let told = format!("the pool's config cannot be expressed in spec {}", error.version);
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
            TicketError::ConfigChanged { .. } => TICKET_CONFIG_CHANGED,
            TicketError::SpecVersion { .. } => SPEC_VERSION_TOO_OLD,
            TicketError::Revocation(error) => return error.into(),
            TicketError::MachinesUnknown(error) => return error.into(),
            TicketError::Store(error) => return Self::because(&error),
        };
        Self::new(code, error)
    }
}

impl From<KubeletError> for Refusal {
    fn from(error: KubeletError) -> Self {
        let own = [
            KUBELET_CERTIFICATE_NOT_A_NODE,
            KUBELET_CERTIFICATE_EXPIRED,
            KUBELET_CERTIFICATE_INVALID,
        ];
        let code = own.into_iter().find(|own| own.advice.code == error.code());
        Self::new(code.unwrap_or(KUBELET_CERTIFICATE_INVALID), error)
    }
}

impl From<MemberError> for Refusal {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::WrongPool(WrongPool { ref name, ref pool, .. }) => {
                // Which nodes a pool has is for the administrator to know.
                Self::guarded(KUBELET_WRONG_POOL, format!("node {name} does not belong to pool {pool}"), &error)
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
                Self::guarded(TOKEN_WRONG_NETWORK, format!("the token may not be used from {peer}"), &error)
            }
            TokenError::Store(error) => Self::because(error),
        }
    }
}
