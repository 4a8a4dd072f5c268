//! Cost of many pools for a gateway: processor time until it listens, its peak memory until then, and processor time for a file that
//! changes.
//!
//! Run with `cargo bench -p attest-gateway --bench pools`. With five hundred pools, a start is compared with a bare parse of the same
//! bytes, which is measured in the same run. The benchmark fails if the start exceeds a multiple of that, or if its memory exceeds their
//! bytes by more than a little. It also fails if a changed file costs more than a small part of a start ([`Limits`]).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod process;
mod results;
#[path = "../tests/support/mod.rs"]
mod support;
mod worker;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use attest_pool::SAMPLE;
use results::{Bound, Figure};
use serde_json::Value;
use support::Gateway;

/// Number of pools: as few as most clusters have, and as many as the largest has.
const POOLS: [usize; 2] = [50, 500];
/// Number of measured starts; the median counts.
const STARTS: usize = 3;
/// Number of files that change, one after the other.
const CHANGES: usize = 10;

/// Goals for a start with the most pools.
const START_GOAL_SECONDS: f64 = 5.0;
const MEMORY_GOAL_MIB: f64 = 200.0;

/// Format of a pool's configs.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Ignition,
    MachineConfigs,
}

/// Maximum ratios of the costs.
struct Limits {
    longer: f64,
    larger: f64,
    costlier: f64,
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Self::Ignition => "Ignition, JSON",
            Self::MachineConfigs => "MachineConfigs, YAML",
        }
    }

    /// Returns the limits: a little above the values that were measured when they were set.
    const fn limits(self) -> Limits {
        match self {
            Self::Ignition => Limits {
                longer: 18.0,
                larger: 1.4,
                costlier: 0.03,
            },
            Self::MachineConfigs => Limits {
                longer: 5.5,
                larger: 1.4,
                costlier: 0.03,
            },
        }
    }

    fn write(self, folder: &Path, pool: usize) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("pool.toml"), SAMPLE).unwrap();
        match self {
            Self::Ignition => {
                for (set, config) in ["pre-approved", "full"].into_iter().zip(worker::pool_configs(pool)) {
                    fs::create_dir_all(folder.join(set)).unwrap();
                    fs::write(folder.join(set).join("config.ign"), config.to_string()).unwrap();
                }
            }
            Self::MachineConfigs => worker::write(&folder.join("machine-configs"), &worker::machine_configs_of_pool(pool)).unwrap(),
        }
    }

    /// Returns the files of a pool's configs.
    fn files(self, folder: &Path) -> [PathBuf; 2] {
        let names = match self {
            Self::Ignition => ["pre-approved/config.ign", "full/config.ign"],
            Self::MachineConfigs => ["machine-configs/00-worker.yaml", "machine-configs/99-worker-site.yaml"],
        };
        names.map(|name| folder.join(name))
    }

    fn parse(self, bytes: &[u8]) -> Value {
        match self {
            Self::Ignition => serde_json::from_slice(bytes).unwrap(),
            Self::MachineConfigs => serde_saphyr::from_slice(bytes).unwrap(),
        }
    }
}

/// Results of the measurements; processor time in seconds, memory in bytes.
struct Figures {
    pools: usize,
    bytes: f64,
    parse: f64,
    start: f64,
    /// Wall time until the gateway listens.
    wait: f64,
    memory: f64,
    change: f64,
}

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let mut within = true;
    for form in [Form::Ignition, Form::MachineConfigs] {
        let counts = if measuring { POOLS } else { [1, 2] };
        let figures = counts.map(|pools| measure(form, pools, measuring));
        within &= report(form, &figures, measuring);
    }
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    if !within {
        std::process::exit(1);
    }
}

fn measure(form: Form, pools: usize, measuring: bool) -> Figures {
    let (starts, changes) = if measuring { (STARTS, CHANGES) } else { (1, 1) };
    let mut gateway = Gateway::init();
    let folder = |pool: usize| PathBuf::from(format!("pools/pool-{pool}"));
    for pool in 0..pools {
        form.write(&gateway.path("").join(folder(pool)), pool);
    }
    let files: Vec<PathBuf> = (0..pools)
        .flat_map(|pool| form.files(&gateway.path("").join(folder(pool))))
        .collect();
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();

    let parse = median(starts, || {
        let before = process::spent(std::process::id());
        for file in &files {
            drop(black_box(form.parse(&fs::read(file).unwrap())));
        }
        (process::spent(std::process::id()) - before).as_secs_f64()
    });
    let mut memory = 0;
    let mut waits = Vec::new();
    let start = median(starts, || {
        if memory > 0 {
            gateway.terminate();
            gateway.wait();
        }
        let begun = Instant::now();
        gateway.run_as(serve(&gateway));
        waits.push(begun.elapsed().as_secs_f64());
        memory = memory.max(process::peak(gateway.process_id()));
        process::spent(gateway.process_id()).as_secs_f64()
    });
    waits.sort_by(f64::total_cmp);
    let wait = waits[starts / 2];
    // What it does soon after a start is not for any change.
    std::thread::sleep(if measuring { SETTLED } else { Duration::ZERO });
    let before = process::spent(gateway.process_id());
    for change in 0..changes {
        let [_, file] = form.files(&gateway.path("").join(folder(change % pools)));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("NUMBER", &format!("NUMBER_{change}_"))).unwrap();
        gateway.lines(change + 1, |line| line.contains("serving a new state"));
        gateway.wait_for_acts(change + 1, "gateway.reload");
    }
    let change = (process::spent(gateway.process_id()) - before).as_secs_f64();
    Figures {
        pools,
        bytes: f64::from(u32::try_from(bytes).unwrap()),
        parse,
        start,
        wait,
        memory: f64::from(u32::try_from(memory).unwrap()),
        change: change / f64::from(u32::try_from(changes).unwrap()),
    }
}

/// Returns the gateway's command with the environment of its unit.
fn serve(gateway: &Gateway) -> Command {
    let mut command = support::program();
    command.arg("serve").arg("--config").arg(gateway.path("gateway.toml"));
    command.envs(process::environment());
    command
}

/// Time until a gateway has looked at all files again, which it does when they have been quiet for two seconds.
const SETTLED: Duration = Duration::from_secs(10);

fn median(runs: usize, mut run: impl FnMut() -> f64) -> f64 {
    let mut figures: Vec<f64> = (0..runs).map(|_| run()).collect();
    figures.sort_by(f64::total_cmp);
    figures[runs / 2]
}

/// Prints a table. Returns whether the limits hold for the most pools.
fn report(form: Form, figures: &[Figures], measuring: bool) -> bool {
    println!(
        "\n{:<22} {:>9} {:>10} {:>10} {:>10} {:>11} {:>13}",
        form.name(),
        "MB",
        "parse, s",
        "start, s",
        "by clock, s",
        "memory, MB",
        "a change, ms"
    );
    for Figures {
        pools,
        bytes,
        parse,
        start,
        wait,
        memory,
        change,
    } in figures
    {
        let (bytes, memory, change) = (bytes / 1e6, memory / 1e6, change * 1e3);
        println!(
            "{:<22} {bytes:>9.1} {parse:>10.2} {start:>10.2} {wait:>10.2} {memory:>11.1} {change:>13.1}",
            format!("{pools} pools")
        );
    }
    let Some(most) = figures.last() else { return true };
    let (longer, larger, costlier) = (most.start / most.parse, most.memory / most.bytes, most.change / most.start);
    let Limits {
        longer: may_longer,
        larger: may_larger,
        costlier: may_costlier,
    } = form.limits();
    println!(
        "{:<22} {:>9} {:>10} {longer:>9.2}x {:>10} {larger:>10.2}x {costlier:>12.4}x",
        "", "", "", ""
    );
    println!(
        "{:<22} {:>9} {:>10} {may_longer:>9.2}x {:>10} {may_larger:>10.2}x {may_costlier:>12.4}x",
        "allowed", "", "", ""
    );
    if measuring {
        let ratio = |what: &str, value, limit| {
            let name = format!("{}: {what}, {} pools", form.name(), most.pools);
            Figure::from_runs(name, "x", &[value]).limit(Bound::AtMost(limit))
        };
        let figure = |what: &str, unit, value, goal| {
            let name = format!("{}: {what}, {} pools", form.name(), most.pools);
            Figure::from_runs(name, unit, &[value]).goal(Bound::AtMost(goal))
        };
        results::report([
            figure("processor until it listens", "s", most.start, START_GOAL_SECONDS),
            Figure::from_runs(
                format!("{}: until it listens, {} pools", form.name(), most.pools),
                "s",
                &[most.wait],
            ),
            figure(
                "peak memory until it listens",
                "MiB",
                most.memory / 1024.0 / 1024.0,
                MEMORY_GOAL_MIB,
            ),
            ratio("start, as a ratio to a bare parse", longer, may_longer),
            ratio("memory, as a ratio to the configs", larger, may_larger),
            ratio("a change, as a ratio to a start", costlier, may_costlier),
        ]);
    }
    longer <= may_longer && larger <= may_larger && costlier <= may_costlier
}
