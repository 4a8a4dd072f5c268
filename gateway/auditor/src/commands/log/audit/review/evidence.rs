//! Review of decisions about evidence: each is decided again.

use attest::{AttestationResult, Kind, NodeIdentity, Reject};
use attest_audit::replay::{ReplayError, replay};
use attest_log::{Basis, Blobs, Decision, ShownEvidence, TICKET_LATE_LIMIT_SECONDS, Verdict, WouldRefuse, refused_for, trusted_by};

use super::{Differences, ReviewStatus, ReviewedDecision, TICKET_LIMIT_SECONDS, refused_by_others};

/// Refusals of evidence that was not looked at, because its challenge was not: nothing of it is kept.
const UNREAD: [&str; 2] = ["challenge-invalid", "challenge-expired"];

/// The longest that a challenge can be answered, whatever gateway.toml says, in seconds.
const CHALLENGE_LIMIT_SECONDS: u64 = 900;

impl ReviewedDecision {
    pub(super) fn challenge(&self, differences: &mut Differences) -> (String, ReviewStatus) {
        for (field, there) in [
            ("claims", self.claims.is_some()),
            ("earned_by", self.earned_by.is_some()),
            ("use_number", self.use_number.is_some()),
        ] {
            if there {
                differences.add(format!("{field} does not belong there"));
            }
        }
        if self.basis.as_ref().is_none_or(|basis| basis.digests.is_none()) {
            differences.add("basis.digests is missing");
        }
        ("by digest".to_owned(), ReviewStatus::ByDigest)
    }

    pub(super) fn evidence(&self, text: &str, blobs: &Blobs, differences: &mut Differences) -> (String, ReviewStatus) {
        differences.absent("earned_by", self.earned_by.as_ref());
        differences.absent("config_sha256", self.config_sha256.as_ref());
        differences.absent("spec_version", self.spec_version.as_ref());
        let refused = self.verdict == Verdict::Refused;
        let unread = self.code.as_deref().is_some_and(|code| UNREAD.contains(&code));
        match &self.basis {
            None if refused && unread => {
                differences.same("shown", &self.shown, &ShownEvidence::Unreadable);
                differences.same("pool", &self.pool.as_str(), &"");
                differences.absent("identity", self.identity.as_ref());
                differences.absent("name", self.name.as_ref());
                differences.absent("claims", self.claims.as_ref());
                return ("unread".to_owned(), ReviewStatus::Unread);
            }
            None if self.recorded_late.is_some() && self.verdict == Verdict::Trusted => {
                self.check_ticket(differences);
                return ("not kept".to_owned(), ReviewStatus::Late);
            }
            // Evidence of a rehearsal is left out if whoever reads it could claim the instance.
            Some(basis)
                if (refused || self.decision == Decision::Rehearsal) && !unread && basis.digests.is_some() && basis.evidence.is_none() =>
            {
                return ("by digest".to_owned(), ReviewStatus::ByDigest);
            }
            _ => {}
        }
        if let Some(basis) = &self.basis {
            self.check_challenge(basis, differences);
        }
        if self.recorded_late.is_some() {
            differences.add("recorded_late does not belong there");
        }
        let (again, holds) = match replay(text, blobs) {
            Ok(result) => {
                self.check_result(&result, differences);
                (
                    "trusted".to_owned(),
                    refused_by_others(self.by()) || self.verdict == Verdict::Trusted,
                )
            }
            // That the token was none is what the store said, and the last that is looked at.
            Err(ReplayError::Reject(Reject::TokenMissing)) if self.code.as_deref() == Some("token-invalid") => {
                ("token-invalid".to_owned(), true)
            }
            Err(ReplayError::Reject(reject)) => {
                let code = reject.code().to_owned();
                let same = refused && self.code.as_ref() == Some(&code);
                if same {
                    differences.same("reason", &self.reason, &refused_for(&reject));
                }
                (code, same)
            }
            Err(error) => (format!("cannot: {error}"), false),
        };
        if !holds {
            differences.add(format!("it was decided {}, and comes out as {again}", self.recorded()));
        }
        (again, ReviewStatus::Whole)
    }

    /// Checks that the record describes the node for which the challenge was issued.
    fn check_challenge(&self, basis: &Basis, differences: &mut Differences) {
        let Some(challenge) = &basis.challenge else { return };
        let subject = &challenge.subject;
        differences.same("pool", &self.pool, &challenge.pool);
        if challenge.is_rehearsal() != (self.decision == Decision::Rehearsal) {
            differences.add("its challenge has another purpose");
        }
        differences.same("kinds", &self.kinds, &subject.kinds());
        let shown = if subject.tpm.is_some() {
            ShownEvidence::Tpm
        } else {
            ShownEvidence::Cloud
        };
        differences.same("shown", &self.shown, &shown);
        let lifetime = challenge.expires.checked_sub(challenge.issued);
        if self.at > challenge.expires || lifetime.is_none_or(|lifetime| lifetime > CHALLENGE_LIMIT_SECONDS) {
            differences.add(format!(
                "it was decided at {}, but its challenge was valid from {} to {}",
                self.at, challenge.issued, challenge.expires
            ));
        }
        // The one who made it may have been another gateway.
        if let Some(early) = challenge.issued.checked_sub(self.at).filter(|early| *early > 0) {
            differences.warn(format!(
                "the evidence was decided {early} s before its challenge was created: clocks differ, or one was set back"
            ));
        }
        let given = basis.allowlisted_name.as_ref();
        // The administrator's name is found late, and what comes after it can still refuse.
        let found = self.verdict == Verdict::Refused && given.is_some() && self.name.as_ref() == given;
        if challenge.name.is_some() || (self.verdict == Verdict::Refused && !found) {
            differences.same("name", &self.name, &challenge.name);
        } else {
            differences.same("name", &self.name.as_ref(), &given);
        }
        let token = self.decision == Decision::Evidence && self.verdict == Verdict::Trusted && self.kinds.contains(&Kind::Token);
        if self.use_number.is_some() != token {
            differences.add("use_number is required exactly if a token comes with the evidence");
        }
        if self.claims.is_none() {
            let ek = subject.tpm.as_ref().and_then(|tpm| tpm.attester.ek_digest().ok());
            differences.same("identity", &self.identity, &ek.map(|ek| NodeIdentity::from_ek(ek).to_string()));
            differences.absent("instance", self.instance.as_ref());
        }
    }

    /// Checks that the facts in the record are those that the evidence proves.
    fn check_result(&self, result: &AttestationResult, differences: &mut Differences) {
        let claims = result.claims();
        let identity = claims.identity();
        differences.same("identity", &self.identity, &Some(identity.to_string()));
        let instance = claims.instance().filter(|instance| *instance != identity);
        differences.same("instance", &self.instance, &instance.map(ToString::to_string));
        let proven = serde_json::to_value(claims).unwrap_or_default();
        if self.claims.as_ref() != Some(&proven) {
            differences.add("claims differ from those that the evidence proves");
        }
        if self.verdict == Verdict::Trusted {
            differences.same("would_refuse", &self.would_refuse, &WouldRefuse::all_of(result));
            differences.same("reason", &self.reason, &trusted_by(result));
            self.check_ticket(differences);
        }
    }

    fn check_ticket(&self, differences: &mut Differences) {
        match &self.ticket {
            Some(_) if self.decision == Decision::Rehearsal => differences.add("a rehearsal gives no ticket"),
            Some(ticket)
                if ticket.expires >= self.at
                    && ticket.expires - self.at <= TICKET_LIMIT_SECONDS
                    && ticket.late_seconds <= TICKET_LATE_LIMIT_SECONDS
                    && ticket.uses > 0 => {}
            Some(_) => differences.add("the ticket's terms are impossible"),
            None if self.decision == Decision::Rehearsal => {}
            None => differences.add("ticket is missing"),
        }
    }
}
