//! Judgement of requests for kubelets' client certificates: a pure function of the facts at that moment.
//!
//! Kubelets make their requests in `pkg/kubelet/certificate` of `kubernetes/kubernetes`. Its controllers recognize them in
//! `pkg/apis/certificates/helpers.go` (`ValidateKubeletClientCSR`). Nothing is approved that would not pass there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use attest_machines::attested::{ApprovalHold, AttestedMachine, Bound};

use super::csr::{Csr, CsrPurpose, CsrStage};
use super::facts::{ApprovalRules, CONTROL_PLANE_ROLE, EgressAddresses, MachineApiMachine, NodeFacts};
use super::reason::{Reason, all_shown, shown};
use super::request::VerifiedCsr;
use crate::settings::ApprovedKeys;

/// Largest accepted difference between the clocks of the API and of gateways, in seconds, as in cluster-machine-approver
/// (`maxMachineClockSkew`).
pub(super) const CLOCK_SKEW_SECONDS: u64 = 10;

/// Usages that every kubelet asks for, in addition to the certificate's purpose; with an RSA key also key encipherment.
const DIGITAL_SIGNATURE: &str = "digital signature";
const KEY_ENCIPHERMENT: &str = "key encipherment";
const CLIENT_AUTH: &str = "client auth";

/// A request, and when this controller judged it first.
#[derive(Debug, Clone)]
pub struct PendingRequest {
    pub csr: Arc<Csr>,
    /// The number of the pass that judged it first.
    pub first_judged: Option<u64>,
    /// True if another controller, or this one before a restart, may have judged it.
    pub maybe_judged_before: bool,
}

/// The attestations that passes have found, by the id of their decision: the number of the first pass that found each.
pub type FirstSeen = HashMap<String, u64>;

/// Facts by which a request is judged.
#[derive(Debug, Clone, Copy)]
pub struct CsrFacts<'a> {
    pub rules: &'a ApprovalRules,
    /// Time of the judgement, in seconds since 1970.
    pub now: u64,
    /// All requests for this node's name, the one that is judged among them.
    pub requests: &'a [PendingRequest],
    pub machines: &'a [MachineApiMachine],
    pub nodes: &'a BTreeMap<String, NodeFacts>,
    /// Egress addresses that nodes have at the moment; empty where they were not asked for.
    pub egress: &'a EgressAddresses,
    /// Attestations that no approval has spent, by identity.
    pub attested: &'a [(String, AttestedMachine)],
    pub first_seen: &'a FirstSeen,
}

/// Result of the judgement of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalVerdict {
    Approve(Ground),
    /// Neither approved nor denied.
    Leave(Reason),
}

/// Facts on which an approval is based.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    /// Identity of the attested machine.
    pub identity: String,
    pub attested: AttestedMachine,
    pub bound: Bound,
    /// The Machine object, if there has to be one.
    pub machine: Option<String>,
}

/// The machines that have attested and may be the node of this name, which is `owner`'s in the store.
///
/// The instance that the Machine object of this name names is that node, whichever machine has asked for the name. Of several machines that
/// have the name, the store's owner of it counts: the others had it earlier.
#[must_use]
pub fn candidates<'a>(name: &str, owner: Option<&str>, facts: &CsrFacts<'a>) -> Vec<&'a (String, AttestedMachine)> {
    let machines = facts.machines.iter().filter(|machine| machine.will_be(name));
    let providers: Vec<_> = machines.filter_map(MachineApiMachine::provider).collect();
    let is_instance = |attested: &AttestedMachine| attested.provider.as_ref().is_some_and(|provider| providers.contains(provider));
    let instances: Vec<_> = facts.attested.iter().filter(|(_, attested)| is_instance(attested)).collect();
    if !instances.is_empty() {
        return instances;
    }
    let has_name = |attested: &AttestedMachine| attested.name.as_deref() == Some(name);
    let mut named: Vec<_> = facts.attested.iter().filter(|(_, attested)| has_name(attested)).collect();
    if named.iter().any(|(identity, _)| Some(identity.as_str()) == owner) {
        named.retain(|(identity, _)| Some(identity.as_str()) == owner);
    }
    named
}

/// Judges a request for a client certificate as that of its only candidate, if there is one. `held` is the state of its name in the store.
#[must_use]
pub fn judge(asked: &PendingRequest, facts: &CsrFacts<'_>, held: &ApprovalHold) -> ApprovalVerdict {
    match ground(asked, facts, held) {
        Ok(ground) => ApprovalVerdict::Approve(ground),
        Err(reason) => ApprovalVerdict::Leave(reason),
    }
}

fn ground(asked: &PendingRequest, facts: &CsrFacts<'_>, held: &ApprovalHold) -> Result<Ground, Reason> {
    let csr = &*asked.csr;
    let request = form(csr, facts.rules)?;
    let name = request.name.as_str();
    if let Some(revoked) = &held.revoked {
        return Err(Reason::Revoked(revoked.clone()));
    }
    let control_plane = control_plane(name, facts);
    let is_of_control_plane = |pool: &String| facts.rules.control_plane_pools.contains(pool);
    if let Some(by) = &control_plane
        && !facts.rules.pools.iter().any(is_of_control_plane)
    {
        let (name, by) = (name.to_owned(), by.clone());
        let whose = "approval.pools has no pool of the control plane".to_owned();
        return Err(Reason::ControlPlane { name, by, whose });
    }
    if facts.nodes.contains_key(name) {
        return Err(Reason::NodeExists { name: name.to_owned() });
    }
    let (identity, attested) = candidate(name, held, facts)?;
    in_time(asked, name, (identity, attested), facts)?;
    key(request, identity, attested, facts.rules)?;
    let pool = &attested.pool;
    if !facts.rules.pools.contains(pool) {
        let (identity, pool) = (identity.clone(), pool.clone());
        return Err(Reason::Pool { identity, pool });
    }
    if let Some(by) = control_plane
        && !is_of_control_plane(pool)
    {
        let (name, whose) = (name.to_owned(), format!("{identity} attested for pool {pool}"));
        return Err(Reason::ControlPlane { name, by, whose });
    }
    pool_name(name, identity, pool, facts.rules)?;
    let machine = machine(name, attested, facts)?;
    let bound = bound(name, identity, attested, machine, held, facts.rules)?;
    alone(csr, request, (identity, attested), held, facts)?;
    Ok(Ground {
        identity: identity.clone(),
        attested: attested.clone(),
        bound,
        machine: machine.map(|machine| machine.id.clone()),
    })
}

/// Checks that the request has the form of a kubelet's, and the sender of those for new nodes.
pub(super) fn form<'c>(csr: &'c Csr, rules: &ApprovalRules) -> Result<&'c VerifiedCsr, Reason> {
    let request = csr.request.as_ref().map_err(|error| Reason::Request(error.clone()))?;
    if csr.username != rules.requester {
        let (found, expected) = (shown(&csr.username), rules.requester.clone());
        return Err(Reason::Requester { found, expected });
    }
    exact_groups(csr, &rules.groups)?;
    exact_usages(csr, CLIENT_AUTH)?;
    if let Some(found) = csr.expiration_seconds {
        return Err(Reason::Lifetime { found });
    }
    if !request.is_without_alternatives() {
        return Err(Reason::AlternativeNames);
    }
    Ok(request)
}

/// Exactly these groups, each once.
pub(super) fn exact_groups(csr: &Csr, expected: &[String]) -> Result<(), Reason> {
    if is_exactly(&csr.groups, expected) {
        return Ok(());
    }
    Err(Reason::Groups {
        username: shown(&csr.username),
        found: all_shown(csr.groups.iter().map(String::as_str)),
        expected: expected.to_vec(),
    })
}

/// Exactly a kubelet's usages for this.
pub(super) fn exact_usages(csr: &Csr, of: &'static str) -> Result<(), Reason> {
    let wanted = |usages: &[&str]| usages.iter().map(|usage| (*usage).to_owned()).collect::<Vec<_>>();
    let (short, long) = (wanted(&[DIGITAL_SIGNATURE, of]), wanted(&[DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, of]));
    if is_exactly(&csr.usages, &short) || is_exactly(&csr.usages, &long) {
        return Ok(());
    }
    let found = all_shown(csr.usages.iter().map(String::as_str));
    Err(Reason::Usages { found, of })
}

fn is_exactly(found: &[String], expected: &[String]) -> bool {
    found.len() == expected.len() && expected.iter().all(|one| found.contains(one))
}

/// Returns the source by which a name is the control plane's, if there is one.
fn control_plane(name: &str, facts: &CsrFacts<'_>) -> Option<String> {
    let is_host = |machine: &&MachineApiMachine| machine.will_be(name) && machine.role.as_deref() == Some(CONTROL_PLANE_ROLE);
    if let Some(machine) = facts.machines.iter().find(is_host) {
        return Some(format!("the Machine object {}", machine.id));
    }
    if facts.nodes.get(name).is_some_and(|node| node.is_control_plane) {
        return Some("its Node".to_owned());
    }
    let says = |pool: &&String| {
        let names = facts.rules.names.get(*pool);
        names.is_some_and(|names| names.check(name, pool).is_ok())
    };
    let pool = facts.rules.control_plane_pools.iter().find(says)?;
    Some(format!("the names of pool {pool}"))
}

/// Returns the only machine that may be this node.
fn candidate<'a>(name: &str, held: &ApprovalHold, facts: &CsrFacts<'a>) -> Result<(&'a String, &'a AttestedMachine), Reason> {
    let found = candidates(name, held.owner.as_deref(), facts);
    let name = name.to_owned();
    match found.as_slice() {
        [] => Err(Reason::NotAttested { name }),
        [(identity, attested)] => Ok((identity, attested)),
        several => {
            let identities = all_shown(several.iter().map(|(identity, _)| identity.as_str()));
            Err(Reason::Ambiguous { name, identities })
        }
    }
}

/// Checks that the attestation is fresh, and the request newer. An earlier request is of another boot, or of a client that has waited for
/// this attestation.
fn in_time(
    asked: &PendingRequest,
    name: &str,
    (identity, attested): (&String, &AttestedMachine),
    facts: &CsrFacts<'_>,
) -> Result<(), Reason> {
    let (at, within) = (attested.at, facts.rules.within_seconds);
    if at > facts.now.saturating_add(CLOCK_SKEW_SECONDS) || at.saturating_add(within) < facts.now {
        return Err(Reason::AttestedThen {
            name: name.to_owned(),
            identity: identity.clone(),
            at,
            minutes: within / 60,
        });
    }
    let (identity, created) = (identity.clone(), asked.csr.created);
    if was_judged_before(asked, attested, facts) {
        return Err(Reason::JudgedBefore { identity, created, at });
    }
    // Without the allowance for clocks where the order in which both came here is not known.
    let skew = if asked.maybe_judged_before { 0 } else { CLOCK_SKEW_SECONDS };
    if created.saturating_add(skew) < at {
        return Err(Reason::BeforeAttestation { identity, created, at });
    }
    Ok(())
}

/// Returns whether this controller judged the request before it knew of the attestation.
fn was_judged_before(asked: &PendingRequest, attested: &AttestedMachine, facts: &CsrFacts<'_>) -> bool {
    let seen = facts.first_seen.get(&attested.decision);
    asked.first_judged.is_some_and(|judged| seen.is_none_or(|seen| *seen > judged))
}

/// Checks that the key is the one that the machine has attested for its kubelet. A machine may have attested none, unless the rules require
/// one.
fn key(request: &VerifiedCsr, identity: &str, attested: &AttestedMachine, rules: &ApprovalRules) -> Result<(), Reason> {
    let (found, identity) = (request.key, identity.to_owned());
    match attested.key_sha256 {
        Some(attested) if attested != found => Err(Reason::Key { identity, found, attested }),
        None if rules.keys == ApprovedKeys::Attested => Err(Reason::NoKey { identity }),
        _ => Ok(()),
    }
}

/// Checks that the name is one of the pool's, and not another's, as far as pools have names. Without Machine objects the pool needs names.
fn pool_name(name: &str, identity: &str, pool: &str, rules: &ApprovalRules) -> Result<(), Reason> {
    let says = |of: &str| {
        let names = rules.names.get(of).filter(|names| !names.is_empty())?;
        Some(names.check(name, of).is_ok())
    };
    let wrong = |of: Option<&String>| Reason::PoolName {
        name: name.to_owned(),
        identity: identity.to_owned(),
        pool: pool.to_owned(),
        of: of.cloned(),
    };
    match says(pool) {
        Some(true) => Ok(()),
        None if rules.machines => {
            let other = rules.names.keys().find(|of| says(of) == Some(true));
            other.map_or(Ok(()), |of| Err(wrong(Some(of))))
        }
        _ => Err(wrong(None)),
    }
}

/// Returns the Machine object that the node will belong to, if one is required. It has to be the machine's, as far as can be told, and must
/// not have become a node yet.
fn machine<'a>(name: &str, attested: &AttestedMachine, facts: &CsrFacts<'a>) -> Result<Option<&'a MachineApiMachine>, Reason> {
    if !facts.rules.machines {
        return Ok(None);
    }
    let found: Vec<&MachineApiMachine> = facts.machines.iter().filter(|machine| machine.will_be(name)).collect();
    let machine = match found.as_slice() {
        [] => return Err(Reason::NoMachine { name: name.to_owned() }),
        [machine] => *machine,
        several => {
            let machines = all_shown(several.iter().map(|machine| machine.id.as_str()));
            return Err(Reason::Machines {
                name: name.to_owned(),
                machines,
            });
        }
    };
    let wrong = |why: String| {
        Err(Reason::Machine {
            machine: machine.id.clone(),
            why,
        })
    };
    if let Some(node) = &machine.node {
        return wrong(format!("already became the node {node}"));
    }
    if machine.going {
        return wrong("is being deleted".to_owned());
    }
    let is_host = machine.role.as_deref() == Some(CONTROL_PLANE_ROLE);
    if is_host != facts.rules.control_plane_pools.contains(&attested.pool) {
        let role = machine.role.as_deref().unwrap_or("none");
        return wrong(format!(
            "has the role {}, but its machine attested for pool {}",
            shown(role),
            attested.pool
        ));
    }
    if let (Some(provider), Some(own)) = (machine.provider(), &attested.provider)
        && provider != *own
    {
        let id = machine.provider_id.as_deref().unwrap_or_default();
        return wrong(format!("has the instance {}, but another instance attested", shown(id)));
    }
    Ok(Some(machine))
}

/// Returns the fact that binds the machine to the node of that name.
fn bound(
    name: &str,
    identity: &str,
    attested: &AttestedMachine,
    machine: Option<&MachineApiMachine>,
    held: &ApprovalHold,
    rules: &ApprovalRules,
) -> Result<Bound, Reason> {
    let is_instance = machine
        .and_then(MachineApiMachine::provider)
        .is_some_and(|provider| attested.provider == Some(provider));
    // A name that a machine has only asked for is not in the way of the instance that the Machine object names.
    let is_in_the_way = |owner: &&String| *owner != identity && (held.owner_given || !is_instance);
    if let Some(owner) = held.owner.as_ref().filter(is_in_the_way) {
        return Err(Reason::NameTaken {
            name: name.to_owned(),
            owner: owner.clone(),
            identity: identity.to_owned(),
        });
    }
    if let Some(known) = &held.other_name {
        return Err(Reason::OtherName {
            name: name.to_owned(),
            known: known.clone(),
            identity: identity.to_owned(),
        });
    }
    if is_instance {
        return Ok(Bound::Machine);
    }
    // The name is in the store still, or the administrator has taken it back.
    let is_its_own = held.owner.is_some();
    match (is_its_own && held.given, is_its_own && rules.asked_names) {
        (true, _) => Ok(Bound::Given),
        (_, true) => Ok(Bound::Asked),
        _ => Err(Reason::AskedName {
            name: name.to_owned(),
            identity: identity.to_owned(),
        }),
    }
}

/// Checks that no other request for the name is pending, or was approved since the machine has attested. A request that can never be
/// approved does not count.
fn alone(
    csr: &Csr,
    request: &VerifiedCsr,
    (identity, attested): (&String, &AttestedMachine),
    held: &ApprovalHold,
    facts: &CsrFacts<'_>,
) -> Result<(), Reason> {
    // What was approved here has spent an earlier attestation.
    let own = held.approval.as_ref().map(|approval| approval.uid.as_str());
    let is_rival = |other: &&PendingRequest| {
        let its = other.csr.request.as_ref().ok();
        other.csr.purpose == CsrPurpose::Client
            && other.csr.uid != csr.uid
            && own != Some(other.csr.uid.as_str())
            && its.is_some_and(|its| its.name == request.name && its.key != request.key)
    };
    let is_since = |seconds: u64| seconds.saturating_add(CLOCK_SKEW_SECONDS) >= attested.at;
    let rivals = || facts.requests.iter().filter(is_rival);
    // By when it was approved: one that was made before may have been approved since.
    let approved_since = |other: &&PendingRequest| {
        let since = other.csr.approved.unwrap_or_default().max(other.csr.created);
        other.csr.stage == CsrStage::Approved && is_since(since)
    };
    if let Some(other) = rivals().find(approved_since) {
        return Err(Reason::ApprovedElsewhere {
            name: request.name.clone(),
            other: other.csr.name.clone(),
            created: other.csr.created,
            approved: other.csr.approved,
            identity: identity.clone(),
            at: attested.at,
        });
    }
    // A request for another key than the attested one is somebody else's, and is in nobody's way.
    if attested.key_sha256.is_some() {
        return Ok(());
    }
    let pending = rivals().filter(|other| {
        other.csr.stage == CsrStage::Pending
            && is_since(other.csr.created)
            && !was_judged_before(other, attested, facts)
            && form(&other.csr, facts.rules).is_ok()
    });
    let mut others = all_shown(pending.map(|other| other.csr.name.as_str()));
    if others.is_empty() {
        return Ok(());
    }
    others.sort();
    Err(Reason::Duplicate {
        name: request.name.clone(),
        others,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
pub(super) mod tests;
