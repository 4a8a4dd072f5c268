//! Records: the contents of the attestation log's lines about decisions.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest::protocol::{GATEWAY_UNREACHABLE, RETRY_LIMIT_EXCEEDED, TICKET_UNDELIVERABLE};
use attest::{Claims, Kind};
use attest_ignition::SpecVersion;
use serde::{Deserialize, Serialize};

use super::acceptable::Acceptable;
use super::basis::Basis;
use super::grants::{ConfigSet, Grants};
use super::store_position::StorePosition;
use super::ticket_use::TicketUse;
use super::would_refuse::WouldRefuse;

/// Version of the schema of a line.
pub const VERSION: u32 = 1;
/// Bytes of a decision's id, which is hexadecimal.
const ID_BYTES: usize = 16;

/// Kind of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Decision on giving a node a challenge. Only refusals are recorded: a challenge by itself gives nothing away.
    Challenge,
    /// Decision on giving a ticket for evidence.
    Evidence,
    /// Decision on serving a config, and on which.
    Config,
    /// Decision on giving a ticket for evidence, or on a refused challenge, in a rehearsal: nothing was given or kept, whatever the verdict.
    Rehearsal,
}

/// Outcome of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The evidence was verified and accepted.
    Trusted,
    /// A config was served.
    Served,
    /// The node got nothing.
    Refused,
}

/// Origin of a decision, by which it is known how far it can be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// Verification of the evidence with the inputs in the record: made again, it has the same result.
    Evidence,
    /// State of the store: used credentials, owners of names and instances, revocations. The evidence or credential was valid.
    Store,
    /// Grants of the pool for that kind of proof. The evidence or credential was valid.
    Policy,
    /// The request itself: the evidence or credential was not looked at.
    Request,
    /// State of the gateway: no client waited for the answer by then. The evidence or credential was valid.
    Gateway,
}

/// Kind of proof that the node showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownEvidence {
    /// Evidence with that of a TPM.
    Tpm,
    /// Evidence of a cloud, without that of a TPM.
    Cloud,
    Ticket,
    /// Provisioning token, a bearer credential.
    Token,
    /// A kubelet's client certificate.
    Kubelet,
    Nothing,
    /// Something that cannot be read.
    Unreadable,
}

/// A decision. No ticket, token or other secret is ever part of it. Readers choose the types of claims (`C`) and basis (`B`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record<C = Arc<Claims>, B = Box<Basis>> {
    /// Version of the schema: 1.
    pub v: u32,
    /// Time of the decision, in RFC 3339.
    pub time: String,
    /// Time of the decision, in seconds since 1970: the time that verification used.
    pub at: u64,
    /// Id of the decision: what a ticket's use refers to.
    pub id: String,
    /// Kind of the decision.
    pub decision: Decision,
    /// Outcome of the decision.
    pub verdict: Verdict,
    /// Address and port of the node.
    pub peer: String,
    /// The pool asked for.
    pub pool: String,
    /// What the node showed.
    pub shown: ShownEvidence,
    /// The kinds of evidence that were shown, or asked for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<Kind>,
    /// The identity, as far as it is known. Proven only if the verdict is not `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Instance of a cloud, if it is known and is not the identity. Proven only if the verdict is not `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The node's or the token's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Stable code of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Origin of the decision.
    pub decided_by: DecidedBy,
    /// Reason in words, for a person.
    pub reason: String,
    /// Config set that it earned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<ConfigSet>,
    /// SHA-256 of the config served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
    /// The spec version it was served in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_version: Option<SpecVersion>,
    /// Grants of the pool for each kind of proof at that time; absent if the node got nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants: Option<Grants>,
    /// Terms of the ticket that was earned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketTerms>,
    /// For a ticket's use: the decision that earned it, and the use's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earned_by: Option<String>,
    /// Number of this use of the ticket or token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_number: Option<u32>,
    /// Set if this is an idempotent retry: the node has made this use before, and it counts once. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Seconds after the ticket had expired, for a use in its grace period. The ticket was not used before it expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_seconds: Option<u64>,
    /// For a decision that was recorded late, because its gateway ended or could not write: whether the node got the answer. Its evidence
    /// was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_late: Option<RecordedLate>,
    /// Reason of the node for showing nothing, or less than it could. It is a claim that any client can send, and decides nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_attested: Option<NotAttested>,
    /// Boot that the node says it is in, by its kernel's boot id. Unverified: it joins records with consoles and journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// `User-Agent` of the node, unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// CAs that the node's pointer claims to carry, by the first 16 digits of their fingerprints, as far as the gateway knows them.
    /// Unverified; absent if the pointer makes no claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer_authorities: Option<Vec<String>>,
    /// For a refusal because of what was booted: what the machine had in that place when it was trusted last, and until when. It comes from
    /// the store: it decides nothing, and no replay reproduces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub booted_before: Option<String>,
    /// The only obstacle of a refused machine, which an administrator may accept. It comes from the pool and the store at that time: no
    /// replay reproduces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptable: Option<Acceptable>,
    /// Things that an administrator should look into although they were not refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// For evidence that is trusted by a pool that observes: reasons for which it would have been refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<WouldRefuse>,
    /// Claims that were proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<C>,
    /// All inputs of the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<B>,
    /// Set if the administrator, or the store, knows the machine that is refused: then it is recorded, however often. Not written.
    #[serde(skip)]
    pub known: bool,
}

/// Knowledge of whether the node got the answer to a decision that was recorded late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedLate {
    /// The node has not got it.
    Unanswered,
    /// Unknown: the lines that would show it are missing, or in another gateway's log.
    Unknown,
}

/// Returns a new decision's id: 128 random bits. `None` if the system's random generator fails.
#[must_use]
pub fn decision_id() -> Option<String> {
    let mut id = [0; ID_BYTES];
    aws_lc_rs::rand::fill(&mut id).ok()?;
    Some(data_encoding::HEXLOWER.encode(&id))
}

impl<C, B> Record<C, B> {
    /// Sets the time of the decision, in seconds since 1970.
    pub fn decide_at(&mut self, at: u64) {
        self.time = attest_system::clock::rfc3339(at);
        self.at = at;
    }

    /// Returns the use of a ticket or token, if it is one.
    #[must_use]
    pub fn used(&self) -> Option<TicketUse> {
        self.use_number.map(|number| TicketUse {
            number,
            is_repeated: self.again,
            late_seconds: self.late_seconds,
        })
    }

    /// Creates a refusal without reason and proof; the caller fills in the rest.
    #[must_use]
    pub fn new(id: String, decision: Decision, at: u64, peer: String, pool: String) -> Self {
        Self {
            v: VERSION,
            time: attest_system::clock::rfc3339(at),
            at,
            id,
            decision,
            verdict: Verdict::Refused,
            peer,
            pool,
            shown: ShownEvidence::Nothing,
            kinds: BTreeSet::new(),
            identity: None,
            instance: None,
            name: None,
            code: None,
            decided_by: DecidedBy::Evidence,
            reason: String::new(),
            grant: None,
            config_sha256: None,
            spec_version: None,
            grants: None,
            ticket: None,
            earned_by: None,
            use_number: None,
            again: false,
            late_seconds: None,
            recorded_late: None,
            not_attested: None,
            boot_id: None,
            user_agent: None,
            pointer_authorities: None,
            booted_before: None,
            acceptable: None,
            alerts: Vec::new(),
            would_refuse: Vec::new(),
            claims: None,
            basis: None,
            known: false,
        }
    }
}

/// A decision or an event as its line has it.
#[derive(Debug, Serialize)]
pub(super) struct ChainedLine<'r, T> {
    #[serde(flatten)]
    pub(super) record: &'r T,
    /// Position of the store, so that an older store in its place is noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<StorePosition>,
}

/// Reason of a node for not attesting, as the node states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotAttested {
    /// Stable code, from a fixed list.
    pub code: String,
    /// Id of the decision by which it was refused, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
}

impl NotAttested {
    /// Parses the node's text: one of `codes`, and optionally an id after a blank. An unknown code yields `None`, and a malformed id is
    /// ignored.
    #[must_use]
    pub fn read(text: &str, codes: impl Fn(&str) -> bool) -> Option<Self> {
        let (code, decision) = text.split_once(' ').unwrap_or((text, ""));
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = decision.len() == 2 * ID_BYTES && decision.bytes().all(digit);
        codes(code).then(|| Self {
            code: code.to_owned(),
            decision: is_id.then(|| decision.to_owned()),
        })
    }

    /// Returns the text about a node that was refused; other cases have alerts.
    pub(super) fn message(&self) -> Option<String> {
        let Self { code, decision } = self;
        if WAITED.contains(&code.as_str()) {
            return None;
        }
        let decision = decision.as_ref().map(|id| format!(" (decision {id})")).unwrap_or_default();
        Some(format!("; this node says it was refused: {code}{decision}"))
    }
}

/// Codes that are not those of refusals: the node has waited in vain, or could not be given a ticket.
pub const WAITED: [&str; 3] = [RETRY_LIMIT_EXCEEDED, GATEWAY_UNREACHABLE, TICKET_UNDELIVERABLE];

/// Terms of a ticket: its uses, its time, and its config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketTerms {
    /// The last second at which it is good, since 1970.
    pub expires: u64,
    pub uses: u32,
    /// Grace period after it, in seconds, in which the ticket is valid if it was not used before. Absent without a grace period.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late_seconds: u64,
    /// SHA-256 of the config that it is for, if the node was told: its Ignition takes no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn node_report_is_a_code_and_optional_id() {
        let id = "0123456789abcdef".repeat(2);
        let read = |text: &str| {
            let said = NotAttested::read(text, |code| code == "quote-signature");
            said.map(|said| (said.code, said.decision))
        };
        let says = |decision: Option<&str>| Some(("quote-signature".to_owned(), decision.map(str::to_owned)));
        assert_eq!(read("quote-signature"), says(None));
        assert_eq!(read(&format!("quote-signature {id}")), says(Some(&id)));
        for no_id in [
            String::new(),
            id.to_uppercase(),
            format!(" {id}"),
            format!("{id} "),
            format!("{id}0"),
            format!("{id} {id}"),
            "g".repeat(32),
            "\u{e4}".repeat(16),
        ] {
            assert_eq!(read(&format!("quote-signature {no_id}")), says(None), "{no_id:?}");
        }
        for no_code in [
            "",
            " ",
            "SECRET",
            "quote-signatur",
            &format!("{id} quote-signature"),
            &format!(" quote-signature {id}"),
        ] {
            assert_eq!(read(no_code), None, "{no_code:?}");
        }
    }
}
