//! The decision about verified evidence, by one moment of the store. It queries nothing else, and the time is an input.

use std::net::IpAddr;
use std::sync::Arc;

use attest::reference_sets::NewValue;
use attest::{AttestationResult, Claims, EkDigest, MachineObject, NodeIdentity, Reject, UnixTime};
use attest_log::{Record, TicketTerms, Verdict, WouldRefuse, trusted_by};
use attest_machines::attested::{self, AttestedMachine};
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::history::History;
use attest_machines::instances::{self, InstanceClaim};
use attest_machines::{revocations, waiting};
use attest_store::{EntryKind, EntryTransaction, StoreEntry, StoreError};
use zeroize::Zeroizing;

use super::super::problem::Refusal;
use crate::credentials::challenges::{AnsweredChallenge, Spent};
use crate::credentials::seal::SealKeyRing;
use crate::credentials::{tickets, tokens};
use crate::policy::Grant;
use crate::settings::TicketSettings;
use attest_pool::Pool;

/// Verified evidence, and all other inputs of its decision, apart from the store.
pub(super) struct DecisionInput {
    pub(super) pool: Arc<Pool>,
    pub(super) now: UnixTime,
    pub(super) peer: IpAddr,
    pub(super) seal: Arc<SealKeyRing>,
    pub(super) ticket: TicketSettings,
    /// Set if the store keeps which machines have attested, because approvals depend on it.
    pub(super) notes_attested: bool,
    /// The EK that was endorsed, and its entry of the allowlist at that time.
    pub(super) ek: Option<EkDigest>,
    pub(super) listed: Option<EkRecord>,
    /// The entry of the allowlist that counts in this pool.
    pub(super) allowlisted: Option<EkRecord>,
    /// Claims that the evidence proves.
    pub(super) claims: Arc<Claims>,
    /// Result of the pool's policy for these claims.
    pub(super) appraised: Result<AttestationResult, Reject>,
    /// Membership in the pool, with the Machine object that proves it; only checked if the policy accepts the claims.
    pub(super) admitted: Result<Option<MachineObject>, Refusal>,
    /// New values of a machine that the policy accepts because the pool observes.
    pub(super) observed: Option<Vec<NewValue>>,
    /// Form of the config for the ticket.
    pub(super) config: tickets::TicketConfig,
    /// A provisioning token that came with the evidence.
    pub(super) token: Option<Zeroizing<String>>,
    pub(super) answered: Arc<AnsweredChallenge>,
    /// The record, as far as it has come.
    pub(super) record: Record,
}

/// A decision that gives something.
pub(super) struct GrantingDecision {
    pub(super) record: Box<Record>,
    pub(super) ticket: tickets::IssuedTicket,
    /// The challenge, spent by the transaction of the decision.
    pub(super) spent: Spent,
    /// Entry of the waiting list, if the machine has waited.
    pub(super) waited: Option<StoreEntry>,
    /// Set if the instance had an owner already.
    is_somebodys: bool,
}

impl GrantingDecision {
    /// Turns it into a refusal: nothing is given, and nothing was written.
    pub(super) fn turned(self, refusal: Refusal) -> EvidenceRefusal {
        let Self { record, is_somebodys, .. } = self;
        EvidenceRefusal::with(refusal, *record, is_somebodys, Obstacle::Other)
    }
}

/// A decision that gives nothing. Nothing was written.
pub(super) struct EvidenceRefusal {
    pub(super) refusal: Box<Refusal>,
    /// The record so far; `None` if the store failed.
    pub(super) record: Option<Box<Record>>,
    /// Set if the instance has an owner, as far as that was looked up.
    pub(super) is_somebodys: bool,
    pub(super) obstacle: Obstacle,
}

/// Cause of a refusal that the refusal itself does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// None of these. The refusal names what an administrator may accept, if anything.
    Other,
    /// The pool's policy. The history of its TPMs is no obstacle.
    Policy,
    /// The pool's inventory.
    Inventory,
}

impl EvidenceRefusal {
    fn with(refusal: Refusal, mut record: Record, is_somebodys: bool, obstacle: Obstacle) -> Self {
        (record.use_number, record.again, record.ticket) = (None, false, None);
        Self {
            refusal: Box::new(refusal),
            record: Some(Box::new(record)),
            is_somebodys,
            obstacle,
        }
    }
}

impl From<Refusal> for EvidenceRefusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal: Box::new(refusal),
            record: None,
            is_somebodys: false,
            obstacle: Obstacle::Other,
        }
    }
}

impl From<StoreError> for EvidenceRefusal {
    fn from(error: StoreError) -> Self {
        Refusal::from(error).into()
    }
}

/// State of a decision in progress.
struct Way {
    record: Record,
    is_somebodys: bool,
    obstacle: Obstacle,
}

/// Result of a granting transaction: its ticket, and the entries that it has ended.
struct Earned {
    spent: Spent,
    waited: Option<StoreEntry>,
    ticket: tickets::IssuedTicket,
}

/// Decides about verified evidence. What it earns is written by the transaction.
///
/// # Errors
/// [`EvidenceRefusal`]; outdated if what the evidence was verified by has changed.
pub(super) fn decide(transaction: &mut EntryTransaction<'_>, verified: &DecisionInput) -> Result<GrantingDecision, EvidenceRefusal> {
    let mut way = Way {
        record: verified.record.clone(),
        is_somebodys: false,
        obstacle: Obstacle::Other,
    };
    let earned = verified.earn(transaction, &mut way);
    let Way {
        record,
        is_somebodys,
        obstacle,
    } = way;
    match earned {
        Ok(Earned { spent, waited, ticket }) => Ok(GrantingDecision {
            record: Box::new(record),
            ticket,
            spent,
            waited,
            is_somebodys,
        }),
        Err(refusal) => Err(EvidenceRefusal::with(refusal, record, is_somebodys, obstacle)),
    }
}

impl DecisionInput {
    /// Fetches the entries of the store whose keys are known in advance: an engine across a network then needs one request.
    fn fetch(&self, transaction: &mut EntryTransaction<'_>) -> Result<(), StoreError> {
        let (claims, pool) = (&self.claims, &self.pool);
        let mut wanted = History::wanted(claims, &pool.policy);
        wanted.extend(instances::wanted(claims));
        wanted.extend(self.ek.map(|ek| (EntryKind::Ek, ek.to_string())));
        wanted.extend(enrolment::instance_ids(claims).into_iter().map(|id| (EntryKind::Ek, id)));
        for name in self.names() {
            wanted.push((EntryKind::Name, name.to_owned()));
        }
        for identity in identities(claims) {
            wanted.push((EntryKind::NameOf, identity.to_string()));
        }
        wanted.push(waiting::wanted(pool.name(), claims.identity().as_str()));
        wanted.extend(revocations::wanted(&self.names(), &identities_of(claims)));
        transaction.fetch(wanted.iter().map(|(kind, id)| (*kind, id.as_str())))
    }

    /// Returns the names that the machine comes with: the administrator's, and the one that it asks for.
    fn names(&self) -> Vec<&str> {
        let given = self.allowlisted.as_ref().and_then(|record| record.name.as_deref());
        given.into_iter().chain(self.claims.name()).collect()
    }

    fn earn(&self, transaction: &mut EntryTransaction<'_>, way: &mut Way) -> Result<Earned, Refusal> {
        let (pool, claims) = (&self.pool, &self.claims);
        self.fetch(transaction)?;
        let spent = self.answered.spend_in(transaction)?;
        // It was verified by what the allowlist said then.
        if let Some(ek) = self.ek
            && enrolment::allowlisted(transaction, ek)? != self.listed
        {
            return Err(Refusal::outdated());
        }
        revocations::refuse(transaction, &self.names(), &identities_of(claims))?;
        let history = History::read(transaction, claims, &pool.policy)?;
        way.record.alerts.extend(history.alerts());
        let result = match &self.appraised {
            Ok(result) => result,
            Err(reject) => {
                way.record.booted_before = history.before(reject);
                if history.refused(pool.history).is_none() {
                    way.obstacle = Obstacle::Policy;
                }
                return Err(reject.clone().into());
            }
        };
        let listed_instance = enrolment::listed_instance(transaction, claims)?;
        if let (Some(instance), Some(record)) = (claims.instance(), &listed_instance)
            && !record.may_join(pool.name())
        {
            return Err(Refusal::instance_wrong_pool(instance, pool.name()));
        }
        if self.admitted.as_ref().is_err_and(Refusal::is_not_in_inventory) {
            way.obstacle = Obstacle::Inventory;
        }
        let object = self.admitted.as_ref().map_err(Clone::clone)?.as_ref();
        let grant = Grant::for_attested(&pool.grants, result).ok_or_else(|| Refusal::attested_not_accepted(pool.name()))?;
        if let Some(refused) = history.refused(pool.history) {
            return Err(refused.into());
        }
        way.is_somebodys = instances::is_somebodys(transaction, claims)?;
        let node = tokens::TokenHolder::Attested(claims.identity());
        let token = match &self.token {
            Some(text) => Some(tokens::open(transaction, text, pool.name(), self.peer, self.now)?),
            None => None,
        };
        let claim = InstanceClaim {
            claims,
            first_use_binds: pool.policy.first_use_binds(claims.kinds()),
            at: self.now.as_secs(),
            peer: &self.peer.to_string(),
        };
        let alerts = &mut way.record.alerts;
        let taken = claim.make(transaction).inspect_err(|error| alerts.extend(error.alert()))?;
        way.record.alerts.extend(taken.alert);
        let (name, identity) = (claims.name(), claims.identity());
        // With a TPM, the node's name is the TPM's.
        let listed_instance = listed_instance.filter(|_| claims.instance() == Some(identity));
        let given = self.allowlisted.as_ref().or(listed_instance.as_ref());
        let settled = enrolment::settle_name(transaction, given, name, identity);
        let record = &mut way.record;
        record.name = settled.inspect_err(|error| record.alerts.extend(error.alert()))?;
        if self.notes_attested {
            let attested = AttestedMachine::new(claims, &record.pool, record.name.as_deref(), record.at, &record.id);
            attested::note(transaction, identity, &attested)?;
        }
        history.note(transaction, record.at, &record.id)?;
        let waits_no_more = pool.waiting.is_some() && self.observed.is_none();
        let waited = match waits_no_more {
            true => waiting::end_wait(transaction, pool.name(), identity.as_str())?,
            false => None,
        };
        // Last, when nothing else can be wrong with the node.
        if let Some(token) = token {
            let redeemed = token.redeem(transaction, node)?;
            record.use_number = Some(redeemed.use_number());
            record.again = redeemed.is_repeated();
            record.alerts.extend(redeemed.stale().map(str::to_owned));
        }
        record.verdict = Verdict::Trusted;
        record.grant = Some(grant.set());
        record.grants = Some(pool.grants);
        record.reason = trusted_by(result);
        record.would_refuse = WouldRefuse::all_of(result);
        if let Some(object) = object {
            record.reason = format!("{}; the cluster's Machine object {} names it", record.reason, object.name);
        }
        let earned = tickets::TicketGrant {
            identity,
            instance: claims.instance(),
            holder: taken.record.as_ref(),
            object,
            name: record.name.as_deref(),
            pool: grant.pool(),
            decision: &record.id,
            endorsed_by: claims.tpm().map(|tpm| &tpm.endorsed_by),
            config: &self.config,
        };
        let ticket = tickets::issue(&self.seal, &self.ticket, &earned, self.now).map_err(|error| Refusal::because(&error))?;
        record.ticket = Some(TicketTerms {
            expires: ticket.expires,
            uses: self.ticket.uses,
            late_seconds: self.ticket.late.as_secs(),
            config_sha256: self.config.promise.as_ref().map(|promise| promise.sha256.clone()),
        });
        Ok(Earned { spent, waited, ticket })
    }
}

/// Returns all identities of a machine.
pub(super) fn identities(claims: &Claims) -> impl Iterator<Item = &NodeIdentity> {
    claims.instance().into_iter().chain([claims.identity()])
}

pub(super) fn identities_of(claims: &Claims) -> Vec<&str> {
    identities(claims).map(NodeIdentity::as_str).collect()
}

#[cfg(test)]
mod tests;
