//! Review of a log: compares each line with the facts that it was decided from, and with the lines before it.

mod acts;
mod configs;
mod decision_key;
mod differences;
mod evidence;
mod of_nobody;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use acts::Acts;
use attest_log::admin::Act;
use attest_log::codes::decided_by;
use attest_log::{
    Blobs, DecidedBy, Decision, ENTRY_VERSION, Entry, EventKind, LogEvent, NotAttested, Record, RecordedLate, ShownEvidence, Verdict,
};
use attest_system::clock::rfc3339;
use decision_key::DecisionKey;
use differences::Differences;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
pub(crate) use tickets::Elsewhere;
use tickets::Tickets;

/// The longest that a ticket can be good for if it is used in its time, whatever gateway.toml says, in seconds.
const TICKET_LIMIT_SECONDS: u64 = 86_400;

/// Longest id that is remembered: twice as long as those of decisions.
const ID_LIMIT_BYTES: usize = 64;
/// Longest time between a decision and its line: others that were decided later may come first.
const LATE_SECONDS: u64 = 60;

/// A decision as the log has it, with all that can be compared.
struct ReviewedDecision(Record<Value>);

impl Deref for ReviewedDecision {
    type Target = Record<Value>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Members of lines that are about no node.
#[derive(Deserialize)]
struct OfEvents {
    counted: Option<IgnoredAny>,
    accepted_store: Option<IgnoredAny>,
    checkpoint: Option<IgnoredAny>,
    admin: Option<IgnoredAny>,
    removed: Option<IgnoredAny>,
    report: Option<IgnoredAny>,
}

/// Extent to which a line could be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReviewStatus {
    /// Everything that follows from what it holds was compared.
    Whole,
    /// It was refused before anything was proven: there are digests and nothing to judge.
    ByDigest,
    /// The evidence was not looked at, and nothing of it is kept.
    Unread,
    /// It was recorded late, and its evidence was not kept.
    Late,
    /// It is not a decision: the chain's verification says what it is worth.
    OfLog,
    /// It is not a decision about a node: an administrator's act, which is shown.
    Admin,
}

/// Findings about a line of the log.
#[derive(Debug)]
pub(crate) struct Review {
    pub id: String,
    pub time: String,
    pub identity: String,
    /// Set if it is about evidence, or a client certificate: the table shows these.
    pub of_proof: bool,
    pub recorded: String,
    pub again: String,
    pub judged: ReviewStatus,
    /// Facts that are not as they must be.
    pub differences: Vec<String>,
    /// Facts that may be right, but cannot be told from this log.
    pub warnings: Vec<String>,
    /// The act that the line records, unless an earlier line did.
    pub act: Option<Act>,
}

/// Reads a log from its beginning.
#[derive(Debug)]
pub(crate) struct Reviewer<'b> {
    blobs: &'b Blobs,
    ids: BTreeSet<DecisionKey>,
    /// Decisions of several logs that are recorded in full.
    in_full: BTreeSet<DecisionKey>,
    tickets: Tickets,
    /// Refused attestations, and the code of each refusal.
    refused: BTreeMap<String, String>,
    acts: Acts,
    began: Option<u64>,
    latest: u64,
}

impl<'b> Reviewer<'b> {
    pub(crate) const fn new(blobs: &'b Blobs, elsewhere: Elsewhere) -> Self {
        Self {
            blobs,
            ids: BTreeSet::new(),
            in_full: BTreeSet::new(),
            tickets: Tickets::new(elsewhere),
            refused: BTreeMap::new(),
            acts: Acts::new(),
            began: None,
            latest: 0,
        }
    }

    /// Remembers what a line has earned, and when that was used first, whenever that comes.
    pub(crate) fn foresee(&mut self, text: &str) {
        let Ok(record) = serde_json::from_str(text) else { return };
        let line = ReviewedDecision(record);
        if line.recorded_late.is_none() && line.id.len() <= ID_LIMIT_BYTES {
            self.in_full.insert(line.id.as_str().into());
        }
        match (line.decision, line.verdict) {
            (Decision::Evidence, Verdict::Trusted) => self.tickets.earned(&line),
            (Decision::Config, Verdict::Served) if line.shown == ShownEvidence::Ticket => self.tickets.first_used(&line),
            _ => {}
        }
    }

    /// Reviews the next line of the log.
    ///
    /// # Errors
    /// The line is not one of an attestation log.
    pub(crate) fn review(&mut self, text: &str) -> Result<Review, serde_json::Error> {
        match Entry::read(text.as_bytes())? {
            Entry::Decision(record) => self.decision(ReviewedDecision(*record), text),
            Entry::Event(event) => Ok(self.event(*event, text)),
        }
    }

    fn event(&mut self, event: LogEvent, text: &str) -> Review {
        let mut differences = Differences::default();
        self.head((event.v, &event.time, event.at, &event.id), &mut differences);
        differences.messages.extend(event.differences_of(text));
        let (again, judged) = of_nobody::review(&event, self.blobs, &mut differences);
        let act = match event.what {
            EventKind::Admin { admin } | EventKind::StoreAccepted { admin, .. } => Some(admin),
            EventKind::Counted { .. } | EventKind::Checkpoint { .. } | EventKind::Removed { .. } | EventKind::Report { .. } => None,
        };
        Review {
            of_proof: false,
            recorded: again.to_owned(),
            again: again.to_owned(),
            judged,
            id: event.id,
            time: event.time,
            identity: String::new(),
            act: act.filter(|act| self.acts.is_new(act, &mut differences)),
            differences: differences.messages,
            warnings: differences.warnings,
        }
    }

    /// Checks what each line has; returns when the log began.
    fn head(&mut self, (v, time, at, id): (u32, &str, u64, &str), differences: &mut Differences) -> u64 {
        let began = *self.began.get_or_insert(at);
        differences.same("v", &v, &ENTRY_VERSION);
        differences.same("time", &time, &rfc3339(at).as_str());
        if id.len() > ID_LIMIT_BYTES {
            differences.add("its id is too long");
        } else if !self.ids.insert(id.into()) {
            differences.add("an earlier decision has the same id");
        }
        if at.saturating_add(LATE_SECONDS) < self.latest {
            differences.warn(format!("it is older than an earlier line: {time} after {}", rfc3339(self.latest)));
        }
        self.latest = self.latest.max(at);
        began
    }

    fn decision(&mut self, line: ReviewedDecision, text: &str) -> Result<Review, serde_json::Error> {
        if line.recorded_late == Some(RecordedLate::Unknown) && self.in_full.contains(&line.id.as_str().into()) {
            return Ok(line.superseded());
        }
        let mut differences = Differences::default();
        let began = self.head((line.v, &line.time, line.at, &line.id), &mut differences);
        line.check_verdict(&mut differences);
        serde_json::from_str::<OfEvents>(text)?.check(&mut differences);
        let of_certificate = line.decision == Decision::Config && line.shown == ShownEvidence::Kubelet;
        let (again, judged) = match line.decision {
            Decision::Evidence | Decision::Rehearsal => line.evidence(text, self.blobs, &mut differences),
            Decision::Challenge => line.challenge(&mut differences),
            Decision::Config if of_certificate => line.certificate(text, self.blobs, &mut differences),
            Decision::Config => line.config(&mut differences),
        };
        if line.decision == Decision::Config && line.shown == ShownEvidence::Ticket {
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
        let recorded = line.recorded();
        let Record {
            id,
            time,
            identity,
            decision,
            ..
        } = line.0;
        Ok(Review {
            of_proof: matches!(decision, Decision::Evidence | Decision::Rehearsal) || of_certificate,
            recorded,
            again,
            judged,
            id,
            time,
            identity: identity.unwrap_or_default(),
            differences: differences.messages,
            warnings: differences.warnings,
            act: None,
        })
    }

    /// Returns a contradiction in a node's report of its refusal. The report decides nothing. It is compared with this log, of which older
    /// decisions may have been rotated away.
    fn contradicts(&self, said: &NotAttested) -> Option<String> {
        let NotAttested { code, decision } = said;
        let id = decision.as_ref().filter(|id| self.ids.contains(&id.as_str().into()))?;
        let found = self.refused.get(id).map_or("no refused attestation", String::as_str);
        (found != code).then(|| format!("the node reports (unverified) that {id} refused it with {code}, which is {found}"))
    }
}

impl ReviewedDecision {
    /// Returns the review of a late line whose decision another gateway has recorded in full.
    fn superseded(self) -> Review {
        let recorded = self.recorded();
        let Record { id, time, identity, .. } = self.0;
        Review {
            of_proof: false,
            recorded,
            again: "elsewhere".to_owned(),
            judged: ReviewStatus::Late,
            id,
            time,
            identity: identity.unwrap_or_default(),
            differences: Vec::new(),
            warnings: Vec::new(),
            act: None,
        }
    }

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

    /// Returns the origin of the decision, by its code.
    fn by(&self) -> DecidedBy {
        self.code.as_deref().map_or(DecidedBy::Evidence, decided_by)
    }

    fn check_verdict(&self, differences: &mut Differences) {
        let fits = matches!(
            (self.decision, self.verdict),
            (_, Verdict::Refused) | (Decision::Evidence | Decision::Rehearsal, Verdict::Trusted) | (Decision::Config, Verdict::Served)
        );
        if !fits {
            differences.add("a decision of this kind cannot have this verdict");
        }
        match self.verdict {
            Verdict::Refused => {
                differences.check_present("code", self.code.as_ref());
                differences.absent("grant", self.grant.as_ref());
                differences.absent("config_sha256", self.config_sha256.as_ref());
                differences.absent("ticket", self.ticket.as_ref());
                differences.absent("would_refuse", self.would_refuse.first());
            }
            Verdict::Trusted | Verdict::Served => {
                differences.absent("code", self.code.as_ref());
                differences.check_present("grant", self.grant.as_ref());
                self.check_grant(differences);
            }
        }
        differences.same("decided_by", &self.decided_by, &self.by());
    }

    /// Checks that the grant is what the pool gives for what was shown.
    fn check_grant(&self, differences: &mut Differences) {
        let Some(grants) = self.grants else {
            return differences.add("grants is missing");
        };
        let earns = match self.shown {
            ShownEvidence::Tpm | ShownEvidence::Cloud | ShownEvidence::Ticket => grants.attested,
            ShownEvidence::Token => grants.token,
            ShownEvidence::Kubelet => grants.kubelet,
            ShownEvidence::Nothing => grants.nothing,
            ShownEvidence::Unreadable => return differences.add("unreadable evidence cannot have been granted anything"),
        };
        differences.same("grant", &self.grant, &earns.set());
    }
}

impl OfEvents {
    /// Says of a decision what belongs to no decision.
    fn check(&self, differences: &mut Differences) {
        for (name, member) in [
            ("counted", &self.counted),
            ("accepted_store", &self.accepted_store),
            ("checkpoint", &self.checkpoint),
            ("admin", &self.admin),
            ("removed", &self.removed),
            ("report", &self.report),
        ] {
            differences.absent(name, member.as_ref());
        }
    }
}

/// Returns whether evidence that holds can have been refused.
fn refused_by_others(by: DecidedBy) -> bool {
    matches!(by, DecidedBy::Store | DecidedBy::Policy | DecidedBy::Gateway)
}
