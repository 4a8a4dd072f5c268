//! Checks whether a machine belongs to the pool, by the sources that name its machines.

use attest::{Claims, MachineObject, MachineSets, NodeIdentity, Reject, machine_objects};
use attest_pool::{Pool, PoolInventory};

use super::{DecisionBasis, EvidenceCase};
use crate::api::problem::Refusal;
use crate::pools::live::LivePools;

impl EvidenceCase<'_> {
    /// Checks that the machine is one of the pool's, by its inventory or by the cluster's Machine objects, if it has either. Returns the
    /// object that it was let in by. The cluster is only asked about machines that no inventory names.
    pub(super) fn admit(&mut self, pool: &Pool, claims: &Claims) -> Result<Option<MachineObject>, Refusal> {
        let DecisionBasis { anchors, basis, .. } = &mut self.made;
        let inventory = pool.inventory.as_ref();
        if let Some(inventory) = inventory {
            anchors.use_inventory(inventory, basis);
        }
        let inventory = inventory.map(PoolInventory::machines);
        let rules = match (&pool.machines, inventory.map(|inventory| inventory.admit(claims))) {
            (_, Some(Ok(()))) | (None, None) => return Ok(None),
            (Some(rules), None | Some(Err(Reject::NotInInventory { .. }))) => rules,
            (_, Some(Err(reject))) => return Err(reject.into()),
        };
        let (machines, now) = (&self.endpoint.machines, self.asked.now.as_secs());
        let known = machines.current(rules, now)?;
        let machine = claims.instance().unwrap_or_else(|| claims.identity());
        if known.names(claims) {
            machines.end_wait(machine.as_str());
        } else if machines.is_awaited(machine.as_str(), rules, now) {
            return Err(Refusal::machine_awaited(machine));
        }
        let named = known.find(claims, &rules.of, &other_pools(&self.endpoint.pools, pool, machine));
        let named = basis.machine.insert(named);
        Ok(machine_objects::admit(inventory, Some(named), claims)?.cloned())
    }
}

/// Returns the other pools that have machines of the cluster's. If another pool's inventory names this machine, it is that pool's whatever
/// its object says.
fn other_pools(pools: &LivePools, pool: &Pool, machine: &NodeIdentity) -> Vec<(String, MachineSets)> {
    let others = pools.all().into_iter().filter(|other| other.name() != pool.name());
    others
        .filter_map(|other| {
            let names_it = other
                .inventory
                .as_ref()
                .is_some_and(|inventory| inventory.machines().names(machine));
            let of = match names_it {
                true => Some(pool.machines.as_ref()?.of.clone()),
                false => other.machines.as_ref().map(|rules| rules.of.clone()),
            };
            Some((other.name().to_owned(), of?))
        })
        .collect()
}
