//! Simulation of a fleet of any size after a power cut, from the other benchmarks' measurements and with the pauses of `attest-node` and
//! Ignition. `cargo bench -p attest-gateway --bench scale`; `docs/explanation/performance.md` has its tables, and their
//! basis.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

// What `attest-node` waits by, and the chance that its pauses are made of: `rand`, below.
extern crate attest as attest_wire;
extern crate self as aws_lc_rs;
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

mod budget;
mod clock;
mod node;
mod outcome;
pub mod rand;
mod replica;
#[path = "../results/mod.rs"]
mod results;
mod site;
mod store;
mod tables;
#[path = "../storm/waits/mod.rs"]
mod waits;

use std::fs;
use std::path::Path;

use outcome::Outcome;
use results::Figure;
use tables::{CHANGES, CHANGES_HEAD, FLEETS, FLEETS_HEAD, change_row, fleet_row};

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    println!("{FLEETS_HEAD}");
    for site in FLEETS.into_iter().take(if measuring { FLEETS.len() } else { 1 }) {
        let outcome = Outcome::new(site);
        rows.push(fleet_row(&outcome));
        println!("{}", rows.last().unwrap());
        let name = format!("{} nodes within {} s, {} replicas", site.nodes, site.over, site.replicas);
        figures.push(Figure::from_runs(name, "s", &[outcome.lasted]));
    }
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    println!("\n{CHANGES_HEAD}");
    for (what, site) in CHANGES {
        rows.push(change_row(what, &Outcome::new(site)));
        println!("{}", rows.last().unwrap());
    }
    results::report(figures);
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/explanation/performance.md")).unwrap();
    let missing: Vec<&String> = rows.iter().filter(|row| !document.contains(*row)).collect();
    if !missing.is_empty() {
        println!("\ndocs/explanation/performance.md lacks {} of these rows", missing.len());
        std::process::exit(1);
    }
}
