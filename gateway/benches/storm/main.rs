//! A fleet that boots after a power cut: the number of nodes that get their full config, the duration, and the cost for the gateway.
//!
//! The gateway is the real program, on one core; the nodes are a process of their own on the others. Each has a TPM in software, an event
//! log and an address of its own, and makes the requests of a real one. These are a discovery, a challenge and evidence on one connection
//! like `attest-node`, with its pauses and its patience. The config follows on another connection like Ignition, with Ignition's. `cargo
//! bench -p attest-gateway --bench storm`; variables of the environment: `STORM_NODES`, `STORM_RUNS` (the median of which counts),
//! `STORM_MODES` (`at-once`, `steady`, `by-token`, `stranger`, `syncs`), `STORM_RATE` (nodes a second that come steadily), `STORM_COUNTED`
//! (nodes whose fsyncs are counted) and `STORM_LIMIT` (seconds for one node).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a benchmark may panic")]

// What `attest-node` waits by.
extern crate attest as attest_wire;
#[allow(dead_code, unused_imports, reason = "this benchmark uses its part")]
#[path = "../../../attest/node/src/codes.rs"]
mod codes;
#[allow(dead_code, unused_imports, reason = "this benchmark uses its part")]
#[path = "../../../attest/node/src/deadline.rs"]
mod deadline;
#[allow(dead_code, unused_imports, reason = "this benchmark uses its part")]
#[path = "../../../attest/node/src/failure.rs"]
mod failure;
#[allow(dead_code, unused_imports, reason = "this benchmark uses its part")]
#[path = "../../../attest/node/src/wait.rs"]
mod wait_limits;

mod attest_node;
mod figures;
#[path = "../firmware/mod.rs"]
mod firmware;
mod fleet;
#[path = "../floor/mod.rs"]
mod floor;
mod generator;
mod http;
mod ignition;
#[path = "../../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod logged;
mod measured;
#[path = "../process/mod.rs"]
mod process;
#[path = "../results/mod.rs"]
mod results;
mod site;
#[path = "../../tests/support/mod.rs"]
mod support;
mod syncs;
mod tally;
mod waits;
#[path = "../worker/mod.rs"]
mod worker;

use std::path::Path;

use measured::Figures;
use site::{Mode, Scale};

/// Returns a number from the environment, or the default.
fn env_number(variable: &str, otherwise: f64) -> f64 {
    let said = std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")));
    said.unwrap_or(otherwise)
}

fn main() {
    if let Some(plan) = std::env::var_os(generator::PLAN) {
        return generator::run(Path::new(&plan));
    }
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let mut scale = Scale::from_env(measuring);
    let wanted = std::env::var("STORM_MODES").unwrap_or_default();
    let modes = Mode::ALL
        .into_iter()
        .filter(|mode| wanted.is_empty() || wanted.split(',').any(|word| word == mode.label()));
    let (mut all, mut kept) = (Vec::new(), true);
    for mode in modes {
        let runs: Vec<Figures> = (0..scale.runs)
            .map(|run| {
                println!("{}, run {} of {}", mode.title(&scale), run + 1, scale.runs);
                site::run(mode, &scale)
            })
            .collect();
        if mode == Mode::Syncs && runs[0].syncs.is_none() {
            println!("fsyncs: not measured: strace is not installed, or may not trace");
        }
        let found = figures::summarize(mode, &runs);
        results::print(&found);
        figures::print(&runs[0]);
        if measuring {
            kept &= results::are_within_limits(&found);
            results::report(found);
        } else {
            assert!(runs.iter().all(|run| run.full == run.nodes), "{:?}", runs[0].ended);
        }
        if mode == Mode::AtOnce && measuring {
            // What comes steadily is half of what it can.
            scale.rate = env_number("STORM_RATE", figures::rate(&runs) / 2.0);
        }
        all.push((mode, runs));
    }
    if measuring {
        results::show(figures::plots(&all));
    }
    if !kept {
        std::process::exit(1);
    }
}
