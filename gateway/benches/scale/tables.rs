//! Tables of the simulation in `docs/explanation/performance.md`.

use super::outcome::Outcome;
use super::site::{ETCD, Site};

/// Returns a fleet with its replicas, which have four cores; a single replica has its own store.
const fn fleet(nodes: u64, over: u64, replicas: u64) -> Site {
    Site {
        nodes,
        over,
        by_token: false,
        replicas,
        cores: 4,
        gigabits: 10,
        budget: true,
        etcd: if replicas > 1 { Some(ETCD) } else { None },
    }
}

/// Fleets of all sizes; those for a single replica come first.
pub const FLEETS: [Site; 12] = [
    fleet(1_000, 1, 1),
    fleet(10_000, 1, 1),
    fleet(10_000, 1, 3),
    fleet(100_000, 1, 3),
    fleet(100_000, 1, 10),
    fleet(100_000, 180, 3),
    fleet(1_000_000, 1, 10),
    fleet(1_000_000, 1, 30),
    fleet(1_000_000, 1, 100),
    fleet(1_000_000, 180, 10),
    fleet(1_000_000, 180, 30),
    fleet(1_000_000, 180, 100),
];

const MILLION: Site = fleet(1_000_000, 180, 10);
const WIDER: Site = Site {
    etcd: Some(ETCD.halved()),
    budget: false,
    gigabits: 25,
    cores: 8,
    ..MILLION
};

/// A million nodes, and without their bottlenecks.
pub const CHANGES: [(&str, Site); 3] = [
    ("as it is", MILLION),
    ("no budget of challenges, etcd half of its work, 8 cores, 25 Gbit/s", WIDER),
    ("the same, the nodes within 1 s", Site { over: 1, ..WIDER }),
];

pub const FLEETS_HEAD: &str = "\
| Nodes | Come within | Replicas | All have their config after | p50 | p99 | Nodes a second and core | Failed attempts a node | Connections of one replica | Sockets that wait | etcd's commits | Busiest | Next |
|---|---|---|---|---|---|---|---|---|---|---|---|---|";
pub const CHANGES_HEAD: &str = "\
| A million nodes within 3 min, 10 replicas | All have their config after | Busiest | Next |
|---|---|---|---|";

pub fn fleet_row(outcome: &Outcome) -> String {
    let Site { nodes, over, replicas, .. } = outcome.site;
    let within = if over < 60 {
        format!("{over} s")
    } else {
        format!("{} min", over / 60)
    };
    let commits = if outcome.commits > 0 {
        thousands(outcome.commits)
    } else {
        "–".to_owned()
    };
    format!(
        "| {} | {within} | {replicas} | {} | {} | {} | {:.0} | {:.1} | {} | {} | {commits} | {} |",
        thousands(nodes),
        outcome.after(),
        time(outcome.p50),
        time(outcome.p99),
        outcome.rate(),
        outcome.failed,
        number(outcome.connections),
        number(outcome.sockets),
        busiest(outcome),
    )
}

pub fn change_row(what: &str, outcome: &Outcome) -> String {
    format!("| {what} | {} | {} |", outcome.after(), busiest(outcome))
}

impl Outcome {
    fn after(&self) -> String {
        match self.without {
            0 => time(self.lasted),
            without => format!("not in half an hour: {} of one replica's wait", thousands(without)),
        }
    }
}

fn busiest(outcome: &Outcome) -> String {
    let named = outcome.busy.iter().take(2);
    let named: Vec<String> = named.map(|(what, part)| format!("{what} {:.0} %", part * 100.0)).collect();
    named.join(" | ")
}

fn time(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.1} min", seconds / 60.0)
    }
}

fn number(count: usize) -> String {
    thousands(u64::try_from(count).unwrap_or(u64::MAX))
}

/// Formats a number with a comma after each three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
