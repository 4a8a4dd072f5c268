//! A decision about evidence in progress: its request, and the parts that are kept.

mod membership;
mod rehearsal;
mod stored_parts;
mod waiting;

use std::sync::Arc;

use attest::{Claims, NodeIdentity, Reject};
use attest_log::codes::UNAVAILABLE;
use attest_log::{Basis, Record, RecordedAnswer, unknown_ek};
use attest_machines::{enrolment, revocations};
use attest_store::{EntryKind, EntryTransaction, StoreError, Transact};
use axum::response::Response;

use super::super::anchors::{RequestAnchors, ask_sts};
use super::super::decisions::{pending, refuse};
use super::super::endorsers::{EkRootsInUse, Vouched};
use super::super::evidence_context::EvidenceAsked;
use super::super::problem::Refusal;
use super::super::token;
use super::super::waiting_client::Awaited;
use super::decide::{self, DecisionInput, EvidenceRefusal, GrantingDecision, identities, identities_of};
use super::{EvidenceEndpoint, answer};
use crate::credentials::challenges::{AnsweredChallenge, Spent};
use crate::credentials::tickets::TicketConfig;
use crate::credentials::tokens::TokenError;
use attest_pool::Pool;

pub(super) use stored_parts::by_digest;
use waiting::WaitsFor;

/// Inputs of a decision, apart from those in the request.
struct DecisionBasis {
    anchors: RequestAnchors,
    basis: Box<Basis>,
    /// Set if the instance has an owner, or was claimed; not set until that is looked up.
    claimed: bool,
    /// Set if the evidence is refused because nobody endorses its TPM.
    unknown_ek: bool,
    /// The one thing that the machine is refused for, if an administrator may accept it.
    waits_for: Option<WaitsFor>,
}

impl DecisionBasis {
    fn from_nothing_yet(endpoint: &EvidenceEndpoint, asked: &EvidenceAsked<'_>) -> Self {
        let basis = Box::new(Basis {
            server_keys: endpoint.tls.server_keys(),
            policy: Some(asked.policy().into_owned()),
            ..Basis::default()
        });
        let mut anchors = RequestAnchors::default();
        anchors.use_reference_sets(&asked.pool);
        Self {
            anchors,
            basis,
            claimed: false,
            unknown_ek: false,
            waits_for: None,
        }
    }
}

/// Maximum number of retries of a decision after its inputs have changed; each is a verification.
const ANEW_LIMIT: u32 = 3;

/// Decision in progress: its request, and the record so far.
pub(super) struct EvidenceCase<'r> {
    endpoint: &'r EvidenceEndpoint,
    asked: EvidenceAsked<'r>,
    answered: Arc<AnsweredChallenge>,
    /// Set if the evidence had a wrong token.
    has_guessed: bool,
    record: Record,
    made: DecisionBasis,
    /// The answer of AWS STS: the node's request is signed for one call.
    sts_answer: Option<RecordedAnswer>,
}

/// Finished decision with its inputs.
pub(super) struct DecidedCase<T> {
    record: Record,
    spent: Spent,
    made: DecisionBasis,
    /// Set if the machine begins to wait for an administrator's answer.
    begins_to_wait: bool,
    outcome: T,
}

impl<'r> EvidenceCase<'r> {
    /// Starts a case of which only the server keys and the policy are known.
    pub(super) fn new(endpoint: &'r EvidenceEndpoint, asked: EvidenceAsked<'r>, answered: Arc<AnsweredChallenge>, record: Record) -> Self {
        let made = DecisionBasis::from_nothing_yet(endpoint, &asked);
        Self {
            endpoint,
            asked,
            answered,
            has_guessed: false,
            record,
            made,
            sts_answer: None,
        }
    }

    /// Decides. The inputs of the decision are in the case and in the store.
    ///
    /// # Errors
    /// A refusal that is not a decision: the gateway cannot answer now, or the challenge was answered before.
    pub(super) async fn decide(mut self, awaited: &Awaited) -> Result<DecidedCase<Result<Response, Refusal>>, Refusal> {
        let (spent, outcome) = match self.earn_by_what_stands(awaited).await {
            Ok(earned) => {
                let answer = answer(&earned);
                (earned.spent, Ok(answer))
            }
            Err(refusal) if refusal.is_unavailable() => return Err(self.not_decided(refusal)),
            Err(refusal) => {
                let spent = self.spend_challenge().await?;
                // Whoever may be accepted yet is told to come again.
                let told = self.or_waits().await?;
                refuse(&mut self.record, &refusal);
                self.record.known = self.is_known_machine().await;
                (spent, Err(told.unwrap_or(refusal)))
            }
        };
        let Self { record, made, .. } = self;
        Ok(DecidedCase {
            record,
            spent,
            made,
            begins_to_wait: outcome.as_ref().is_err_and(Refusal::is_unavailable),
            outcome,
        })
    }

    /// Spends the challenge of evidence that is refused. What is recorded, logged or answered from then on is about a challenge that nobody
    /// can answer any more.
    async fn spend_challenge(&self) -> Result<Spent, Refusal> {
        let spent = self.answered.spend(&*self.endpoint.store).await;
        spent.map_err(|error| self.not_decided(error.into()))
    }

    /// Lets the node answer the same challenge again if the gateway could not decide for a cause of its own. After other 503s, it asks for
    /// another challenge. Nor is a second token tried with one challenge.
    fn not_decided(&self, refusal: Refusal) -> Refusal {
        if let AnsweredChallenge::Opened(opened) = &*self.answered
            && refusal.code() == UNAVAILABLE.advice.code
            && !self.has_guessed
        {
            self.endpoint.attempts.undo(opened.peek());
        }
        refusal
    }

    /// Runs [`Self::earn`], and retries if its inputs have changed meanwhile: an administrator has taken the machine off a list, or the
    /// pool is another.
    async fn earn_by_what_stands(&mut self, awaited: &Awaited) -> Result<GrantingDecision, Refusal> {
        let begun = self.record.clone();
        for _ in 0..ANEW_LIMIT {
            match self.earn(awaited).await {
                Err(refusal) if refusal.is_outdated() => {}
                earned => return earned,
            }
            self.restart(&begun)?;
        }
        self.earn(awaited).await
    }

    /// Starts again with the current pool and time: the store has neither.
    fn restart(&mut self, begun: &Record) -> Result<(), Refusal> {
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
        self.made = DecisionBasis::from_nothing_yet(self.endpoint, &self.asked);
        Ok(())
    }

    async fn earn(&mut self, awaited: &Awaited) -> Result<GrantingDecision, Refusal> {
        let (vouched, verified) = self.verify().await?;
        let claims = match verified {
            Ok(claims) => claims,
            Err(refusal) => {
                Box::pin(self.note_unknown_tpm(&vouched)).await?;
                let refusal = match vouched.is_removed() {
                    true => refusal.without_acceptable(),
                    false => refusal,
                };
                return Err(self.refused_by_what_stands(vouched, refusal).await);
            }
        };
        let makers = vouched.makers();
        let mut verified = self.appraise(vouched, claims);
        if verified.appraised.is_ok() {
            let EvidenceAsked { pool, formats, now, .. } = &self.asked;
            verified.config = formats.agree(pool, &self.endpoint.ticket, *now).await;
        }
        self.transact(verified, makers, awaited).await
    }

    /// Verifies the evidence: returns its claims or the refusal, and the endorsements of its TPM.
    async fn verify(&mut self) -> Result<(Vouched, Result<Arc<Claims>, Refusal>), Refusal> {
        let (endpoint, asked, DecisionBasis { anchors, basis, .. }) = (self.endpoint, &self.asked, &mut self.made);
        let endorsers = &*endpoint.endorsers;
        anchors.gather(endorsers, asked, basis).await?;
        let tpm = asked.challenge.subject.tpm.as_ref();
        let ek = tpm.map(|tpm| tpm.attester.ek_digest()).transpose().map_err(Reject::from)?;
        let (looking, pool, answered) = (Arc::clone(&endpoint.endorsers), Arc::clone(&asked.pool), Arc::clone(&self.answered));
        // A copy whose original another gateway has decided about is not verified.
        let vouched = endpoint.store.read(move |transaction| {
            answered.can_spend(transaction)?;
            Ok::<Vouched, Refusal>(looking.vouched(transaction, ek, &pool)?)
        });
        let vouched = vouched.await?;
        endorsers.note(&vouched, basis);
        basis.cloud.sts_answer = ask_sts(endorsers.clouds(), asked, &basis.server_keys, self.sts_answer.as_ref()).await?;
        self.sts_answer.clone_from(&basis.cloud.sts_answer);
        basis.cloud.token = token::name(&*endpoint.store, asked.evidence).await?;
        let verification = &endpoint.admission.verification;
        let verified = anchors.verify(endorsers, verification, asked, &vouched.endorsements, basis).await?;
        let claims = match verified {
            Ok(claims) => Arc::new(claims),
            // All the rest holds. A token that is looked at is a guess only then: before, nothing is told by the answer.
            Err(Reject::TokenMissing) => {
                self.has_guessed = true;
                let refusal = endpoint.guesses.count_failure(asked.peer, asked.now, TokenError::Invalid.into());
                return Ok((vouched, Err(refusal)));
            }
            Err(reject) => {
                self.made.unknown_ek = unknown_ek(&reject).is_some();
                return Ok((vouched, Err(reject.into())));
            }
        };
        let record = &mut self.record;
        record.identity = Some(claims.identity().to_string());
        record.instance = claims
            .instance()
            .filter(|instance| *instance != claims.identity())
            .map(ToString::to_string);
        record.claims = Some(Arc::clone(&claims));
        if let Some(document) = claims.aws_identity_document() {
            // The other regions' certificates had no part in it.
            let region = document.document().replayable().region.clone();
            basis.cloud.region_certificates.retain(|name, _| *name == region);
        }
        Ok((vouched, Ok(claims)))
    }

    /// Returns a refusal of evidence that proves nothing; outdated if the allowlist, the EK roots or the pool that it was verified by
    /// have changed.
    async fn refused_by_what_stands(&self, vouched: Vouched, refusal: Refusal) -> Refusal {
        if refusal.is_unavailable() {
            return refusal;
        }
        let ek = vouched.ek;
        let by_current = self.endpoint.endorsers.is_current(vouched.makers().as_ref());
        let listed = self.endpoint.store.read(move |transaction| match ek {
            Some(ek) => enrolment::allowlisted(transaction, ek),
            None => Ok(None),
        });
        match listed.await {
            Ok(listed) if by_current && listed == vouched.listed && self.endpoint.pools.is_current(&self.asked.pool) => refusal,
            Ok(_) => Refusal::outdated(),
            Err(error) => Refusal::because(&error),
        }
    }

    /// Holds what was proven against the pool: by its policy, and by what names its machines.
    fn appraise(&mut self, vouched: Vouched, claims: Arc<Claims>) -> DecisionInput {
        let (endpoint, EvidenceAsked { pool, now, peer, .. }) = (self.endpoint, self.asked.clone());
        let appraised = attest::appraise(Arc::clone(&claims), &self.asked.policy(), now);
        let (admitted, observed) = match &appraised {
            Ok(result) => (self.admit(&pool, result.claims()), self.observed_values(&pool, result)),
            Err(_) => (Ok(None), None),
        };
        DecisionInput {
            pool,
            now,
            peer,
            seal: Arc::clone(&endpoint.seal),
            ticket: endpoint.ticket,
            notes_attested: endpoint.notes_attested,
            ek: vouched.ek,
            listed: vouched.listed,
            allowlisted: vouched.allowlisted,
            claims,
            appraised,
            admitted,
            observed,
            config: TicketConfig::default(),
            token: token::text(self.asked.evidence),
            answered: Arc::clone(&self.answered),
            record: self.record.clone(),
        }
    }

    /// Decides in one optimistic transaction, by the store at one moment.
    async fn transact(
        &mut self,
        verified: DecisionInput,
        makers: Option<Arc<EkRootsInUse>>,
        awaited: &Awaited,
    ) -> Result<GrantingDecision, Refusal> {
        if self.asked.challenge.is_rehearsal() {
            return Box::pin(self.rehearse_decision(verified, makers)).await;
        }
        let (endpoint, pool) = (self.endpoint, Arc::clone(&self.asked.pool));
        endpoint.decisions.can_record()?;
        let (pools, endorsers, awaited) = (Arc::clone(&endpoint.pools), Arc::clone(&endpoint.endorsers), awaited.clone());
        let verified = Arc::new(verified);
        let deciding = Arc::clone(&verified);
        endpoint.decisions.begin(&self.record.id);
        let decided = endpoint.store.decide(&self.record.id, move |transaction| {
            let decided = decide::decide(transaction, &deciding);
            if !pools.is_current(&deciding.pool) || !endorsers.is_current(makers.as_ref()) {
                return Err(Refusal::outdated().into());
            }
            let earned = decided?;
            match awaited.give() {
                Ok(()) => transaction.decide(pending(&earned.record)?)?,
                Err(gone) => return Err(earned.turned(gone)),
            }
            Ok(earned)
        });
        match decided.await {
            Ok(earned) => {
                self.record = (*earned.record).clone();
                self.made.claimed = true;
                let let_in = match &verified.appraised {
                    Ok(result) => {
                        self.is_let_in(&pool, result, verified.observed.clone(), earned.waited.as_ref())
                            .await
                    }
                    Err(_) => Ok(()),
                };
                if let Err(refusal) = let_in {
                    // The list is bookkeeping: a trusted machine does not wait for it.
                    tracing::warn!("pool {}: cannot update the waiting list: {}", pool.name(), refusal.detail());
                }
                Ok(earned)
            }
            Err(turned) => {
                endpoint.decisions.end(&self.record.id);
                Err(self.refused(&pool, turned)?)
            }
        }
    }

    /// Takes over what a refusal says of the machine, and what an administrator may accept of it.
    ///
    /// # Errors
    /// The machine may be named yet.
    fn refused(&mut self, pool: &Pool, refusal: EvidenceRefusal) -> Result<Refusal, Refusal> {
        let EvidenceRefusal {
            refusal,
            record,
            is_somebodys,
            obstacle,
        } = refusal;
        if let Some(record) = record {
            self.record = *record;
        }
        self.made.claimed = is_somebodys;
        self.note_obstacle(pool, obstacle, &refusal)?;
        Ok(*refusal)
    }

    /// Returns whether a refused machine is known: it is on the allowlist, in an inventory, or has a name, or its instance has an owner.
    /// The owner must be able to read the reason. A revoked machine is not known: its refusal need not be read repeatedly.
    async fn is_known_machine(&self) -> bool {
        let Some(claims) = self.record.claims.clone() else { return false };
        let pools = self.endpoint.pools.all();
        let mut inventories = pools.iter().filter_map(|pool| pool.inventory.as_ref());
        let is_named = inventories.any(|inventory| identities(&claims).any(|identity| inventory.machines().names(identity)))
            || self.made.basis.machine.as_ref().is_some_and(|named| !named.objects.is_empty());
        let known = self
            .endpoint
            .store
            .read(move |transaction| is_known_machine(transaction, &claims, is_named));
        known.await.unwrap_or(false)
    }
}

fn is_known_machine(transaction: &mut EntryTransaction<'_>, claims: &Claims, is_named: bool) -> Result<bool, StoreError> {
    if revocations::refuse(transaction, &[], &identities_of(claims)).is_err() {
        return Ok(false);
    }
    for identity in identities(claims).map(NodeIdentity::as_str) {
        for kind in [EntryKind::Instance, EntryKind::NameOf] {
            if transaction.get(kind, identity)?.is_some() {
                return Ok(true);
            }
        }
    }
    let listed = match claims.tpm() {
        Some(tpm) => enrolment::allowlisted(transaction, tpm.ek_digest)?,
        None => None,
    };
    Ok(is_named || listed.is_some())
}
