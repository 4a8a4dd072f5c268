//! What a line of the attestation log says.

use std::collections::BTreeSet;

use attest::protocol::{GATEWAY_UNREACHABLE, HELD_TOO_LONG, TICKET_UNDELIVERABLE};
use attest::{Claims, Kind};
use attest_ignition::SpecVersion;
use serde::{Deserialize, Serialize};

use super::basis::Basis;
use super::grants::{ConfigSet, Grants};
use super::store_position::StorePosition;
use super::ticket_use::Use;
use super::would_refuse::WouldRefuse;

/// The schema's version.
pub(super) const VERSION: u32 = 1;
/// Bytes of a decision's id, which is hexadecimal.
const ID_BYTES: usize = 16;

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Whether a node gets a challenge. Only refusals are recorded: a challenge by itself gives nothing away.
    Challenge,
    /// Whether evidence earns a ticket.
    Evidence,
    /// Whether a config is served, and which.
    Config,
}

/// How it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Evidence holds.
    Trusted,
    /// A config was served.
    Served,
    /// Nothing was given.
    Refused,
}

/// What a decision came from: how far it can be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// What was shown, held against what the record names: it comes out the same again.
    Evidence,
    /// What the store knows: what was used up, to whom a name or an instance belongs, who is revoked. What was shown held.
    Store,
    /// What the pool gives for that kind of proof. What was shown held.
    Policy,
    /// The request itself: what was shown was not looked at.
    Request,
    /// The gateway: nobody waited for the answer any longer. What was shown held.
    Gateway,
}

/// What the node showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// Evidence with a TPM's.
    Tpm,
    /// Evidence of a cloud's, without a TPM's.
    Cloud,
    Ticket,
    /// A provisioning token.
    Token,
    /// A kubelet's client certificate.
    Kubelet,
    Nothing,
    /// Something that cannot be read.
    Unreadable,
}

/// One decision. No ticket, token or other secret is ever part of it.
/// `C` and `B` are what a reader wants of claims and basis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record<C = Claims, B = Basis> {
    /// The schema's version: 1.
    pub v: u32,
    /// When, RFC 3339.
    pub time: String,
    /// When, seconds since 1970: the time that verification was given.
    pub at: u64,
    /// Id of the decision: what a ticket's use refers to.
    pub id: String,
    /// What was decided.
    pub decision: Decision,
    /// How.
    pub verdict: Verdict,
    /// The node's address.
    pub peer: String,
    /// The pool asked for.
    pub pool: String,
    /// What the node showed.
    pub shown: Shown,
    /// The kinds of evidence that were shown, or asked for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<Kind>,
    /// The identity, as far as it is known. Proven only if the verdict is not `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Which instance of a cloud it is, if that is known and is not the identity. Proven likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The node's or the token's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The stable code of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What it came from.
    pub decided_by: DecidedBy,
    /// Why, for a person.
    pub reason: String,
    /// What it earned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<ConfigSet>,
    /// SHA-256 of the config served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
    /// The spec version it was served in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_version: Option<SpecVersion>,
    /// What the pool gave for each kind of proof at that time; not there where nothing was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants: Option<Grants>,
    /// What the ticket is good for that was earned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketTerms>,
    /// For a ticket's use: the decision that earned it, and the use's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earned_by: Option<String>,
    /// Which use of the ticket or token this was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_number: Option<u32>,
    /// Whether the node has made this use before: it is one node, and one use. Not there if it has not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Of a ticket's use after it had expired: how long after, seconds. It was not used before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_seconds: Option<u64>,
    /// Of a decision that was recorded late, because its gateway ended or could not write before: whether the node has got the answer. Its evidence was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_late: Option<RecordedLate>,
    /// Why the node says that it shows nothing, or less than it could. Its claim: anybody can send it, and it decides nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_attested: Option<NotAttested>,
    /// `User-Agent` of the node, unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// The CAs that the node's pointer says it carries, by the first 16 digits of their fingerprints, as far as the gateway knows them.
    /// Unverified; not there if the pointer says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer_authorities: Option<Vec<String>>,
    /// Of a refusal for what was booted: what the machine had in that place when it was trusted last, and until when. The store's word: it decides
    /// nothing, and no replay gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub booted_before: Option<String>,
    /// What an administrator should look into although it was not refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// Of evidence that is trusted by a pool that observes: what would have been refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<WouldRefuse>,
    /// What was proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<C>,
    /// Everything that the decision was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<B>,
    /// Whether the administrator, or the store, knows the machine that is refused: then it is recorded, however often. Not written.
    #[serde(skip)]
    pub known: bool,
}

/// Whether the node has got the answer to a decision that was recorded late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedLate {
    /// The node has not got it.
    Unanswered,
    /// That stands in lines that are missing, or in another gateway's log.
    Unknown,
}

/// A new decision's id: 128 random bits. `None` if the system's random generator fails.
#[must_use]
pub fn decision_id() -> Option<String> {
    let mut id = [0; ID_BYTES];
    aws_lc_rs::rand::fill(&mut id).ok()?;
    Some(data_encoding::HEXLOWER.encode(&id))
}

impl<C, B> Record<C, B> {
    /// Says that it is decided at this time, seconds since 1970.
    pub fn decide_at(&mut self, at: u64) {
        self.time = attest_system::clock::rfc3339(at);
        self.at = at;
    }

    /// Which use of a ticket or token it is, if it is one.
    #[must_use]
    pub fn used(&self) -> Option<Use> {
        self.use_number.map(|number| Use {
            number,
            again: self.again,
            late_seconds: self.late_seconds,
        })
    }

    /// A refusal of nobody for nothing; the rest is filled in by whoever decides.
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
            shown: Shown::Nothing,
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
            user_agent: None,
            pointer_authorities: None,
            booted_before: None,
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
pub(super) struct Line<'r, T> {
    #[serde(flatten)]
    pub(super) record: &'r T,
    /// How far the store had come, so that an older one in its place is noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<StorePosition>,
}

/// What a node says of why it has not attested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotAttested {
    /// A stable code.
    pub code: String,
    /// The id of the decision by which it was refused, if it says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
}

impl NotAttested {
    /// Reads what the node says: one of `codes`, and perhaps an id after a blank. What is no code says nothing; what is no id is none.
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

    /// What is to be said of a node that was refused; of the others there are alerts.
    pub(super) fn said(&self) -> Option<String> {
        let Self { code, decision } = self;
        if WAITED.contains(&code.as_str()) {
            return None;
        }
        let decision = decision.as_ref().map(|id| format!(" (decision {id})")).unwrap_or_default();
        Some(format!("; this node says it was refused: {code}{decision}"))
    }
}

/// Codes that no refusal has: the node has waited in vain, or could not be given a ticket.
pub const WAITED: [&str; 3] = [HELD_TOO_LONG, GATEWAY_UNREACHABLE, TICKET_UNDELIVERABLE];

/// How often and how long a ticket can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketTerms {
    /// The last second at which it is good, since 1970.
    pub expires: u64,
    pub uses: u32,
    /// How long after that it is good if it was not used before, seconds. Not there where it is not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late_seconds: u64,
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
    fn what_a_node_says_is_a_code_that_there_is_and_perhaps_an_id() {
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
