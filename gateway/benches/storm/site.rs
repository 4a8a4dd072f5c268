//! New gateway that has not served a client, and a fleet that comes to it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::env_number;
use crate::fleet::{self, Fleet};
use crate::generator::{PLAN, Plan};
use crate::measured::{Before, Figures};
use crate::process;
use crate::support::{Gateway, POOL, program};
use crate::syncs::Syncs;
use crate::tally::Told;
use crate::worker;

/// Number of files that either process has open in addition to its connections.
const FILES: u64 = 1000;

/// Arrival of a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AtOnce,
    Steady,
    ByToken,
    Stranger,
    Syncs,
}

impl Mode {
    pub const ALL: [Self; 5] = [Self::AtOnce, Self::Steady, Self::ByToken, Self::Stranger, Self::Syncs];

    /// Returns the mode's name in `STORM_MODES`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::AtOnce => "at-once",
            Self::Steady => "steady",
            Self::ByToken => "by-token",
            Self::Stranger => "stranger",
            Self::Syncs => "syncs",
        }
    }

    /// Returns a description of the nodes and of their arrival.
    pub fn title(self, scale: &Scale) -> String {
        let (nodes, over) = self.comes(scale);
        match self {
            Self::AtOnce => format!("{nodes} nodes within a second, attested"),
            Self::Steady => format!("{nodes} nodes in {over:.0} s, attested"),
            Self::ByToken => format!("{nodes} nodes within a second, by a provisioning token"),
            Self::Stranger => format!(
                "{nodes} nodes in {over:.0} s, attested; a stranger beside, {} connections a second",
                scale.stranger
            ),
            Self::Syncs => format!("{nodes} nodes within a second, attested, the gateway's fsyncs counted by strace"),
        }
    }

    /// Returns the number of nodes, and the number of seconds in which they come.
    fn comes(self, scale: &Scale) -> (usize, f64) {
        match self {
            Self::AtOnce => (scale.nodes, 1.0),
            Self::Steady => (whole(scale.rate * scale.steady), scale.steady),
            Self::ByToken => (scale.nodes / 2, 1.0),
            Self::Stranger => (scale.booting_nodes, scale.steady),
            Self::Syncs => (scale.counted, 1.0),
        }
    }
}

/// Size of the benchmark.
pub struct Scale {
    pub nodes: usize,
    pub runs: usize,
    /// Nodes per second that come steadily, and the number of seconds.
    pub rate: f64,
    steady: f64,
    /// Number of nodes that boot during an attack, and the attacker's connections per second.
    booting_nodes: usize,
    stranger: u32,
    /// Number of nodes whose fsyncs are counted.
    counted: usize,
    limit: f64,
}

impl Scale {
    /// Returns the size that the environment sets; the default is small if nothing is measured.
    pub fn from_env(measuring: bool) -> Self {
        let or = |measured, small| if measuring { measured } else { small };
        let nodes = env_number("STORM_NODES", or(10_000.0, 40.0));
        Self {
            nodes: whole(nodes),
            runs: whole(env_number("STORM_RUNS", or(3.0, 1.0))).max(1),
            rate: env_number("STORM_RATE", or(50.0, 10.0)),
            steady: or(30.0, 2.0),
            booting_nodes: whole(or(200.0, 10.0)),
            stranger: u32::try_from(whole(or(500.0, 20.0))).unwrap(),
            counted: whole(env_number("STORM_COUNTED", nodes)),
            limit: env_number("STORM_LIMIT", 600.0),
        }
    }
}

#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number"
)]
fn whole(value: f64) -> usize {
    value as usize
}

/// Runs a mode once.
pub fn run(mode: Mode, scale: &Scale) -> Figures {
    let (nodes, over) = mode.comes(scale);
    let fleet = Fleet::load_or_create(&fleet::file(), scale.nodes.max(nodes));
    raise_files(u64::try_from(nodes).unwrap() + FILES);
    let mut gateway = prepared(&fleet);
    drop(fleet);
    let token = (mode == Mode::ByToken).then(|| {
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        gateway.token(&[])
    });
    let config = gateway.path("expected.ign");
    fs::write(&config, gateway.rendered(POOL, "full")).unwrap();
    let all = sched_getaffinity(None).unwrap();
    let (one, others) = cores(&all);
    // What is started inherits it.
    sched_setaffinity(None, &one).unwrap();
    let syncs = (mode == Mode::Syncs).then(|| Syncs::watch(&mut gateway)).flatten();
    if syncs.is_none() {
        let mut command = program();
        command
            .arg("serve")
            .arg("--config")
            .arg(gateway.path("gateway.toml"))
            .envs(process::environment());
        gateway.run_as(command);
    }
    sched_setaffinity(None, &others).unwrap();
    let plan = Plan {
        gateway: gateway.path(""),
        address: gateway.address(),
        config,
        nodes,
        over,
        token,
        stranger: (mode == Mode::Stranger).then_some(scale.stranger),
        limit: scale.limit,
    };
    let file = gateway.path("plan.json");
    fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
    let ((before, counted), told) = generate(&file, || (Before::now(&gateway), syncs.as_ref().map(Syncs::count)));
    sched_setaffinity(None, &all).unwrap();
    let counted = counted.zip(syncs.as_ref().map(Syncs::count)).map(|(before, after)| after - before);
    Figures::new(told, &before, counted, &gateway)
}

/// Creates a worker's pool; a machine is trusted by its TPM's manufacturer.
fn prepared(fleet: &Fleet) -> Gateway {
    let gateway = Gateway::init();
    fs::write(gateway.path("ek-roots/maker.der"), fleet.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    for configs in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.path("pools").join(POOL).join(configs)).unwrap();
    }
    let folder = gateway.path("pools").join(POOL).join("machine-configs");
    worker::write(&folder, &worker::machine_configs(true)).unwrap();
    gateway
}

/// Makes the generator execute this plan; `begin` is called immediately before.
fn generate<T>(plan: &Path, begin: impl FnOnce() -> T) -> (T, Told) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .env(PLAN, plan)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let begun = begin();
    process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let told = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(process.wait().unwrap().success());
    (begun, told)
}

/// Returns the gateway's core, and the others: the same if there is only one.
fn cores(all: &CpuSet) -> (CpuSet, CpuSet) {
    let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap();
    let (mut one, mut others) = (CpuSet::new(), *all);
    one.set(first);
    others.unset(first);
    if others.count() == 0 { (one, *all) } else { (one, others) }
}

/// Raises the limit of open files: both processes have one for each connected node.
fn raise_files(wanted: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let limit = Rlimit {
            current: Some(raised),
            maximum,
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        if raised < wanted {
            println!("no more than {raised} files can be open: the figures are not those of this fleet (ulimit -n)");
        }
    }
}
