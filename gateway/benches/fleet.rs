//! Cost of a large fleet for a starting gateway, and delay of a command's change until every replica applies it.
//!
//! `cargo bench -p attest-gateway --bench fleet`; it fails if a start with a hundred thousand machines takes more than [`LONGER`] times as
//! long as one with none, or more than [`LARGER`] times as much memory, or if the slowest of a hundred changes is answered by the old state after its command has ended,
//! or seen later than [`LIMIT`].

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod results;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attest_gateway::settings::Settings;
use attest_store::{AnyStore, EntryKind, Store, StoreEntry};
use cloud_fixtures::etcd;
use results::{Bound, Figure};
use support::{Answer, Gateway, POOL, bearer};
use tokio::task::JoinSet;

/// Maximum ratio of the durations: a start that read the machines would take twenty times as long.
const LONGER: f64 = 2.0;
const LARGER: f64 = 1.5;
const LIMIT: Duration = Duration::from_secs(1);
const MACHINES: usize = 100_000;
/// Number of measured starts; the quickest one counts.
const STARTS: usize = 5;
const CHANGES: usize = 100;
const REPLICAS: usize = 3;

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let starts = starts(&runtime, measuring);
    let changes = changes(&runtime, measuring);
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    if !(starts && changes) {
        std::process::exit(1);
    }
}

fn settings(etcd: &etcd::EtcdServer) -> String {
    let endpoint = etcd.endpoint();
    format!("[store]\nengine = \"etcd\"\nendpoints = [{endpoint:?}]\nkey_file = \"store.key\"")
}

/// Measures starts with no machine and with many, on both engines. Returns whether the limits hold.
fn starts(runtime: &tokio::runtime::Runtime, measuring: bool) -> bool {
    let machines = if measuring { MACHINES } else { 100 };
    let etcd = etcd::EtcdServer::start();
    println!("{:<10} {:>10} {:>12} {:>14}", "store", "machines", "start, ms", "memory, MB");
    let mut within = true;
    for (name, settings) in [("embedded", String::new()), ("etcd", settings(&etcd))] {
        let mut gateway = Gateway::init();
        gateway.settings(&settings);
        if name == "etcd" {
            gateway.command(&["store", "create-key"]);
        }
        let empty = start(&mut gateway);
        runtime.block_on(fill(open(&gateway), machines));
        let full = start(&mut gateway);
        for (machines, (took, bytes)) in [(0, empty), (machines, full)] {
            let megabytes = bytes / 1e6;
            println!("{name:<10} {machines:>10} {:>12.0} {megabytes:>14.1}", took * 1e3);
        }
        let (took, memory) = (full.0 / empty.0, full.1 / empty.1);
        println!("{name:<10} {:>10} {took:>11.2}x {memory:>13.2}x", "");
        within &= took <= LONGER && memory <= LARGER;
        if measuring {
            let ratio = |what: &str, value, limit| {
                let name = format!("{name}: {what} with {machines} machines, as a ratio to none");
                Figure::from_runs(name, "x", &[value]).limit(Bound::AtMost(limit))
            };
            results::report([ratio("start", took, LONGER), ratio("memory", memory, LARGER)]);
        }
    }
    println!("{LONGER}x and {LARGER}x are allowed\n");
    within
}

/// Returns the time until the gateway is ready, in seconds, and its memory then, in bytes.
fn start(gateway: &mut Gateway) -> (f64, f64) {
    let mut quickest = f64::MAX;
    let mut memory = 0.0;
    for _ in 0..STARTS {
        let begun = Instant::now();
        gateway.run();
        quickest = quickest.min(begun.elapsed().as_secs_f64());
        memory = resident(gateway.process_id());
        gateway.terminate();
        gateway.wait();
    }
    (quickest, memory)
}

fn resident(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024.0 * line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
}

fn open(gateway: &Gateway) -> Arc<dyn Store> {
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    Arc::new(AnyStore::open(&settings.store).unwrap())
}

/// Writes machines with names into the EK allowlist.
async fn fill(store: Arc<dyn Store>, machines: usize) {
    const AT_ONCE: usize = 30;
    let mut writing = JoinSet::new();
    for first in (0..machines).step_by(AT_ONCE) {
        let some = first..machines.min(first + AT_ONCE);
        let entries = |of: &dyn Fn(usize) -> (String, String)| -> Vec<StoreEntry> {
            let entry = |(id, value)| StoreEntry { id, value };
            some.clone().map(of).map(entry).collect()
        };
        let (ek, name) = (|number: usize| format!("{number:064x}"), |number: usize| format!("node-{number}"));
        let kinds = [
            (
                EntryKind::Ek,
                entries(&|number| (ek(number), format!("{{\"name\":\"{}\",\"pools\":[],\"added\":1}}", name(number)))),
            ),
            (EntryKind::Name, entries(&|number| (name(number), format!("tpm:{}", ek(number))))),
            (EntryKind::NameOf, entries(&|number| (format!("tpm:{}", ek(number)), name(number)))),
        ];
        for (kind, entries) in kinds {
            let store = Arc::clone(&store);
            writing.spawn(async move { assert!(store.change(kind, Vec::new(), entries).await.unwrap()) });
        }
        while writing.len() >= 64 {
            writing.join_next().await.unwrap().unwrap();
        }
    }
    writing.join_all().await;
}

/// Measures revocations of tokens by the command while each replica gets requests continuously. Returns whether the limits hold.
fn changes(runtime: &tokio::runtime::Runtime, measuring: bool) -> bool {
    let count = if measuring { CHANGES } else { 2 };
    let etcd = etcd::EtcdServer::start();
    let mut replicas: [Gateway; REPLICAS] = std::array::from_fn(|_| Gateway::init());
    for number in 0..REPLICAS {
        replicas[number].settings(&settings(&etcd));
        replicas[number].edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        if number == 0 {
            replicas[0].command(&["store", "create-key"]);
        } else {
            fs::copy(replicas[0].path("store.key"), replicas[number].path("store.key")).unwrap();
        }
        replicas[number].run();
    }
    let (mut seen, mut commands, mut late) = (Vec::new(), Vec::new(), 0);
    for change in 0..count {
        let (name, address) = (format!("t{change}"), u8::try_from(change + 1).unwrap());
        let token = bearer(&replicas[0].token(&["--name", &name]));
        let ended = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let asking: Vec<_> = replicas
            .iter()
            .map(|replica| {
                // Refusals of one address count, and who is refused often is told to come again.
                let (client, url) = (replica.client_from([127, 0, 1, address]), replica.url("/config/worker"));
                runtime.spawn(ask(client, url, token.clone(), Arc::clone(&ended), begun))
            })
            .collect();
        replicas[change % REPLICAS].command(&["token", "revoke", &name]);
        ended.store(true, Ordering::SeqCst);
        commands.push(begun.elapsed());
        for asked in asking {
            let (after, old) = runtime.block_on(asked).unwrap();
            seen.push(after);
            late += old;
        }
    }
    for figures in [&mut seen, &mut commands] {
        figures.sort();
    }
    let at = |figures: &[Duration], percent: usize| figures[(figures.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{:<44} {:>8} {:>8}",
        "a change by a command, three replicas on etcd", "p50, ms", "p99, ms"
    );
    println!("{:<44} {:>8.1} {:>8.1}", "the command ends", at(&commands, 50), at(&commands, 99));
    println!(
        "{:<44} {:>8.1} {:>8.1}",
        "every replica refuses, from its begin on",
        at(&seen, 50),
        at(&seen, 99)
    );
    println!("answers by the old state to requests that began after the command's end: {late}");
    if measuring {
        let figure = |name: &str, all: &[Duration]| {
            let millis: Vec<f64> = all.iter().map(|took| took.as_secs_f64() * 1e3).collect();
            Figure::from_runs(name, "ms", &millis)
        };
        results::report([
            figure("a change by a command: the command ends", &commands),
            figure("a change by a command: every replica refuses", &seen),
            Figure::from_runs("answers by the old state", "", &[f64::from(u32::try_from(late).unwrap())]).limit(Bound::Never),
        ]);
    }
    late == 0 && seen.last().is_some_and(|slowest| *slowest <= LIMIT)
}

/// Sends requests until one is refused. Returns that time, and the number of successful requests that began after the command's end.
async fn ask(client: reqwest::Client, url: String, token: String, ended: Arc<AtomicBool>, begun: Instant) -> (Duration, usize) {
    let mut old = 0;
    loop {
        let after = ended.load(Ordering::SeqCst);
        let answer = Answer::send(client.get(&url).header("authorization", &token)).await;
        if answer.status == 403 {
            return (begun.elapsed(), old);
        }
        old += usize::from(after);
    }
}
