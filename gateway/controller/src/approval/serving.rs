//! Judgement of requests for kubelets' serving certificates. Approved are those of a node whose client certificate was approved here, for
//! the node's own addresses.

use std::net::IpAddr;

use attest_machines::attested::{ApprovalHold, Bound};

use super::csr::{Csr, NODE_USER};
use super::facts::{Addresses, EgressAddresses, MachineApiMachine};
use super::judge::{CsrFacts, exact_groups, exact_usages};
use super::reason::{Reason, shown};

/// Groups of a node that uses its client certificate.
const NODE_GROUPS: [&str; 2] = ["system:nodes", "system:authenticated"];
const SERVER_AUTH: &str = "server auth";

/// Judges a serving certificate's request; `held` is of the name that was approved, as of the machine that it was approved for.
///
/// # Errors
/// The reason for which it is left.
pub fn judge(csr: &Csr, facts: &CsrFacts<'_>, held: &ApprovalHold) -> Result<(), Reason> {
    let request = csr.request.as_ref().map_err(|error| Reason::Request(error.clone()))?;
    let name = &request.name;
    if csr.username.strip_prefix(NODE_USER) != Some(name) {
        let (username, name) = (shown(&csr.username), name.clone());
        return Err(Reason::ServingOfAnother { username, name });
    }
    exact_groups(csr, &NODE_GROUPS.map(str::to_owned))?;
    exact_usages(csr, SERVER_AUTH)?;
    if let Some(found) = csr.expiration_seconds {
        return Err(Reason::Lifetime { found });
    }
    if let Some(revoked) = &held.revoked {
        return Err(Reason::Revoked(revoked.clone()));
    }
    let Some(approval) = &held.approval else {
        return Err(Reason::NotOurs { name: name.clone() });
    };
    // Given to another since. Where a Machine object named the instance, a machine that has asked for the name is not in its way.
    let counts = held.owner_given || approval.bound != Bound::Machine;
    if let Some(owner) = held.owner.as_ref().filter(|owner| **owner != approval.identity && counts) {
        return Err(Reason::NameTaken {
            name: name.clone(),
            owner: owner.clone(),
            identity: approval.identity.clone(),
        });
    }
    let node = facts.nodes.get(name).ok_or_else(|| Reason::NoNode { name: name.clone() })?;
    let (own, of) = match facts.rules.machines {
        false => (&node.addresses, format!("the Node {name}")),
        true => {
            let machine = machine(name, facts)?;
            (&machine.addresses, format!("the Machine object {}", machine.id))
        }
    };
    addresses(csr, own, facts.egress, name, &of)
}

/// Returns the only Machine object that has become this node.
fn machine<'a>(name: &str, facts: &CsrFacts<'a>) -> Result<&'a MachineApiMachine, Reason> {
    let mut found = facts.machines.iter().filter(|machine| machine.node.as_deref() == Some(name));
    match (found.next(), found.next()) {
        (Some(machine), None) => Ok(machine),
        (Some(one), Some(other)) => Err(Reason::Machines {
            name: name.to_owned(),
            machines: vec![one.id.clone(), other.id.clone()],
        }),
        (None, _) => Err(Reason::NoMachine { name: name.to_owned() }),
    }
}

fn addresses(csr: &Csr, own: &Addresses, egress: &EgressAddresses, node: &str, of: &str) -> Result<(), Reason> {
    let Ok(request) = &csr.request else {
        return Err(Reason::NoAddresses);
    };
    if request.is_without_alternatives() {
        return Err(Reason::NoAddresses);
    }
    let is_own = |address: &IpAddr| own.addresses.contains(address) || egress.is_of(*address, node);
    let names = request.dns_names.iter().filter(|name| !own.has_name(name)).map(|name| shown(name));
    let addresses = request.addresses.iter().filter(|address| !is_own(address));
    match names.chain(addresses.map(ToString::to_string)).next() {
        None => Ok(()),
        Some(found) => Err(Reason::Address { found, of: of.to_owned() }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
