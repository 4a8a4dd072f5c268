//! `[inventory]` of `pool.toml`: which machines may join.

use std::path::PathBuf;

use attest::machine_objects::{self, SetPattern};
use attest::protocol::HOLD_DEFAULT_SECONDS;
use attest::{AppraisalPolicy, Combination, MachineSets};
use serde::Deserialize;

use crate::Endorsement;

/// Default maximum age of the cluster's machine data. While the API is unavailable, no Machine object can be created and no Node can join.
/// A watch that lost its permission must be noticed sooner.
const MAX_AGE_DEFAULT_SECONDS: u64 = 600;
/// Allowed maximum ages. At least the time in which an ended watch is restarted; at most a day, since the data is too old after that.
const MAX_AGE_SECONDS: std::ops::RangeInclusive<u64> = 60..=86_400;
/// Default time that a machine waits for a Machine object to name it. The object exists before the machine, and names it once the cloud has
/// created it. A machine takes half a minute until its first request.
const WAIT_DEFAULT_SECONDS: u64 = 180;
/// Maximum wait: the default time for which a node retries when told to.
const WAIT_LIMIT_SECONDS: u64 = HOLD_DEFAULT_SECONDS;
/// Maximum number of patterns of one pool. Each is compared for each machine, and is part of its record.
const SETS_LIMIT: usize = 100;

/// A pool's Machine objects, and how long their data is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineRules {
    pub of: MachineSets,
    /// Maximum age of the cluster's data, in seconds, counted from the loss of the watch.
    pub max_age_seconds: u64,
    /// Time for which a machine that no object names must retry, in seconds.
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

/// Parses the file and the Machine objects that name the machines that may join.
pub(super) fn inventory(section: Option<InventoryFile>) -> Result<(Option<PathBuf>, Option<MachineRules>), String> {
    let Some(InventoryFile { instances, machines }) = section else {
        return Ok((None, None));
    };
    let Some(machines) = machines else {
        let nothing = "it names no machines: set instances (a file) or machines (the cluster's objects)";
        return instances.map(|instances| (Some(instances), None)).ok_or_else(|| nothing.to_owned());
    };
    let MachinesFile {
        machine_sets,
        control_plane,
        max_age_seconds,
        wait_seconds,
    } = machines;
    if machine_sets.is_empty() && !control_plane {
        return Err("machines must name machine_sets = [\"NAME\", …], or control_plane = true".to_owned());
    }
    if machine_sets.len() > SETS_LIMIT {
        return Err(format!(
            "machines.machine_sets has {} patterns; at most {SETS_LIMIT} are read",
            machine_sets.len()
        ));
    }
    if !MAX_AGE_SECONDS.contains(&max_age_seconds) {
        return Err(format!(
            "machines.max_age_seconds is {max_age_seconds}; allowed are {} to {}",
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

/// Returns an error for a combination whose machines no Machine object can name: it would admit no machine.
pub(super) fn nameable(policy: &AppraisalPolicy, endorsement: Endorsement) -> Result<(), String> {
    let certified = endorsement == Endorsement::GcpInstance;
    let unnamed = |kinds: &&Combination| !machine_objects::can_name(kinds.kinds().iter().copied(), certified);
    match policy.accepts().iter().find(unnamed) {
        None => Ok(()),
        Some(kinds) => Err(format!(
            "{kinds}: no Machine object of a cluster names what this evidence is about, so [inventory] machines would admit no machine: name these machines in instances; docs/how-to/strict-boot-rules.md has examples"
        )),
    }
}
