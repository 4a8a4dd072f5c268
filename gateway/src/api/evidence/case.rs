//! A decision about evidence on its way: what it is about, what is known of it so far, and what of that is kept.

mod kept;
mod membership;
mod new_values;

use attest::reference_sets::NewValue;
use attest::{AttestationResult, Claims, NodeIdentity, Reject};
use attest_log::{Basis, Record, RecordedAnswer, Verdict, WouldRefuse, trusted_by};
use attest_machines::attested::{self, Attested};
use attest_machines::history::History;
use attest_machines::instances::{self, InstanceClaim, InstanceError, InstanceRecord, Taken};
use attest_machines::{enrolment, revocations};
use attest_recording::pending;
use attest_store::{EntryKind, Reading};
use axum::response::Response;

use super::super::anchors::{Anchors, ask_sts};
use super::super::awaited::Awaited;
use super::super::decisions::refuse;
use super::super::endorsers::Vouched;
use super::super::evidence_context::EvidenceAsked;
use super::super::problem::Refusal;
use super::super::token;
use super::{Earned, EvidenceEndpoint};
use crate::credentials::tokens::{self, TokenError};
use crate::policy::Grant;
use crate::pools::Pool;

pub(super) use kept::by_digest;

/// What a decision was made from, beside what was sent.
struct Made {
    anchors: Anchors,
    basis: Basis,
    /// The instance belongs to somebody, or was claimed: before that, nobody has asked.
    claimed: bool,
    /// What was booted that no reference value has, if that is all that it is refused for.
    new_values: Vec<NewValue>,
}

impl Made {
    fn from_nothing_yet(endpoint: &EvidenceEndpoint, pool: &Pool) -> Self {
        let basis = Basis {
            server_keys: endpoint.tls.server_keys(),
            policy: Some(pool.policy.clone()),
            ..Basis::default()
        };
        let mut anchors = Anchors::default();
        anchors.use_reference_sets(pool);
        Self {
            anchors,
            basis,
            claimed: false,
            new_values: Vec::new(),
        }
    }
}

/// What stays when a decision is made anew: what the node has done already, it need not do again.
#[derive(Default)]
struct Held {
    /// The node's request to AWS STS is signed for one call.
    sts_answer: Option<RecordedAnswer>,
    /// It has begun to claim. What it has claimed is its own meanwhile: it would be anybody's who asks at the right moment otherwise.
    claims: bool,
    /// What is to be told of who had the instance before this decision.
    superseded: Option<String>,
}

/// How often a decision is made anew because what it was made from has changed meanwhile; each time is a verification.
const ANEW_LIMIT: u32 = 3;

/// A decision on its way: what it is about, and what is known of it so far.
pub(super) struct EvidenceCase<'r> {
    endpoint: &'r EvidenceEndpoint,
    asked: EvidenceAsked<'r>,
    record: Record,
    made: Made,
    held: Held,
    /// Of the TPMs that it is about.
    history: History,
}

/// A decision that was made, and what it was made from.
pub(super) struct Judged {
    record: Record,
    made: Made,
    outcome: Result<Response, Refusal>,
}

impl<'r> EvidenceCase<'r> {
    /// Nothing is known of it yet but by which keys and which policy it is decided.
    pub(super) fn new(endpoint: &'r EvidenceEndpoint, asked: EvidenceAsked<'r>, record: Record) -> Self {
        let made = Made::from_nothing_yet(endpoint, &asked.pool);
        Self {
            endpoint,
            asked,
            record,
            made,
            held: Held::default(),
            history: History::default(),
        }
    }

    /// The decision. What it was made from is in the case and in the store.
    ///
    /// # Errors
    /// A refusal that is no decision: the gateway cannot answer now.
    pub(super) async fn decide(mut self, awaited: &Awaited) -> Result<Judged, Refusal> {
        let earned = self.earn_by_what_stands().await;
        let earned = earned.and_then(|earned| awaited.give().map(|()| earned));
        let outcome = match earned.and_then(|earned| earned.ticket(self.endpoint, &mut self.record, self.asked.now)) {
            Ok(response) => Ok(response),
            Err(refusal) => {
                // Also the instance: it belongs to nobody again, if it did not before.
                if self.held.claims {
                    self.endpoint.decisions.give_all_back(&mut self.record).await;
                }
                self.made.claimed = self.made.claimed && self.is_somebodys().await;
                if refusal.is_unavailable() {
                    return Err(refusal);
                }
                // Whoever may be accepted yet is told to come again.
                let told = self.or_waits().await?;
                refuse(&mut self.record, &refusal);
                self.record.known = self.is_known().await;
                Err(told.unwrap_or(refusal))
            }
        };
        let Self { record, made, .. } = self;
        Ok(Judged { record, made, outcome })
    }

    /// As [`Self::judge`], and once more if the store has changed meanwhile: an administrator has revoked the machine, or taken it off a list. What it
    /// has claimed it keeps, and claims again: that is given back only when it is refused.
    async fn earn_by_what_stands(&mut self) -> Result<Earned, Refusal> {
        let begun = self.record.clone();
        for _ in 0..ANEW_LIMIT {
            match self.judge().await {
                Err(refusal) if refusal.is_outdated() => {}
                earned => return earned,
            }
            self.begin_anew(&begun)?;
        }
        self.judge().await
    }

    /// By the pool as it is served now, and at this time: both are in no store.
    fn begin_anew(&mut self, begun: &Record) -> Result<(), Refusal> {
        let pool = super::super::pool(&self.endpoint.pools, self.asked.pool.name());
        // Who asks again is told if it is gone.
        self.asked.pool = pool.map_err(|_| Refusal::unavailable())?;
        self.asked.now = self.endpoint.clock.now();
        // By a challenge that is over by then nothing is decided: the node asks for another.
        if self.asked.now.as_secs() > self.asked.challenge.expires {
            return Err(Refusal::unavailable());
        }
        self.record = begun.clone();
        self.record.decide_at(self.asked.now.as_secs());
        self.made = Made::from_nothing_yet(self.endpoint, &self.asked.pool);
        Ok(())
    }

    /// That the pool is served as it was when this was begun.
    fn wants_the_pool(&self) -> Result<(), Refusal> {
        match self.endpoint.pools.is_current(&self.asked.pool) {
            true => Ok(()),
            false => Err(Refusal::outdated()),
        }
    }

    /// As [`Self::earn`]; who is refused is so by what stands there at one moment.
    async fn judge(&mut self) -> Result<Earned, Refusal> {
        let mut reading = Reading::of(&*self.endpoint.store);
        match self.earn(&mut reading).await {
            Err(refusal) if !refusal.is_unavailable() => {
                let confirmed = reading.confirm().await;
                confirmed.map_err(|error| Refusal::because(&error))?;
                self.wants_the_pool().and(Err(refusal))
            }
            // What is used up by now is used once.
            Ok(_) if self.wants_the_pool().is_err() => Err(Refusal::unavailable()),
            earned => earned,
        }
    }

    async fn earn(&mut self, reading: &mut Reading<'_>) -> Result<Earned, Refusal> {
        let (vouched, claims) = self.verify(reading).await?;
        self.refuse_revoked(reading, &vouched, &claims).await?;
        let EvidenceAsked { pool, now, .. } = self.asked.clone();
        let appraised = attest::appraise(claims, &pool.policy, now);
        let appraised = appraised.inspect_err(|reject| self.record.booted_before = self.history.before(reject));
        let result = match appraised {
            Ok(result) => result,
            // About a machine that would be refused for something else nobody is asked.
            Err(reject) if self.history.refused(pool.history, reading).is_some() => return Err(reject.into()),
            Err(reject) => return Err(self.not_accepted(&pool, reject)),
        };
        let object = self.admit(&pool, result.claims())?;
        let grant = Grant::for_attested(&pool.grants, &result).ok_or_else(|| Refusal::attested_not_accepted(pool.name()))?;
        if let Some(refused) = self.history.refused(pool.history, reading) {
            return Err(refused.into());
        }
        // Only now: evidence that is not accepted takes no instance, keeps no name, and uses no token up.
        let holder = self.join(&vouched, &result, reading).await?;
        self.is_let_in(&pool, &result).await?;
        let record = &mut self.record;
        record.verdict = Verdict::Trusted;
        record.grant = Some(grant.set());
        record.grants = Some(pool.grants);
        record.reason = trusted_by(&result);
        record.would_refuse = WouldRefuse::all_of(&result);
        if let Some(object) = &object {
            record.reason = format!("{}; the cluster's Machine object {} names it", record.reason, object.name);
        }
        Ok(Earned {
            result,
            grant,
            holder,
            object,
        })
    }

    /// What the evidence proves, and who vouches for its TPM.
    async fn verify(&mut self, reading: &mut Reading<'_>) -> Result<(Vouched, Claims), Refusal> {
        let (endpoint, asked, Made { anchors, basis, .. }) = (self.endpoint, &self.asked, &mut self.made);
        let (endorsers, store) = (&*endpoint.endorsers, &*endpoint.store);
        anchors.gather(endorsers, asked, basis).await?;
        let tpm = asked.challenge.subject.tpm.as_ref();
        let ek = tpm.map(|tpm| tpm.attester.ek_digest()).transpose().map_err(Reject::from)?;
        // Of one that proves to be this TPM's nothing else is asked then.
        let claimed = ek.map(NodeIdentity::of_tpm);
        let identities: Vec<&str> = claimed.iter().map(NodeIdentity::as_str).collect();
        revocations::soon(reading, &[], &identities);
        let vouched = endorsers.vouched(reading, ek, &asked.pool).await;
        let vouched = vouched.map_err(|error| Refusal::because(&error))?;
        endorsers.note(&vouched, basis);
        let known = self.held.sts_answer.as_ref();
        basis.cloud.sts_answer = ask_sts(endorsers.clouds(), asked, &basis.server_keys, known).await?;
        self.held.sts_answer.clone_from(&basis.cloud.sts_answer);
        basis.cloud.token = token::name(store, asked.evidence).await?;
        let verification = &endpoint.admission.verification;
        let verified = anchors.verify(endorsers, verification, asked, &vouched.endorsements, basis).await?;
        let claims = verified.map_err(|reject| match reject {
            // All the rest holds. A token that is looked at is a guess only then: before, nothing is told by the answer.
            Reject::TokenMissing => endpoint.guesses.turned_out_wrong(asked.peer, asked.now, TokenError::Invalid.into()),
            reject => reject.into(),
        })?;
        let record = &mut self.record;
        record.identity = Some(claims.identity().to_string());
        record.instance = claims
            .instance()
            .filter(|instance| *instance != claims.identity())
            .map(ToString::to_string);
        record.claims = Some(claims.clone());
        if let Some(document) = claims.aws_identity_document() {
            // The other regions' certificates had no part in it.
            let region = document.document().replayable().region.clone();
            basis.cloud.region_certificates.retain(|name, _| *name == region);
        }
        Ok((vouched, claims))
    }

    /// Refuses whoever gets nothing any more, and notes if a TPM is not what it was.
    async fn refuse_revoked(&mut self, reading: &mut Reading<'_>, vouched: &Vouched, claims: &Claims) -> Result<(), Refusal> {
        let given = vouched.allowlisted.as_ref().and_then(|record| record.name.as_deref());
        let names: Vec<&str> = given.into_iter().chain(claims.name()).collect();
        let identities: Vec<&str> = identities(claims).map(NodeIdentity::as_str).collect();
        revocations::refuse(reading, &names, &identities).await?;
        let history = History::of(reading.store, claims, &self.asked.pool.policy).await;
        self.history = history.map_err(|error| Refusal::because(&error))?;
        self.record.alerts.extend(self.history.alerts());
        Ok(())
    }

    /// Takes the instance and the name, and uses up the token, each only if what was seen so far is unchanged, as all of it is at the end, whatever was taken;
    /// gives to whom the instance belongs, and since when.
    async fn join(
        &mut self,
        vouched: &Vouched,
        result: &AttestationResult,
        reading: &mut Reading<'_>,
    ) -> Result<Option<InstanceRecord>, Refusal> {
        let (store, record, claims) = (&*self.endpoint.store, &mut self.record, result.claims());
        let EvidenceAsked { pool, peer, now, .. } = self.asked.clone();
        let node = tokens::Node::Attested(claims.identity());
        let token = token::examine(store, &self.asked, node).await?;
        let decision = pending(record);
        let claim = InstanceClaim {
            claims,
            decision: &decision,
            first_use_binds: pool.policy.first_use_binds(claims.kinds()),
            at: now.as_secs(),
            peer: &peer.to_string(),
        };
        self.held.claims = true;
        let Taken { record: holder, alert } = claim.make(reading).await.inspect_err(|error| {
            // Which of them is another's, the TPM or the instance, is asked when all is given back.
            self.made.claimed = matches!(error, InstanceError::Claimed { .. });
            record.alerts.extend(error.alert());
        })?;
        self.made.claimed = true;
        // Told once more if it is judged anew: whoever had it is gone by then.
        self.held.superseded = alert.or(self.held.superseded.take());
        record.alerts.extend(self.held.superseded.clone());
        let (name, identity) = (claims.name(), claims.identity());
        let settled = enrolment::settle_name(reading, vouched.allowlisted.as_ref(), name, identity, &decision).await;
        record.name = settled.inspect_err(|error| record.alerts.extend(error.alert()))?;
        if !self.endpoint.pools.is_current(&pool) {
            return Err(Refusal::outdated());
        }
        if self.endpoint.notes_attested {
            let attested = Attested::of(claims, &record.pool, record.name.as_deref(), record.at, &record.id);
            let claimed = attested::claim(reading, identity, &attested, &decision).await;
            claimed.map_err(|error| Refusal::because(&error))?;
        }
        // Last, when nothing else can be wrong with the node, and all that it was decided from stands there at this moment.
        match token {
            Some(token) => {
                let redeemed = token.redeem(store, node, reading.deciding(&decision)).await?;
                record.use_number = Some(redeemed.use_number());
                record.again = redeemed.again();
                record.alerts.extend(redeemed.stale().map(str::to_owned));
            }
            None => {
                let confirmed = reading.confirm().await;
                confirmed.map_err(|error| Refusal::because(&error))?;
            }
        }
        // Not of a machine that is refused, or judged anew: it has not attested, and who it is now is compared with when it last did.
        let noted = self.history.note(store, record.at, &record.id).await;
        noted.map_err(|error| Refusal::because(&error))?;
        Ok(holder)
    }

    /// Whether the instance that a refusal is about belongs to somebody; not as far as the store cannot tell.
    async fn is_somebodys(&self) -> bool {
        let Some(claims) = &self.record.claims else { return false };
        instances::is_somebodys(&*self.endpoint.store, claims).await.unwrap_or(false)
    }

    /// Whether a machine that is refused is known here: it is on the allowlist or in an inventory, it has a name, or its instance belongs to
    /// somebody. Its owner has to be able to read why; nobody has to read again and again that a machine is revoked.
    async fn is_known(&self) -> bool {
        let Some(claims) = &self.record.claims else { return false };
        let named: Vec<&str> = identities(claims).map(NodeIdentity::as_str).collect();
        let store = &*self.endpoint.store;
        let mut reading = Reading::of(store);
        if revocations::refuse(&mut reading, &[], &named).await.is_err() {
            return false;
        }
        for identity in identities(claims) {
            for kind in [EntryKind::Instance, EntryKind::NameOf] {
                if matches!(store.get(kind, identity.as_str()).await, Ok(Some(_))) {
                    return true;
                }
            }
        }
        let ek = claims.tpm().map(|tpm| tpm.ek_digest);
        if let Some(ek) = ek
            && matches!(enrolment::allowlisted(&mut reading, ek).await, Ok(Some(_)))
        {
            return true;
        }
        let pools = self.endpoint.pools.all();
        let mut inventories = pools.iter().filter_map(|pool| pool.inventory.as_ref());
        inventories.any(|inventory| identities(claims).any(|identity| inventory.machines().names(identity)))
            || self.made.basis.machine.as_ref().is_some_and(|named| !named.objects.is_empty())
    }
}

/// All that a machine is known by.
fn identities(claims: &Claims) -> impl Iterator<Item = &NodeIdentity> {
    claims.instance().into_iter().chain([claims.identity()])
}
