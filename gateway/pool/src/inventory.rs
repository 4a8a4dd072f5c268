//! A pool's inventory: the file that lists its machines.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use attest::Inventory;
use attest::inventory::InventoryError;

use super::by_its_own_tpm;

/// A pool's inventory, as read from its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInventory {
    text: Arc<str>,
    machines: Arc<Inventory>,
}

/// A machine that another pool's inventory lists too.
#[derive(Debug, PartialEq, Eq)]
pub struct Twice {
    pub machine: String,
    pub other: String,
}

impl PoolInventory {
    pub(super) fn parse(text: String) -> Result<Self, InventoryError> {
        let machines = Inventory::parse(&text)?.into();
        Ok(Self {
            text: text.into(),
            machines,
        })
    }

    /// Returns the file's text, for the record: an auditor must find the same machines in it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn machines(&self) -> &Inventory {
        &self.machines
    }
}

/// Returns the pools that share a machine, each with the first one that it shares. A machine belongs to one pool, and two inventories leave
/// open to which. Instances and TPMs are compared separately, anywhere in a line. A machine of AWS or Azure is recognized by either of its
/// identities.
pub fn twice<'a>(inventories: impl Iterator<Item = (&'a str, &'a PoolInventory)>) -> BTreeMap<String, Twice> {
    let mut known: HashMap<String, &str> = HashMap::new();
    let mut twice = BTreeMap::new();
    for (pool, inventory) in inventories {
        for (machine, tpm) in inventory.machines().machines() {
            for name in [Some(machine), tpm].into_iter().flatten() {
                let key = by_its_own_tpm(name).unwrap_or_else(|| name.to_owned());
                let other = *known.entry(key).or_insert(pool);
                if other == pool {
                    continue;
                }
                for (one, another) in [(pool, other), (other, pool)] {
                    twice.entry(one.to_owned()).or_insert_with(|| Twice {
                        machine: name.to_owned(),
                        other: another.to_owned(),
                    });
                }
            }
        }
    }
    twice
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const AZURE: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";

    #[test]
    fn machine_belongs_to_one_inventory() {
        let tpm = format!("tpm:{}", "ab".repeat(32));
        let check = |texts: &[&str], expect: &[(&str, &str, &str)]| {
            let inventories: Vec<_> = texts.iter().map(|text| PoolInventory::parse((*text).to_owned()).unwrap()).collect();
            let named = ["a", "b", "c"].into_iter().zip(&inventories);
            let found = twice(named);
            let found: Vec<_> = found
                .iter()
                .map(|(pool, twice)| (pool.as_str(), twice.machine.as_str(), twice.other.as_str()))
                .collect();
            assert_eq!(found, expect, "{texts:?}");
        };
        check(&["gcp:p/1", "gcp:p/2", ""], &[]);
        check(&["gcp:p/1", "gcp:p/2\ngcp:p/1"], &[("a", "gcp:p/1", "b"), ("b", "gcp:p/1", "a")]);
        check(&["gcp:p/1", "gcp:p/2", "gcp:p/2"], &[("b", "gcp:p/2", "c"), ("c", "gcp:p/2", "b")]);
        let (account, nitro_tpm) = ("aws:123456789012/i-1", "aws-nitrotpm:i-1");
        check(&[account, nitro_tpm], &[("a", nitro_tpm, "b"), ("b", nitro_tpm, "a")]);
        check(&[nitro_tpm, account], &[("a", account, "b"), ("b", account, "a")]);
        check(&[&format!("{account}\n{nitro_tpm}"), "aws:123456789012/i-2"], &[]);
        let (machine, own) = (AZURE, "azure-vtpm:b1310a36-d400-46f6-82cb-6217df846586");
        check(&[machine, own], &[("a", own, "b"), ("b", own, "a")]);
        check(&[own, machine], &[("a", machine, "b"), ("b", machine, "a")]);
        let (one, two) = (format!("gcp:p/1 {tpm}"), format!("gcp:p/2 {tpm}"));
        check(&[&one, &two], &[("a", &tpm, "b"), ("b", &tpm, "a")]);
        check(&[&one, &tpm], &[("a", &tpm, "b"), ("b", &tpm, "a")]);
    }
}
