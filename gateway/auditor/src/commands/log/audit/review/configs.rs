//! Configs that were served or refused: what was given is what was earned.

use attest_audit::replay::{ReplayError, replay_kubelet};
use attest_certificates::kubelet::WrongPool;
use attest_log::{Blobs, DecidedBy, ShownEvidence, TicketUse, Verdict, served_for};

use super::{Differences, ReviewStatus, ReviewedDecision, refused_by_others};

/// Refusals of client certificates that no CA of the cluster has signed: such a chain is not kept.
const UNSIGNED: [&str; 2] = ["kubelet-certificate-invalid", "kubelet-certificate-expired"];

impl ReviewedDecision {
    pub(super) fn config(&self, differences: &mut Differences) -> (String, ReviewStatus) {
        differences.absent("claims", self.claims.as_ref());
        differences.absent("basis", self.basis.as_ref());
        differences.absent("ticket", self.ticket.as_ref());
        differences.absent("instance", self.instance.as_ref());
        if self.verdict == Verdict::Refused {
            let code = self.code.as_deref().unwrap_or_default();
            let family = match self.shown {
                ShownEvidence::Ticket => ["ticket-", "node-", "attested-", "spec-version-"].as_slice(),
                ShownEvidence::Token => &["token-", "spec-version-"],
                ShownEvidence::Nothing => &["evidence-required", "spec-version-"],
                ShownEvidence::Unreadable => &["credential-", "spec-version-"],
                _ => &[],
            };
            // Whatever was shown, nobody may have waited for the answer.
            if self.by() != DecidedBy::Gateway && !family.iter().any(|begin| code.starts_with(begin)) {
                differences.add(format!("code is {code:?}, which does not fit the presented credential"));
            }
            return (self.recorded(), ReviewStatus::Whole);
        }
        differences.check_present("config_sha256", self.config_sha256.as_ref());
        differences.check_present("spec_version", self.spec_version.as_ref());
        let number = self.use_number.unwrap_or_default();
        match self.shown {
            ShownEvidence::Ticket => {}
            ShownEvidence::Token => {
                differences.absent("identity", self.identity.as_ref());
                differences.absent("earned_by", self.earned_by.as_ref());
                differences.check_present("name", self.name.as_ref());
                if number == 0 {
                    differences.add("use_number is missing");
                }
            }
            ShownEvidence::Nothing => {
                differences.absent("identity", self.identity.as_ref());
                differences.absent("name", self.name.as_ref());
                differences.absent("earned_by", self.earned_by.as_ref());
                differences.absent("use_number", self.use_number.as_ref());
            }
            _ => {
                differences.add("no config is served for the presented credential");
                return (self.recorded(), ReviewStatus::Whole);
            }
        }
        let made = TicketUse {
            number,
            is_repeated: self.again,
            late_seconds: self.late_seconds,
        };
        let reason = served_for(self.shown, Some(made));
        differences.same("reason", &self.reason, &reason);
        (self.recorded(), ReviewStatus::Whole)
    }

    /// A config that was asked for by a client certificate.
    pub(super) fn certificate(&self, text: &str, blobs: &Blobs, differences: &mut Differences) -> (String, ReviewStatus) {
        let refused = self.verdict == Verdict::Refused;
        let chain = self.basis.as_ref().map(|basis| basis.client_chain.as_slice()).unwrap_or_default();
        if refused && chain.is_empty() && self.code.as_deref().is_some_and(|code| UNSIGNED.contains(&code)) {
            return ("unread".to_owned(), ReviewStatus::Unread);
        }
        let leaf = self.basis.as_ref().and_then(|basis| basis.client_certificate_sha256.as_ref());
        differences.same("client_certificate_sha256", &leaf, &chain.first());
        let (again, same) = match replay_kubelet(text, blobs) {
            Ok(verified) => {
                differences.same("name", &self.name.as_deref(), &Some(verified.name()));
                ("served".to_owned(), !refused || refused_by_others(self.by()))
            }
            Err(error) => {
                let code = match error {
                    ReplayError::Kubelet(error) => error.code().to_owned(),
                    ReplayError::WrongPool(_) => WrongPool::CODE.to_owned(),
                    error => format!("cannot: {error}"),
                };
                let same = refused && self.code.as_ref() == Some(&code);
                // Names need not be given where the pool gives nothing.
                let policy = self.code.as_deref() == Some("kubelet-not-accepted") && code == "kubelet-wrong-pool";
                (code, same || policy)
            }
        };
        if !same {
            differences.add(format!("it was decided {}, and comes out as {again}", self.recorded()));
        }
        (again, ReviewStatus::Whole)
    }
}
