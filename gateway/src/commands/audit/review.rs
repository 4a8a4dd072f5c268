//! One line after the other, held against what it was decided from and against the lines before it.

mod tickets;

use std::collections::{BTreeMap, BTreeSet};

use attest::{Kind, NodeIdentity, Reject};
use attest_gateway::api::{Refusal, decided_by};
use attest_gateway::audit::{
    Basis, Blobs, Checkpoint, DecidedBy, Decision, NotAttested, ReplayError, Shown, TicketTerms, Use, Verdict, replay, replay_kubelet,
    served_for, trusted_by,
};
use attest_gateway::clock::rfc3339;
use attest_gateway::policy::{ConfigSet, Grants};
use attest_gateway::settings::TICKET_LATE_LIMIT_SECONDS;
use attest_gateway::store::Replacement;
use serde::Deserialize;
use serde_json::Value;
use tickets::Tickets;

/// The schema's version.
const VERSION: u32 = 1;
/// The longest that a ticket can be good for if it is used in its time, whatever gateway.toml says, in seconds.
const TICKET_LIMIT_SECONDS: u64 = 86_400;
/// Refusals of evidence that was not looked at, because its challenge was not: nothing of it is kept.
const UNREAD: [&str; 2] = ["challenge-invalid", "challenge-expired"];
/// Refusals of client certificates that no CA of the cluster has signed: a stranger's chain is not kept.
const UNSIGNED: [&str; 2] = ["kubelet-certificate-invalid", "kubelet-certificate-expired"];

/// A refusal that earlier builds said to come from something else: they asked nothing but the allowlist whether a ticket still holds.
const RELABELLED: (&str, DecidedBy) = ("ticket-withdrawn", DecidedBy::Evidence);

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
    /// Not there in records of before there was such a field; then less can be compared.
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
    not_attested: Option<NotAttested>,
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
    /// It is of a kind that nothing verifies any more: what else the line holds was compared.
    NoLonger,
    /// It is no decision: the chain's verification says what it is worth.
    Checkpoint,
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
}

/// Reads a log from its beginning.
#[derive(Debug)]
pub struct Reviewer<'b> {
    blobs: &'b Blobs,
    ids: BTreeSet<String>,
    tickets: Tickets,
    /// Attestations that were refused, and by which code.
    refused: BTreeMap<String, String>,
    began: Option<u64>,
    latest: u64,
}

/// What is not as it must be, with both values.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn say(&mut self, what: impl Into<String>) {
        self.0.push(what.into());
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, field: &str, recorded: &T, expected: &T) {
        if recorded != expected {
            self.say(format!("{field} is {recorded:?}, and must be {expected:?}"));
        }
    }

    fn absent<T>(&mut self, field: &str, recorded: Option<&T>) {
        if recorded.is_some() {
            self.say(format!("{field} does not belong there"));
        }
    }

    fn there<T>(&mut self, field: &str, recorded: Option<&T>) {
        if recorded.is_none() {
            self.say(format!("{field} is missing"));
        }
    }
}

impl<'b> Reviewer<'b> {
    pub const fn new(blobs: &'b Blobs, continued: bool) -> Self {
        Self {
            blobs,
            ids: BTreeSet::new(),
            tickets: Tickets::new(continued),
            refused: BTreeMap::new(),
            began: None,
            latest: 0,
        }
    }

    /// Remembers what a line has earned, whenever that comes.
    pub fn foresee(&mut self, text: &str) {
        let line = serde_json::from_str::<Line>(text).ok();
        if let Some(line) = line.filter(|line| line.decision == Decision::Evidence && line.verdict == Verdict::Trusted) {
            self.tickets.earned(&line);
        }
    }

    /// The next line.
    ///
    /// # Errors
    /// A line that is none of an attestation log's.
    pub fn review(&mut self, text: &str) -> Result<Review, serde_json::Error> {
        let line: Line = serde_json::from_str(text)?;
        let (mut differences, mut warnings) = (Differences::default(), Vec::new());
        let began = *self.began.get_or_insert(line.at);
        differences.same("v", &line.v, &VERSION);
        differences.same("time", &line.time, &rfc3339(line.at));
        if !self.ids.insert(line.id.clone()) {
            differences.say("its id is that of an earlier decision");
        }
        if line.at < self.latest {
            warnings.push(format!(
                "it is older than a line before it: {} after {}",
                line.time,
                rfc3339(self.latest)
            ));
        }
        self.latest = self.latest.max(line.at);
        if !line.is_about_nobody() {
            line.check_verdict(&mut differences);
        }
        let of_certificate = line.decision == Decision::Config && line.shown == Shown::Kubelet;
        let (again, judged) = match line.decision {
            Decision::Evidence => line.evidence(text, self.blobs, &mut differences),
            Decision::Challenge => line.challenge(&mut differences),
            Decision::Counted => line.counted(&mut differences),
            Decision::StoreAccepted => line.store_accepted(&mut differences, &mut warnings),
            Decision::Checkpoint => line.checkpoint(&mut differences),
            Decision::Config if of_certificate => line.certificate(text, self.blobs, &mut differences),
            Decision::Config => line.config(&mut differences),
        };
        if line.decision == Decision::Config && line.shown == Shown::Ticket {
            self.tickets.check(&line, began, &self.ids, &mut differences, &mut warnings);
        }
        warnings.extend(line.not_attested.as_ref().and_then(|said| self.contradicts(said)));
        if matches!(line.decision, Decision::Challenge | Decision::Evidence) && line.verdict == Verdict::Refused {
            self.refused.insert(line.id.clone(), line.recorded());
        }
        if line.decision == Decision::Evidence && line.verdict == Verdict::Trusted {
            self.tickets.earned(&line);
        }
        Ok(Review {
            of_proof: line.decision == Decision::Evidence || of_certificate,
            recorded: line.recorded(),
            again,
            judged,
            id: line.id,
            time: line.time,
            identity: line.identity.unwrap_or_default(),
            differences: differences.0,
            warnings,
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
    /// Whether it was written with all that can be compared.
    const fn is_new(&self) -> bool {
        self.decided_by.is_some()
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
                if self.is_new() {
                    differences.absent("grant", self.grant.as_ref());
                }
                differences.absent("config_sha256", self.config_sha256.as_ref());
                differences.absent("ticket", self.ticket.as_ref());
            }
            Verdict::Trusted | Verdict::Served => {
                differences.absent("code", self.code.as_ref());
                differences.there("grant", self.grant.as_ref());
                self.check_grant(differences);
            }
        }
        if let Some(recorded) = self.decided_by
            && (self.code.as_deref(), recorded) != (Some(RELABELLED.0), RELABELLED.1)
        {
            differences.same("decided_by", &recorded, &self.by());
        }
    }

    /// What was given is what the pool gave for what was shown.
    fn check_grant(&self, differences: &mut Differences) {
        let Some(grants) = self.grants else {
            if self.is_new() {
                differences.say("grants is missing");
            }
            return;
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
        matches!(self.decision, Decision::Counted | Decision::StoreAccepted | Decision::Checkpoint)
    }

    /// A line that stands for many gives nothing to anybody.
    fn counted(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("counted", self.counted.as_ref());
        self.gives_nothing(differences);
        ("counted".to_owned(), Judged::Whole)
    }

    fn store_accepted(&self, differences: &mut Differences, warnings: &mut Vec<String>) -> (String, Judged) {
        differences.there("accepted_store", self.accepted_store.as_ref());
        self.gives_nothing(differences);
        warnings.push(format!("another store was accepted here: {}", self.reason));
        ("accepted".to_owned(), Judged::Whole)
    }

    fn checkpoint(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("checkpoint", self.checkpoint.as_ref());
        self.gives_nothing(differences);
        ("signed".to_owned(), Judged::Checkpoint)
    }

    fn gives_nothing(&self, differences: &mut Differences) {
        differences.absent("grant", self.grant.as_ref());
        differences.absent("identity", self.identity.as_ref());
        differences.absent("claims", self.claims.as_ref());
        differences.absent("config_sha256", self.config_sha256.as_ref());
    }

    fn challenge(&self, differences: &mut Differences) -> (String, Judged) {
        for (field, there) in [
            ("claims", self.claims.is_some()),
            ("earned_by", self.earned_by.is_some()),
            ("use_number", self.use_number.is_some()),
        ] {
            if there {
                differences.say(format!("{field} does not belong there"));
            }
        }
        if self.is_new() && self.basis.as_ref().is_none_or(|basis| basis.digests.is_none()) {
            differences.say("basis.digests is missing");
        }
        ("by digest".to_owned(), Judged::ByDigest)
    }

    fn evidence(&self, text: &str, blobs: &Blobs, differences: &mut Differences) -> (String, Judged) {
        differences.absent("earned_by", self.earned_by.as_ref());
        differences.absent("config_sha256", self.config_sha256.as_ref());
        differences.absent("spec_version", self.spec_version.as_ref());
        let refused = self.verdict == Verdict::Refused;
        let unread = self.code.as_deref().is_some_and(|code| UNREAD.contains(&code));
        match &self.basis {
            None if refused && unread => {
                differences.same("shown", &self.shown, &Shown::Unreadable);
                differences.same("pool", &self.pool.as_str(), &"");
                differences.absent("identity", self.identity.as_ref());
                differences.absent("name", self.name.as_ref());
                differences.absent("claims", self.claims.as_ref());
                return ("unread".to_owned(), Judged::Unread);
            }
            Some(basis) if refused && !unread && basis.digests.is_some() && basis.evidence.is_none() => {
                return ("by digest".to_owned(), Judged::ByDigest);
            }
            _ => {}
        }
        if let Some(basis) = &self.basis {
            self.check_challenge(basis, differences);
        }
        let (again, holds) = match replay(text, blobs) {
            Ok(result) => {
                let claims = result.claims();
                self.check_claims(claims, differences);
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
                let refusal = Refusal::from(reject);
                let code = refusal.code().to_owned();
                let same = refused && self.code.as_ref() == Some(&code);
                if same && self.is_new() {
                    differences.same("reason", &self.reason, &refusal.reason());
                }
                // In old records, evidence for a spent challenge stands there and was not looked at.
                (code, same || (!self.is_new() && self.code.as_deref() == Some("challenge-spent")))
            }
            Err(ReplayError::NoLongerJudged(_)) => {
                self.check_claims_of_enclave(differences);
                return ("no longer judged".to_owned(), Judged::NoLonger);
            }
            Err(error) => (format!("cannot: {error}"), false),
        };
        if !holds {
            differences.say(format!("it was decided {}, and comes out as {again}", self.recorded()));
        }
        (again, Judged::Whole)
    }

    /// What the record says of the node is what the challenge was about.
    fn check_challenge(&self, basis: &Basis, differences: &mut Differences) {
        let Some(spent) = &basis.challenge else { return };
        let challenge = spent.challenge();
        let subject = &challenge.subject;
        differences.same("pool", &self.pool, &challenge.pool);
        if self.is_new() || !self.kinds.is_empty() {
            differences.same("kinds", &self.kinds, &subject.kinds());
        }
        let shown = if subject.tpm.is_some() { Shown::Tpm } else { Shown::Cloud };
        differences.same("shown", &self.shown, &shown);
        if self.at < challenge.issued || self.at > challenge.expires {
            differences.say(format!(
                "it was decided at {}, and its challenge could be answered from {} to {}",
                self.at, challenge.issued, challenge.expires
            ));
        }
        let given = basis.allowlisted_name.as_ref();
        // The administrator's name is found late, and what comes after it can still refuse.
        let found = self.verdict == Verdict::Refused && given.is_some() && self.name.as_ref() == given;
        if challenge.name.is_some() || (self.verdict == Verdict::Refused && !found) {
            differences.same("name", &self.name, &challenge.name);
        } else if self.is_new() || !basis.allowlisted {
            differences.same("name", &self.name.as_ref(), &given);
        }
        let token = self.verdict == Verdict::Trusted && self.kinds.contains(&Kind::Token);
        if self.is_new() && self.use_number.is_some() != token {
            differences.say("use_number is there with a token beside the evidence, and only then");
        }
        if self.claims.is_none() {
            let ek = subject.tpm.as_ref().and_then(|tpm| tpm.attester.ek_digest().ok());
            differences.same("identity", &self.identity, &ek.map(|ek| NodeIdentity::of_tpm(ek).to_string()));
            differences.absent("instance", self.instance.as_ref());
        }
    }

    /// What the record says was proven is what the evidence proves.
    fn check_claims(&self, claims: &attest::Claims, differences: &mut Differences) {
        let identity = claims.identity();
        differences.same("identity", &self.identity, &Some(identity.to_string()));
        let instance = claims.instance().filter(|instance| *instance != identity);
        differences.same("instance", &self.instance, &instance.map(ToString::to_string));
        let proven = serde_json::to_value(claims).unwrap_or_default();
        let same = match &self.claims {
            Some(recorded) if self.is_new() => *recorded == proven,
            Some(recorded) => is_part(recorded, &proven),
            None => false,
        };
        if !same {
            differences.say("claims are not what the evidence proves");
        }
        if self.verdict == Verdict::Trusted && self.is_new() {
            differences.same("reason", &self.reason, &trusted_by(claims));
            self.check_ticket(differences);
        }
    }

    fn check_ticket(&self, differences: &mut Differences) {
        match self.ticket {
            Some(ticket)
                if ticket.expires >= self.at
                    && ticket.expires - self.at <= TICKET_LIMIT_SECONDS
                    && ticket.late_seconds <= TICKET_LATE_LIMIT_SECONDS
                    && ticket.uses > 0 => {}
            Some(_) => differences.say("no ticket has such terms"),
            None => differences.say("ticket is missing"),
        }
    }

    /// What the record says was proven fits together, and is what an enclave could prove. That it was proven nobody can tell any longer.
    fn check_claims_of_enclave(&self, differences: &mut Differences) {
        if self.verdict != Verdict::Trusted {
            return;
        }
        let claims = self.claims.as_ref().unwrap_or(&Value::Null);
        let said = |name: &str| claims.get(name).and_then(Value::as_str).map(str::to_owned);
        let identity = said("identity");
        if !identity.as_ref().is_some_and(|identity| identity.starts_with("aws-enclave:"))
            || claims.pointer("/aws_nitro_tpm/shape") != Some(&Value::from("enclave"))
        {
            differences.say("claims are not what an enclave's document proves");
        }
        if self.basis.as_ref().is_none_or(|basis| basis.evidence.is_none()) {
            differences.say("evidence is missing");
        }
        differences.same("identity", &self.identity, &identity);
        let instance = said("instance").filter(|instance| Some(instance) != identity.as_ref());
        differences.same("instance", &self.instance, &instance);
        if self.is_new() {
            self.check_ticket(differences);
        }
    }

    fn config(&self, differences: &mut Differences) -> (String, Judged) {
        differences.absent("claims", self.claims.as_ref());
        differences.absent("basis", self.basis.as_ref());
        differences.absent("ticket", self.ticket.as_ref());
        differences.absent("instance", self.instance.as_ref());
        if self.verdict == Verdict::Refused {
            let code = self.code.as_deref().unwrap_or_default();
            let family = match self.shown {
                Shown::Ticket => ["ticket-", "node-", "attested-", "spec-version-"].as_slice(),
                Shown::Token => &["token-", "spec-version-"],
                Shown::Nothing => &["evidence-required", "spec-version-"],
                Shown::Unreadable => &["credential-", "spec-version-"],
                _ => &[],
            };
            // Whatever was shown, nobody may have waited for the answer.
            if self.by() != DecidedBy::Gateway && !family.iter().any(|begin| code.starts_with(begin)) {
                differences.say(format!("code is {code:?}, which is not given for what was shown"));
            }
            return (self.recorded(), Judged::Whole);
        }
        differences.there("config_sha256", self.config_sha256.as_ref());
        differences.there("spec_version", self.spec_version.as_ref());
        let number = self.use_number.unwrap_or_default();
        match self.shown {
            Shown::Ticket => {}
            Shown::Token => {
                differences.absent("identity", self.identity.as_ref());
                differences.absent("earned_by", self.earned_by.as_ref());
                differences.there("name", self.name.as_ref());
                if number == 0 {
                    differences.say("use_number is missing");
                }
            }
            Shown::Nothing => {
                differences.absent("identity", self.identity.as_ref());
                differences.absent("name", self.name.as_ref());
                differences.absent("earned_by", self.earned_by.as_ref());
                differences.absent("use_number", self.use_number.as_ref());
            }
            _ => {
                differences.say("no config is served for what was shown");
                return (self.recorded(), Judged::Whole);
            }
        }
        let made = Use {
            number,
            again: self.again,
            late_seconds: self.late_seconds,
        };
        let reason = served_for(self.shown, Some(made));
        differences.same("reason", &self.reason, &reason);
        (self.recorded(), Judged::Whole)
    }

    /// A config that was asked for by a client certificate.
    fn certificate(&self, text: &str, blobs: &Blobs, differences: &mut Differences) -> (String, Judged) {
        let refused = self.verdict == Verdict::Refused;
        let chain = self.basis.as_ref().map(|basis| basis.client_chain.as_slice()).unwrap_or_default();
        if refused && chain.is_empty() && self.code.as_deref().is_some_and(|code| UNSIGNED.contains(&code)) {
            return ("unread".to_owned(), Judged::Unread);
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
                    ReplayError::Kubelet(error) => Refusal::from(error).code().to_owned(),
                    ReplayError::Member(error) => Refusal::from(error).code().to_owned(),
                    error => format!("cannot: {error}"),
                };
                let same = refused && self.code.as_ref() == Some(&code);
                // Names need not be given where the pool gives nothing.
                let policy = self.code.as_deref() == Some("kubelet-not-accepted") && code == "kubelet-wrong-pool";
                (code, same || policy)
            }
        };
        if !same {
            differences.say(format!("it was decided {}, and comes out as {again}", self.recorded()));
        }
        (again, Judged::Whole)
    }
}

/// Whether evidence that holds can have been refused.
fn refused_by_others(by: DecidedBy) -> bool {
    matches!(by, DecidedBy::Store | DecidedBy::Policy | DecidedBy::Gateway)
}

/// Whether all that an older release has written is there still; later ones may have said more.
fn is_part(recorded: &Value, proven: &Value) -> bool {
    match (recorded, proven) {
        (Value::Object(recorded), Value::Object(proven)) => recorded
            .iter()
            .all(|(name, value)| proven.get(name).is_some_and(|found| is_part(value, found))),
        (recorded, proven) => recorded == proven,
    }
}
