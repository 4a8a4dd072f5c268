//! Snapshot of the cluster's Machine objects: which instances the cluster has created, and which of them have joined.
//!
//! A watch of the API keeps the snapshot current. This module answers the queries of decisions.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use attest::machine_objects::{key_of_claims, key_of_provider_id};
use attest::{Claims, MachineObject, MachineSets, NamedMachine};
use attest_pool::MachineRules;

/// Maximum number of objects of one instance in a record: two already show that one is wrong.
const RECORDED_LIMIT_OBJECTS: usize = 4;
/// Maximum number of machines whose wait for an object is remembered: more than boot within one wait.
const AWAITED_LIMIT_MACHINES: usize = 10_000;
/// Time after the end of its wait in which a machine is refused at once, in seconds: longer than a refused machine takes to retry.
const REFUSED_SECONDS: u64 = 3600;

/// Snapshot of all objects.
#[derive(Debug, Default)]
pub struct ObjectSnapshot {
    by_instance: HashMap<String, Vec<Arc<MachineObject>>>,
    by_uid: HashMap<String, Arc<MachineObject>>,
}

impl ObjectSnapshot {
    /// Builds the snapshot from Machine objects and Nodes; each Node as its `providerID` and name.
    pub fn from_objects(objects: impl Iterator<Item = MachineObject>, nodes: impl Iterator<Item = (String, String)>) -> Self {
        let nodes: HashMap<String, String> = nodes
            .filter_map(|(provider_id, name)| Some((key_of_provider_id(&provider_id)?, name)))
            .collect();
        let mut told = Self::default();
        for mut object in objects {
            let key = key_of_provider_id(&object.provider_id);
            if object.node.is_none() {
                object.node = key.as_ref().and_then(|key| nodes.get(key)).cloned();
            }
            let object = Arc::new(object);
            told.by_uid.insert(object.uid.clone(), Arc::clone(&object));
            if let Some(key) = key {
                told.by_instance.entry(key).or_default().push(object);
            }
        }
        told
    }

    fn naming(&self, claims: &Claims) -> &[Arc<MachineObject>] {
        let found = key_of_claims(claims).and_then(|key| self.by_instance.get(&key));
        found.map_or(&[], Vec::as_slice)
    }
}

/// Reason why the cluster's machines are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MachinesUnknown {
    /// The gateway watches no cluster.
    #[error("the pool's inventory is the cluster's Machine objects, but cluster.machines is not enabled in gateway.toml")]
    NotAsked,
    /// They have not been listed yet.
    #[error("the cluster's Machine objects and Nodes are not read yet")]
    NotYet,
    /// The snapshot is too old for the pool.
    #[error("the state of the cluster's Machine objects and Nodes is {age} s old; the pool accepts at most {limit} s")]
    TooOld { age: u64, limit: u64 },
}

/// A snapshot that is recent enough, with its age.
#[derive(Debug, Clone)]
pub struct KnownMachines {
    snapshot: Arc<ObjectSnapshot>,
    age_seconds: u64,
}

impl KnownMachines {
    /// Returns what the objects say about a machine that has attested, for a pool of these machine sets.
    #[must_use]
    pub fn find(&self, claims: &Claims, of: &MachineSets, others: &[(String, MachineSets)]) -> NamedMachine {
        let objects: Vec<MachineObject> = self
            .snapshot
            .naming(claims)
            .iter()
            .take(RECORDED_LIMIT_OBJECTS)
            .map(|object| (**object).clone())
            .collect();
        let has_it = |(_, of): &&(String, MachineSets)| objects.iter().any(|object| of.has(object));
        NamedMachine {
            of: of.clone(),
            other_pool: others.iter().find(has_it).map(|(name, _)| name.clone()),
            objects,
            age_seconds: self.age_seconds,
        }
    }

    /// Returns whether any object names the machine, in whatever state.
    #[must_use]
    pub fn names(&self, claims: &Claims) -> bool {
        !self.snapshot.naming(claims).is_empty()
    }

    /// Returns whether a machine that this object let in would still be let in.
    #[must_use]
    pub fn still_has(&self, uid: &str, of: &MachineSets) -> bool {
        let object = self.snapshot.by_uid.get(uid);
        object.is_some_and(|object| of.has(object) && !object.ends && object.node.is_none())
    }
}

/// Time since which the cluster has not answered, in seconds since 1970; `None` while it answers.
type Away = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// The snapshot of objects, and the machines that wait for one.
#[derive(Default)]
pub struct MachineObjects {
    snapshot: ArcSwapOption<ObjectSnapshot>,
    /// `None` if the gateway watches no cluster.
    away: Option<Away>,
    /// Machines that no object names, with the start of their wait, in seconds since 1970.
    awaited: Mutex<BTreeMap<String, u64>>,
}

impl MachineObjects {
    /// Creates an empty snapshot for a cluster; `away` returns since when the cluster has not answered.
    #[must_use]
    pub fn for_cluster(away: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self {
            away: Some(Box::new(away)),
            ..Self::default()
        }
    }

    /// Replaces the snapshot by a newer one.
    pub fn replace(&self, told: ObjectSnapshot) {
        self.snapshot.store(Some(Arc::new(told)));
    }

    /// Returns the snapshot, if it is not too old for a pool.
    ///
    /// # Errors
    /// [`MachinesUnknown`].
    pub fn current(&self, rules: &MachineRules, now: u64) -> Result<KnownMachines, MachinesUnknown> {
        let away = self.away.as_ref().ok_or(MachinesUnknown::NotAsked)?;
        let told = self.snapshot.load_full().ok_or(MachinesUnknown::NotYet)?;
        let age = away().map_or(0, |since| now.saturating_sub(since));
        let limit = rules.max_age_seconds;
        if age > limit {
            return Err(MachinesUnknown::TooOld { age, limit });
        }
        Ok(KnownMachines {
            snapshot: told,
            age_seconds: age,
        })
    }

    /// Returns whether a machine that no object names still waits for one. A new object arrives with a delay, and may name its instance
    /// only when that is already running.
    #[must_use]
    pub fn is_awaited(&self, machine: &str, rules: &MachineRules, now: u64) -> bool {
        let limit = rules.wait_seconds;
        let is_over = |since: u64| now > since.saturating_add(limit).saturating_add(REFUSED_SECONDS) || since > now;
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = awaited.get_mut(machine) {
            if is_over(*since) {
                *since = now;
            }
            return now.saturating_sub(*since) < limit;
        }
        if awaited.len() >= AWAITED_LIMIT_MACHINES {
            awaited.retain(|_, since| !is_over(*since));
        }
        // Of more than are remembered each waits for as long as it likes.
        if awaited.len() < AWAITED_LIMIT_MACHINES {
            awaited.insert(machine.to_owned(), now);
        }
        limit > 0
    }

    /// Ends the wait of a machine that an object names.
    pub fn end_wait(&self, machine: &str) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(machine);
    }
}

impl fmt::Debug for MachineObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineObjects").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const AWS: &str = "aws:///eu-central-1a/i-0123456789abcdef0";

    fn rules() -> MachineRules {
        MachineRules {
            of: MachineSets {
                machine_sets: vec!["worker-*".to_owned().try_into().unwrap()],
                control_plane: false,
            },
            max_age_seconds: 600,
            wait_seconds: 180,
        }
    }

    fn object(uid: &str) -> MachineObject {
        MachineObject {
            name: "worker-a-x7k2p".to_owned(),
            uid: uid.to_owned(),
            provider_id: AWS.to_owned(),
            created: 1000,
            machine_set: Some("worker-a".to_owned()),
            control_plane: false,
            ends: false,
            node: None,
        }
    }

    fn snapshot(objects: &[MachineObject], nodes: &[(&str, &str)]) -> ObjectSnapshot {
        let nodes = nodes.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned()));
        ObjectSnapshot::from_objects(objects.iter().cloned(), nodes)
    }

    #[test]
    fn cached_machine_objects_expire() {
        let since = Arc::new(AtomicU64::new(0));
        let away = Arc::clone(&since);
        let machines = MachineObjects::for_cluster(move || Some(away.load(Ordering::Relaxed)).filter(|since| *since > 0));
        let known = |now| machines.current(&rules(), now).map(|known| known.age_seconds);
        assert_eq!(known(10_000), Err(MachinesUnknown::NotYet));
        machines.replace(ObjectSnapshot::default());
        assert_eq!(known(10_000), Ok(0));
        since.store(10_000, Ordering::Relaxed);
        assert_eq!((known(10_000), known(10_600)), (Ok(0), Ok(600)));
        assert_eq!(known(10_601), Err(MachinesUnknown::TooOld { age: 601, limit: 600 }));
        since.store(0, Ordering::Relaxed);
        assert_eq!(known(10_601), Ok(0));
        assert_eq!(
            MachineObjects::default().current(&rules(), 0).unwrap_err(),
            MachinesUnknown::NotAsked
        );
    }

    #[test]
    fn provider_id_links_a_node_to_its_machine() {
        let check = |objects: &[MachineObject], nodes: &[(&str, &str)], expect: Option<&str>| {
            assert_eq!(snapshot(objects, nodes).by_uid["1"].node.as_deref(), expect, "{nodes:?}");
        };
        check(&[object("1")], &[], None);
        check(&[object("1")], &[(AWS, "n")], Some("n"));
        check(&[object("1")], &[("aws:///eu-central-1a/i-1", "n"), ("", "m")], None);
        let joined = MachineObject {
            node: Some("by-ref".to_owned()),
            ..object("1")
        };
        check(&[joined], &[(AWS, "n")], Some("by-ref"));
    }

    #[test]
    fn attack_30_ticket_is_valid_while_its_machine_object_exists() {
        let check = |objects: &[MachineObject], nodes: &[(&str, &str)], expect: bool| {
            let known = KnownMachines {
                snapshot: snapshot(objects, nodes).into(),
                age_seconds: 0,
            };
            assert_eq!(known.still_has("1", &rules().of), expect, "{objects:?} {nodes:?}");
        };
        check(&[object("1")], &[], true);
        check(&[], &[], false);
        // One of the same name, for the same instance.
        check(&[object("2")], &[], false);
        check(&[object("1")], &[(AWS, "n")], false);
        let but = |change: fn(&mut MachineObject)| {
            let mut changed = object("1");
            change(&mut changed);
            [changed]
        };
        check(&but(|object| object.ends = true), &[], false);
        check(&but(|object| object.node = Some("n".to_owned())), &[], false);
        check(&but(|object| object.machine_set = Some("infra-a".to_owned())), &[], false);
        check(&but(|object| object.control_plane = true), &[], false);
    }

    #[test]
    fn machine_waits_for_its_object_for_limited_time() {
        let machines = MachineObjects::default();
        let is_awaited = |machine: &str, now| machines.is_awaited(machine, &rules(), now);
        assert!(is_awaited("a", 10_000) && is_awaited("a", 10_179));
        assert!(!is_awaited("a", 10_180) && !is_awaited("a", 10_180 + REFUSED_SECONDS));
        // Another has its own time; and after a day it is a machine like any other.
        assert!(is_awaited("b", 10_180));
        assert!(is_awaited("a", 10_181 + REFUSED_SECONDS));
        machines.end_wait("b");
        assert!(is_awaited("b", 10_400));
        let none = MachineRules {
            wait_seconds: 0,
            ..rules()
        };
        assert!(!machines.is_awaited("c", &none, 10_000) && !machines.is_awaited("c", &none, 10_001));
    }

    #[test]
    fn number_of_awaited_machines_is_limited() {
        let machines = MachineObjects::default();
        for machine in 0..=AWAITED_LIMIT_MACHINES {
            assert!(machines.is_awaited(&machine.to_string(), &rules(), 10_000));
        }
        assert_eq!(machines.awaited.lock().unwrap().len(), AWAITED_LIMIT_MACHINES);
        let later = 10_001 + rules().wait_seconds + REFUSED_SECONDS;
        assert!(machines.is_awaited("one more", &rules(), later));
        assert_eq!(machines.awaited.lock().unwrap().len(), 1);
    }
}
