//! Growth of processor time and memory with the number of machines, log lines and pools.
//!
//! Run with `cargo bench -p attest-gateway --bench growth`. Each command is measured at a quarter of a size and at that size. The benchmark
//! fails if the cost of an item grows by more than [`COSTLIER`], or if the memory of what reads in a stream grows by more than [`LARGER`].
//!
//! `GROWTH_MACHINES`, `GROWTH_ETCD_MACHINES`, `GROWTH_LINES` and `GROWTH_POOLS` change the sizes; 0 leaves a part out.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod cost;
mod log;
mod machines;
#[path = "../process/mod.rs"]
mod process;
#[path = "../results/mod.rs"]
mod results;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use cloud_fixtures::etcd::EtcdServer;
use cost::{Cost, Growth, Memory};
use support::{Gateway, POOL};

/// Maximum growth of the cost of one item from a quarter of a size to that size; a quadratic cost grows by 4.
const COSTLIER: f64 = 1.5;
/// Maximum growth of memory that must not depend on the size.
const LARGER: f64 = 1.3;
/// Number of items at the size over those at its part.
const PARTS: usize = 4;

/// Default sizes, and those without measuring.
const MACHINES: [usize; 2] = [80_000, 40];
const ETCD_MACHINES: [usize; 2] = [20_000, 40];
const LINES: [usize; 2] = [400_000, 400];
const POOLS: [usize; 2] = [400, 4];

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let size = |variable: &str, [default, least]: [usize; 2]| {
        let default = if measuring { default } else { least };
        let size = std::env::var(variable).map_or(default, |size| size.parse().unwrap());
        (size > 0).then_some(size)
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut growth = Vec::new();
    if let Some(machines) = size("GROWTH_MACHINES", MACHINES) {
        growth.extend(machines::measure(&runtime, "SQLite", "", machines));
    }
    if let Some(machines) = size("GROWTH_ETCD_MACHINES", ETCD_MACHINES) {
        let etcd = EtcdServer::start();
        let endpoint = etcd.endpoint();
        let settings = format!("[store]\nengine = \"etcd\"\nendpoints = [{endpoint:?}]\nkey_file = \"store.key\"");
        growth.extend(machines::measure(&runtime, "etcd", &settings, machines));
    }
    if let Some(lines) = size("GROWTH_LINES", LINES) {
        growth.extend(log::measure(&runtime, lines));
    }
    if let Some(pools) = size("GROWTH_POOLS", POOLS) {
        growth.extend(of_pools(pools));
    }
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    let figures: Vec<_> = growth.iter().flat_map(Growth::figures).collect();
    results::print(&figures);
    let within = results::are_within_limits(&figures);
    results::report(figures);
    if !within {
        std::process::exit(1);
    }
}

/// Measures starts and commands with many small pools.
fn of_pools(pools: usize) -> Vec<Growth> {
    let mut gateway = Gateway::init();
    let mut measured = Vec::new();
    for pools in [pools / PARTS, pools] {
        for number in 0..pools {
            copy(
                &gateway.path("pools").join(POOL),
                &gateway.path("pools").join(format!("pool-{number}")),
            );
        }
        let of = format!("{pools} pools");
        measured.push([
            Cost::of_start(&of, &mut gateway),
            Cost::of_command(&of, &gateway, &["check"]),
            Cost::of_command(&of, &gateway, &["status"]),
        ]);
    }
    let growth = Growth::all("pools", [pools / PARTS, pools], measured);
    growth.into_iter().map(|growth| growth.with_memory(Memory::Linear)).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
