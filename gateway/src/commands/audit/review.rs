//! One line after the other, held against what it was decided from and against the lines before it.

mod acts;
mod configs;
mod differences;
mod evidence;
mod of_nobody;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};

use acts::Acts;
use attest::Kind;
use attest_gateway::api::decided_by;
use attest_log::admin::Act;
use attest_log::{Basis, Blobs, Checkpoint, DecidedBy, Decision, NotAttested, Removal, Shown, TicketTerms, Verdict, WouldRefuse};
use attest_log::{ConfigSet, Grants};
use attest_store::Replacement;
use attest_system::clock::rfc3339;
use differences::Differences;
use serde::Deserialize;
use serde_json::Value;
pub use tickets::Elsewhere;
use tickets::Tickets;

/// The schema's version.
const VERSION: u32 = 1;
/// The longest that a ticket can be good for if it is used in its time, whatever gateway.toml says, in seconds.
const TICKET_LIMIT_SECONDS: u64 = 86_400;

/// Longest id that is remembered: twice as long as those of decisions.
const ID_LIMIT_BYTES: usize = 64;

/// A line of the log, all that can be compared.
#[derive(Debug, Deserialize)]
struct Line {
    v: u32,
    time: String,
    at: u64,
    id: String,
    decision: Decision,
    verdict: Verdict,
    pool: String,
    shown: Shown,
    #[serde(default)]
    kinds: BTreeSet<Kind>,
    identity: Option<String>,
    instance: Option<String>,
    name: Option<String>,
    code: Option<String>,
    decided_by: Option<DecidedBy>,
    reason: String,
    grant: Option<ConfigSet>,
    config_sha256: Option<String>,
    spec_version: Option<String>,
    grants: Option<Grants>,
    ticket: Option<TicketTerms>,
    earned_by: Option<String>,
    use_number: Option<u32>,
    #[serde(default)]
    again: bool,
    late_seconds: Option<u64>,
    counted: Option<u64>,
    accepted_store: Option<Replacement>,
    checkpoint: Option<Checkpoint>,
    admin: Option<Act>,
    removed: Option<Removal>,
    not_attested: Option<NotAttested>,
    #[serde(default)]
    would_refuse: Vec<WouldRefuse>,
    claims: Option<Value>,
    basis: Option<Basis>,
}

/// How far a line could be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Everything that follows from what it holds was compared.
    Whole,
    /// It was refused before anything was proven: there are digests and nothing to judge.
    ByDigest,
    /// What was shown was not looked at, and nothing of it is kept.
    Unread,
    /// It is no decision: the chain's verification says what it is worth.
    OfLog,
    /// It is no decision about a node: what somebody has done is shown.
    Admin,
}

/// What was found about a line.
#[derive(Debug)]
pub struct Review {
    pub id: String,
    pub time: String,
    pub identity: String,
    /// Whether it is about evidence, or a client certificate: what the table shows.
    pub of_proof: bool,
    pub recorded: String,
    pub again: String,
    pub judged: Judged,
    /// What is not as it must be.
    pub differences: Vec<String>,
    /// What may be well, and cannot be told from this log.
    pub warnings: Vec<String>,
    /// What somebody has done, if the line is about that and says it the first time.
    pub act: Option<Act>,
}

/// Reads a log from its beginning.
#[derive(Debug)]
pub struct Reviewer<'b> {
    blobs: &'b Blobs,
    ids: BTreeSet<String>,
    tickets: Tickets,
    /// Attestations that were refused, and by which code.
    refused: BTreeMap<String, String>,
    acts: Acts,
    began: Option<u64>,
    latest: u64,
}

impl<'b> Reviewer<'b> {
    pub const fn new(blobs: &'b Blobs, elsewhere: Elsewhere) -> Self {
        Self {
            blobs,
            ids: BTreeSet::new(),
            tickets: Tickets::new(elsewhere),
            refused: BTreeMap::new(),
            acts: Acts::new(),
            began: None,
            latest: 0,
        }
    }

    /// Remembers what a line has earned, and when that was used first, whenever that comes.
    pub fn foresee(&mut self, text: &str) {
        let Ok(line) = serde_json::from_str::<Line>(text) else { return };
        match (line.decision, line.verdict) {
            (Decision::Evidence, Verdict::Trusted) => self.tickets.earned(&line),
            (Decision::Config, Verdict::Served) if line.shown == Shown::Ticket => self.tickets.first_used(&line),
            _ => {}
        }
    }

    /// The next line.
    ///
    /// # Errors
    /// A line that is none of an attestation log's.
    pub fn review(&mut self, text: &str) -> Result<Review, serde_json::Error> {
        let line: Line = serde_json::from_str(text)?;
        let mut differences = Differences::default();
        let began = *self.began.get_or_insert(line.at);
        differences.same("v", &line.v, &VERSION);
        differences.same("time", &line.time, &rfc3339(line.at));
        if line.id.len() > ID_LIMIT_BYTES {
            differences.say("its id is longer than any");
        } else if !self.ids.insert(line.id.clone()) {
            differences.say("its id is that of an earlier decision");
        }
        if line.at < self.latest {
            differences.warn(format!(
                "it is older than a line before it: {} after {}",
                line.time,
                rfc3339(self.latest)
            ));
        }
        self.latest = self.latest.max(line.at);
        if !line.is_about_nobody() {
            line.check_verdict(&mut differences);
        }
        line.says_its_own(&mut differences);
        let of_certificate = line.decision == Decision::Config && line.shown == Shown::Kubelet;
        let (again, judged) = match line.decision {
            Decision::Evidence => line.evidence(text, self.blobs, &mut differences),
            Decision::Challenge => line.challenge(&mut differences),
            Decision::Counted => line.counted(&mut differences),
            Decision::StoreAccepted => line.store_accepted(&mut differences),
            Decision::Checkpoint => line.checkpoint(text, &mut differences),
            Decision::Admin => line.admin(&mut differences),
            Decision::Removed => line.removed(&mut differences),
            Decision::Config if of_certificate => line.certificate(text, self.blobs, &mut differences),
            Decision::Config => line.config(&mut differences),
        };
        if line.decision == Decision::Config && line.shown == Shown::Ticket {
            self.tickets.first_used(&line);
            self.tickets.check(&line, began, &self.ids, &mut differences);
        }
        let contradicts = line.not_attested.as_ref().and_then(|said| self.contradicts(said));
        differences.warnings.extend(contradicts);
        if matches!(line.decision, Decision::Challenge | Decision::Evidence) && line.verdict == Verdict::Refused {
            self.refused.insert(line.id.clone(), line.recorded());
        }
        if line.decision == Decision::Evidence && line.verdict == Verdict::Trusted {
            self.tickets.earned(&line);
        }
        let act = line.admin.clone().filter(|act| self.acts.is_new(act, &mut differences));
        Ok(Review {
            of_proof: line.decision == Decision::Evidence || of_certificate,
            recorded: line.recorded(),
            again,
            judged,
            id: line.id,
            time: line.time,
            identity: line.identity.unwrap_or_default(),
            differences: differences.said,
            warnings: differences.warnings,
            act,
        })
    }

    /// What a node says of how it was refused is its word, and decides nothing: what this log has is compared, and what it does not have may
    /// have been rotated away.
    fn contradicts(&self, said: &NotAttested) -> Option<String> {
        let NotAttested { code, decision } = said;
        let id = decision.as_ref().filter(|id| self.ids.contains(*id))?;
        let found = self.refused.get(id).map_or("no refused attestation", String::as_str);
        (found != code)
            .then(|| format!("the node says, and nothing stands on it, that it was refused by {id} with {code}, which is {found}"))
    }
}

impl Line {
    fn recorded(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Trusted => "trusted",
            Verdict::Served => "served",
            Verdict::Refused => "refused",
        };
        match (self.verdict, &self.code) {
            (Verdict::Refused, Some(code)) => code.clone(),
            (_, None) => verdict.to_owned(),
            // No decision is written so.
            (_, Some(code)) => format!("{verdict} {code}"),
        }
    }

    /// What the code says that it came from.
    fn by(&self) -> DecidedBy {
        self.code.as_deref().map_or(DecidedBy::Evidence, decided_by)
    }

    fn check_verdict(&self, differences: &mut Differences) {
        let fits = matches!(
            (self.decision, self.verdict),
            (_, Verdict::Refused) | (Decision::Evidence, Verdict::Trusted) | (Decision::Config, Verdict::Served)
        );
        if !fits {
            differences.say("no such decision has this verdict");
        }
        match self.verdict {
            Verdict::Refused => {
                differences.there("code", self.code.as_ref());
                differences.absent("grant", self.grant.as_ref());
                differences.absent("config_sha256", self.config_sha256.as_ref());
                differences.absent("ticket", self.ticket.as_ref());
                differences.absent("would_refuse", self.would_refuse.first());
            }
            Verdict::Trusted | Verdict::Served => {
                differences.absent("code", self.code.as_ref());
                differences.there("grant", self.grant.as_ref());
                self.check_grant(differences);
            }
        }
        differences.there("decided_by", self.decided_by.as_ref());
        if let Some(recorded) = self.decided_by {
            differences.same("decided_by", &recorded, &self.by());
        }
    }

    /// What was given is what the pool gave for what was shown.
    fn check_grant(&self, differences: &mut Differences) {
        let Some(grants) = self.grants else {
            return differences.say("grants is missing");
        };
        let earns = match self.shown {
            Shown::Tpm | Shown::Cloud | Shown::Ticket => grants.attested,
            Shown::Token => grants.token,
            Shown::Kubelet => grants.kubelet,
            Shown::Nothing => grants.nothing,
            Shown::Unreadable => return differences.say("nothing is given for what cannot be read"),
        };
        differences.same("grant", &self.grant, &earns.set());
    }

    /// Whether it is no decision about a node.
    const fn is_about_nobody(&self) -> bool {
        matches!(
            self.decision,
            Decision::Counted | Decision::StoreAccepted | Decision::Checkpoint | Decision::Admin | Decision::Removed
        )
    }
}

/// Whether evidence that holds can have been refused.
fn refused_by_others(by: DecidedBy) -> bool {
    matches!(by, DecidedBy::Store | DecidedBy::Policy | DecidedBy::Gateway)
}
