//! Simulation of the benchmark `scale`: it agrees with the measurements of `storm` and uses the gateway's own figures, and
//! `docs/explanation/performance.md` has its results.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

// As in the benchmark.
extern crate attest as attest_wire;
extern crate self as aws_lc_rs;
#[path = "../benches/scale/budget.rs"]
mod budget;
#[path = "../benches/scale/clock.rs"]
mod clock;
#[allow(dead_code, unused_imports, reason = "this test uses its part")]
#[path = "../../attest/node/src/codes.rs"]
mod codes;
#[allow(dead_code, unused_imports, reason = "this test uses its part")]
#[path = "../../attest/node/src/deadline.rs"]
mod deadline;
#[allow(dead_code, unused_imports, reason = "this test uses its part")]
#[path = "../../attest/node/src/failure.rs"]
mod failure;
#[path = "../benches/scale/node.rs"]
mod node;
#[allow(dead_code, reason = "this test uses its part")]
#[path = "../benches/scale/outcome.rs"]
mod outcome;
#[path = "../benches/scale/rand.rs"]
pub mod rand;
#[path = "../benches/scale/replica.rs"]
mod replica;
#[path = "../benches/scale/site.rs"]
mod site;
#[path = "../benches/scale/store.rs"]
mod store;
#[path = "../benches/scale/tables.rs"]
mod tables;
#[allow(dead_code, unused_imports, reason = "this test uses its part")]
#[path = "../../attest/node/src/wait.rs"]
mod wait_limits;
#[path = "../benches/storm/waits/mod.rs"]
mod waits;

use std::fs;
use std::path::Path;

use budget::Budget;
use clock::{Clock, SECOND};
use outcome::Outcome;
use replica::Replica;
use site::{CHALLENGES_AT_ONCE, ETCD, SOCKETS, Site};
use tables::{CHANGES, CHANGES_HEAD, FLEETS, FLEETS_HEAD, change_row, fleet_row};

/// Site of the benchmark `storm`: one gateway on one core, with its own store.
const STORM: Site = Site {
    nodes: 10_000,
    over: 1,
    by_token: false,
    replicas: 1,
    cores: 1,
    gigabits: 100,
    budget: true,
    etcd: None,
};

/// Page with the measurements of `storm` and the tables of the simulation.
const PAGE: &str = "docs/explanation/performance.md";

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Verifies that a simulated value differs from the measured one by at most a quarter.
fn is_near(simulated: f64, measured: f64, what: &str) {
    assert!(
        (0.75..=1.25).contains(&(simulated / measured)),
        "{what}: {simulated:.1}, measured {measured}"
    );
}

/// Returns the number after each of these words in the document's line.
fn numbers<const N: usize>(document: &str, line: &str, words: [&str; N]) -> [f64; N] {
    let line = document
        .lines()
        .find(|found| found.starts_with(line))
        .unwrap_or_else(|| panic!("no line {line:?}"));
    words.map(|word| {
        let rest = line.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {line:?}")).1;
        rest.split(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    })
}

#[test]
fn simulation_matches_the_storm_measurements() {
    let measured = file(PAGE);
    let [lasted, p50, p99] = numbers(
        &measured,
        "| 10,000 nodes at once, attested |",
        ["full config after ", "; p50 ", ", p99 "],
    );
    let attested = Outcome::new(STORM);
    assert_eq!((attested.full, attested.without), (10_000, 0));
    is_near(attested.lasted, lasted, "the last one");
    is_near(attested.p50, p50, "p50");
    is_near(attested.p99, p99, "p99");
    // The half of these is sooner done in the simulation than in the storm, as the page says.
    let [p99] = numbers(&measured, "| 5,000 by token |", [", p99 "]);
    let by_token = Outcome::new(Site {
        nodes: 5000,
        by_token: true,
        ..STORM
    });
    assert_eq!((by_token.full, by_token.without, by_token.failed), (5000, 0, 0.0));
    is_near(by_token.p99, p99, "by token, p99");
}

#[test]
fn simulation_is_reproducible() {
    let [one, two] = [(), ()].map(|()| fleet_row(&Outcome::new(Site { nodes: 30_000, ..STORM })));
    assert_eq!(one, two);
    // And chance has its part in it.
    rand::seed(2);
    let other = Replica::run(Site { nodes: 30_000, ..STORM }).tally;
    rand::seed(1);
    assert_ne!(Replica::run(Site { nodes: 30_000, ..STORM }).tally.took, other.took);
}

#[test]
fn simulation_uses_the_gateways_constants() {
    for (source, figure) in [
        ("gateway/src/admission/mod.rs", "const CHALLENGES_AT_ONCE: u64 = 20_000;"),
        ("gateway/src/admission/mod.rs", "const CHALLENGES_EACH_SECOND: u64 = 800;"),
        ("gateway/src/settings/limits.rs", "connections: 2048,"),
        ("gateway/src/settings/limits.rs", "waiting: 16_384,"),
        ("gateway/src/settings/limits.rs", "requests: 256,"),
        ("gateway/src/admission/connections.rs", "const KNOWN_PART: usize = 4;"),
        ("gateway/src/admission/mod.rs", "Handshakes::new(limits.requests, requests.clone())"),
        ("gateway/src/admission/handshakes.rs", "const ALWAYS: usize = 2;"),
        ("gateway/src/admission/handshakes.rs", "const STRANGERS_TURN: u32 = 4;"),
        ("gateway/src/api/overload.rs", "const PATIENCE: Duration = Duration::from_secs(12);"),
        (
            "gateway/src/api/overload.rs",
            "const CONFIG_PATIENCE: Duration = Duration::from_secs(8);",
        ),
        ("gateway/store/src/etcd/overlay.rs", "const MOST_KEYS: usize = 120;"),
    ] {
        assert!(file(source).contains(figure), "{source} has another {figure}");
    }
    let site = file("gateway/benches/scale/site.rs");
    for figure in [
        "CHALLENGES_AT_ONCE: u64 = 20_000;",
        "CHALLENGES_EACH_SECOND: u64 = 800;",
        "CONNECTIONS: usize = 2048;",
        "SOCKETS: usize = 16_384;",
        "REQUESTS: usize = 256;",
        "KNOWN_PART: usize = 4;",
        "HANDSHAKES_ALWAYS: usize = 2;",
        "STRANGERS_TURN: u32 = 4;",
        " PATIENCE: Time = 12 * SECOND;",
        "CONFIG_PATIENCE: Time = 8 * SECOND;",
        "MOST_KEYS: usize = 120;",
    ] {
        assert!(site.contains(figure), "the simulation has another {figure}");
    }
}

#[test]
fn performance_page_has_the_simulation_results() {
    // The others take long without optimisation; `make bench BENCHES=scale` compares all.
    const MOST: u64 = 20_000;
    let document = file(PAGE);
    let rows_below = |head: &str| -> Vec<String> {
        let (_, rows) = document.split_once(head).unwrap_or_else(|| panic!("{PAGE} has no table {head}"));
        rows.lines()
            .skip(1)
            .take_while(|line| line.starts_with('|'))
            .map(str::to_owned)
            .collect()
    };
    let (fleets, changes) = (rows_below(FLEETS_HEAD), rows_below(CHANGES_HEAD));
    assert_eq!((fleets.len(), changes.len()), (FLEETS.len(), CHANGES.len()));
    let mut compared = 0;
    for (row, site) in fleets.iter().zip(FLEETS).filter(|(_, site)| site.share() <= MOST) {
        assert_eq!(*row, fleet_row(&Outcome::new(site)));
        compared += 1;
    }
    for (row, (what, site)) in changes.iter().zip(CHANGES).filter(|(_, (_, site))| site.share() <= MOST) {
        assert_eq!(*row, change_row(what, &Outcome::new(site)));
        compared += 1;
    }
    assert!(compared >= 6, "{compared} rows compared");
}

#[test]
fn events_happen_in_order() {
    let mut clock = Clock::new();
    for (time, event) in [(2, 'c'), (1, 'a'), (1, 'b')] {
        clock.after(time, event);
    }
    assert_eq!((clock.next(), clock.next(), clock.now), (Some('a'), Some('b'), 1));
    clock.after(5, 'd');
    assert_eq!(
        (clock.next(), clock.next(), clock.now, clock.next()),
        (Some('c'), Some('d'), 6, None)
    );
}

#[test]
fn budget_allows_a_burst_and_a_rate() {
    let mut budget = Budget::default();
    let granted = |budget: &mut Budget, second: u64| (0..50_000).filter(|_| budget.spend(second * SECOND)).count();
    assert_eq!(granted(&mut budget, 0), usize::try_from(CHALLENGES_AT_ONCE).unwrap());
    assert_eq!(
        (granted(&mut budget, 0), granted(&mut budget, 1), granted(&mut budget, 3)),
        (0, 800, 1600)
    );
}

#[test]
fn simulation_accounts_for_all_nodes_and_work() {
    for site in [
        Site {
            nodes: 40_000,
            cores: 4,
            ..STORM
        },
        Site {
            nodes: 3000,
            etcd: Some(ETCD),
            replicas: 3,
            cores: 4,
            gigabits: 1,
            ..STORM
        },
    ] {
        let Replica { tally, budget, store, .. } = Replica::run(site);
        let came = u64::try_from(tally.took.len()).unwrap() + tally.gave_up;
        assert_eq!(came, site.share());
        assert!(budget.granted >= came && tally.sockets <= SOCKETS);
        assert!(tally.lasted * site.cores >= tally.worked && tally.lasted >= tally.sent && tally.lasted * ETCD.cores >= store.worked);
        assert_eq!(store.commits > 0, site.etcd.is_some());
        // More than may wait came within a second, and more than there are challenges for.
        assert_eq!(tally.full > 0 && tally.over_budget > 0, site.nodes > CHALLENGES_AT_ONCE);
    }
}
