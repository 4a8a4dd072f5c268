//! `[inventory]` of `pool.toml`: which machines may join.

use std::path::PathBuf;

use attest::machine_objects::{self, SetPattern};
use attest::protocol::HOLD_DEFAULT_SECONDS;
use attest::{AppraisalPolicy, Combination, MachineSets};
use serde::Deserialize;

use crate::Endorsement;

/// How old what the cluster tells of its machines may be, unless the pool says otherwise. While the API is away no Machine object can be made, and no Node
/// can join; who is told nothing because of a right that was taken away is to be found out sooner.
const MAX_AGE_DEFAULT_SECONDS: u64 = 600;
/// At least a watch that has ended is begun anew in between; at most a day: after that nobody knows which machines there are.
const MAX_AGE_SECONDS: std::ops::RangeInclusive<u64> = 60..=86_400;
/// How long a machine is awaited that no Machine object names. Its object is there before it, and names it when the cloud has made it; a machine takes half a
/// minute until it asks.
const WAIT_DEFAULT_SECONDS: u64 = 180;
/// As long as a node waits that is told to come again, where nothing else is said.
const WAIT_LIMIT_SECONDS: u64 = HOLD_DEFAULT_SECONDS;
/// Most patterns of one pool: each is compared for each machine, and stands in its record.
const SETS_LIMIT: usize = 100;

/// A pool's Machine objects, and how long what is known of them is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineRules {
    pub of: MachineSets,
    /// How old what the cluster has told may be, in seconds, counted from when it was noticed that it tells nothing any more.
    pub max_age_seconds: u64,
    /// How long a machine that no object names is told to come again, in seconds.
    pub wait_seconds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct InventoryFile {
    instances: Option<PathBuf>,
    machines: Option<MachinesFile>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MachinesFile {
    machine_sets: Vec<SetPattern>,
    control_plane: bool,
    max_age_seconds: u64,
    wait_seconds: u64,
}

impl Default for MachinesFile {
    fn default() -> Self {
        Self {
            machine_sets: Vec::new(),
            control_plane: false,
            max_age_seconds: MAX_AGE_DEFAULT_SECONDS,
            wait_seconds: WAIT_DEFAULT_SECONDS,
        }
    }
}

/// The file, and the Machine objects, that say which machines may join.
pub(super) fn inventory(section: Option<InventoryFile>) -> Result<(Option<PathBuf>, Option<MachineRules>), String> {
    let Some(InventoryFile { instances, machines }) = section else {
        return Ok((None, None));
    };
    let Some(machines) = machines else {
        let nothing = "it names no machine: say instances, a file; or machines, whose objects the cluster has";
        return instances.map(|instances| (Some(instances), None)).ok_or_else(|| nothing.to_owned());
    };
    let MachinesFile {
        machine_sets,
        control_plane,
        max_age_seconds,
        wait_seconds,
    } = machines;
    if machine_sets.is_empty() && !control_plane {
        return Err("machines has to say which: machine_sets = [\"NAME\", …], or control_plane = true".to_owned());
    }
    if machine_sets.len() > SETS_LIMIT {
        return Err(format!(
            "machines.machine_sets has {} patterns; at most {SETS_LIMIT} are read",
            machine_sets.len()
        ));
    }
    if !MAX_AGE_SECONDS.contains(&max_age_seconds) {
        return Err(format!(
            "machines.max_age_seconds is {max_age_seconds}; {} to {} can be",
            MAX_AGE_SECONDS.start(),
            MAX_AGE_SECONDS.end()
        ));
    }
    if wait_seconds > WAIT_LIMIT_SECONDS {
        return Err(format!("machines.wait_seconds is {wait_seconds}; the most is {WAIT_LIMIT_SECONDS}"));
    }
    let of = MachineSets {
        machine_sets,
        control_plane,
    };
    Ok((
        instances,
        Some(MachineRules {
            of,
            max_age_seconds,
            wait_seconds,
        }),
    ))
}

/// Whether a Machine object can name what each combination is about: it could admit nobody otherwise.
pub(super) fn nameable(policy: &AppraisalPolicy, endorsement: Endorsement) -> Result<(), String> {
    let certified = endorsement == Endorsement::GcpInstance;
    let unnamed = |kinds: &&Combination| !machine_objects::can_name(kinds.kinds().iter().copied(), certified);
    match policy.accepts().iter().find(unnamed) {
        None => Ok(()),
        Some(kinds) => Err(format!(
            "{kinds}: no Machine object of a cluster names what this evidence is about, so [inventory] machines would admit nobody by it: name these machines in instances; docs/policy.md says which clouds' can be named"
        )),
    }
}
