//! Rehearsals: a decision like that of a boot, of which nothing is kept but its record.

use std::convert::Infallible;
use std::sync::Arc;

use attest::AppraisalPolicy;
use attest::protocol::{RehearsalResponse, RehearsedRequirement};
use attest_store::{StoreError, Transact};

use super::super::decide::{self, DecisionInput, EvidenceRefusal, GrantingDecision};
use super::{DecidedCase, EvidenceCase};
use crate::api::decisions::refuse;
use crate::api::endorsers::EkRootsInUse;
use crate::api::problem::Refusal;
use crate::api::waiting_client::Awaited;

/// Decision of a transaction that is not committed.
struct Rehearsed(Box<Result<GrantingDecision, EvidenceRefusal>>);

impl From<StoreError> for Rehearsed {
    fn from(error: StoreError) -> Self {
        Self(Box::new(Err(error.into())))
    }
}

impl EvidenceCase<'_> {
    /// Decides, and says what a boot would get. Nothing is written to the store: no name, no use, no history, no question.
    ///
    /// # Errors
    /// A refusal that is not a decision: the gateway cannot answer now, or the challenge was answered before.
    pub(in super::super) async fn rehearse(mut self, awaited: &Awaited) -> Result<DecidedCase<RehearsalResponse>, Refusal> {
        let refusal = match self.earn_by_what_stands(awaited).await {
            Ok(_) => None,
            Err(refusal) if refusal.is_unavailable() => return Err(self.not_decided(refusal)),
            Err(refusal) => Some(refusal),
        };
        let spent = self.spend_challenge().await?;
        if let Some(refusal) = &refusal {
            self.record.acceptable = self.made.waits_for.take().map(super::waiting::WaitsFor::into_acceptable);
            refuse(&mut self.record, refusal);
            self.record.known = self.is_known_machine().await;
        }
        let outcome = RehearsalResponse {
            decision: None,
            grant: self.record.grant.map(|set| set.to_string()),
            name: self.record.name.clone(),
            acceptable: self.record.acceptable.is_some(),
            refusal: refusal.map(|refusal| refusal.problem(None, false)),
            requirements: self.requirements(),
        };
        let Self { record, made, .. } = self;
        Ok(DecidedCase {
            record,
            spent,
            made,
            begins_to_wait: false,
            outcome,
        })
    }

    /// Returns the pool's requirements on what was booted, if the evidence has proven anything.
    fn requirements(&self) -> Vec<RehearsedRequirement> {
        let Some(claims) = &self.record.claims else { return Vec::new() };
        let policy: &AppraisalPolicy = &self.asked.policy();
        let judged = policy.judged(claims, self.asked.now).into_iter();
        judged
            .map(|one| RehearsedRequirement {
                section: one.kind.section().to_owned(),
                requirement: one.requirement,
                code: one.holds.err().map(|reject| reject.code().to_owned()),
            })
            .collect()
    }

    /// Decides in a transaction that is not committed.
    pub(super) async fn rehearse_decision(
        &mut self,
        verified: DecisionInput,
        makers: Option<Arc<EkRootsInUse>>,
    ) -> Result<GrantingDecision, Refusal> {
        let (endpoint, pool) = (self.endpoint, Arc::clone(&self.asked.pool));
        endpoint.decisions.can_record()?;
        let (pools, endorsers) = (Arc::clone(&endpoint.pools), Arc::clone(&endpoint.endorsers));
        // An error leaves the store as it was.
        let rehearsed = endpoint.store.transact(move |transaction| {
            let decided = decide::decide(transaction, &verified);
            let is_current = pools.is_current(&verified.pool) && endorsers.is_current(makers.as_ref());
            Err::<Infallible, _>(Rehearsed(Box::new(match is_current {
                true => decided,
                false => Err(Refusal::outdated().into()),
            })))
        });
        let Err(Rehearsed(decided)) = rehearsed.await;
        match *decided {
            Ok(mut granting) => {
                let record = &mut granting.record;
                (record.ticket, record.use_number, record.again) = (None, None, false);
                self.record = (**record).clone();
                Ok(granting)
            }
            Err(refusal) => Err(self.refused(&pool, refusal)?),
        }
    }
}
