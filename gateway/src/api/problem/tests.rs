//! Messages to the node for each refusal that the gateway decides itself. `attest/tests/refusals.rs` has the others.

use attest::{Reject, TpmEvidenceError};
use attest_certificates::kubelet::WrongPool;
use attest_ignition::{Inexpressible, SpecVersion};
use attest_machines::enrolment::EnrolmentError;
use attest_machines::instances::{InstanceError, InstanceRecord};
use attest_machines::revocations::{Revocation, RevocationError};

use super::*;
use crate::credentials::kubelet::MemberError;
use crate::credentials::tokens::TokenError;

const MARK: &str = "for-the-administrator";

/// Checks that the record has `MARK`, and the messages to the node do not. Values that the node has shown may be in both.
#[track_caller]
fn check(refusal: impl Into<Refusal>, code: &str) {
    let refusal = refusal.into();
    assert_eq!(refusal.code(), code);
    assert!(refusal.detail().contains(MARK), "the record: {}", refusal.detail());
    assert!(!refusal.message().contains(MARK), "the node: {}", refusal.message());
    assert!(!refusal.next_step().contains(MARK), "the node: {}", refusal.next_step());
}

fn mark() -> String {
    MARK.to_owned()
}

fn own() -> String {
    "own".to_owned()
}

#[test]
fn problem_documents_withhold_administrator_details() {
    // The match in each `From` names every variant: a new one has to say what may be told.
    check(
        EnrolmentError::NameTaken {
            name: own(),
            owner: mark(),
            claimant: own(),
        },
        "node-name-taken",
    );
    check(
        RevocationError::Revoked {
            who: mark(),
            revocation: Revocation {
                at: 0,
                reason: Some(mark()),
                with: std::iter::once(mark()).collect(),
            },
        },
        "node-revoked",
    );
    let first = InstanceRecord {
        holder: mark(),
        at: 0,
        peer: mark(),
    };
    check(
        InstanceError::Claimed {
            instance: own(),
            first,
            claimant: own(),
        },
        "instance-claimed",
    );
    check(
        &Inexpressible {
            version: SpecVersion::V2_2,
            place: mark(),
            problem: mark(),
        },
        "spec-version-too-old",
    );
    check(
        MemberError::from(WrongPool {
            name: own(),
            pool: own(),
            names: vec![mark()],
        }),
        "kubelet-wrong-pool",
    );
    check(
        TokenError::WrongPool {
            name: mark(),
            token: mark(),
            asked: own(),
        },
        "token-wrong-pool",
    );
    check(
        TokenError::WrongNetwork {
            name: mark(),
            token: mark(),
            peer: std::net::Ipv4Addr::LOCALHOST.into(),
        },
        "token-wrong-network",
    );
}

#[test]
fn attack_32_pcr_mismatch_withholds_the_accepted_digests() {
    let mismatch = TpmEvidenceError::PcrMismatch {
        index: 4,
        bank: attest::HashAlg::Sha256,
        quoted: own(),
        accepted: attest::Withheld::from_text(MARK),
    };
    check(Reject::from(mismatch), "pcr-mismatch");
}
