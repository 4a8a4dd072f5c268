//! Costs with many enrolled machines, and no log.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use attest_gateway::settings::Settings;
use attest_store::{AnyStore, EntryKind, Store, StoreEntry};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::PARTS;
use crate::cost::{Cost, Growth, Memory};
use crate::support::Gateway;

/// Machines whose entries are written in one transaction: SQLite takes any number, and etcd few.
const AT_ONCE: [(&str, usize); 2] = [("SQLite", 5000), ("etcd", 30)];
const WRITERS: usize = 64;
/// Number of machines that are imported by the command, in addition.
const IMPORTED: usize = 1000;

/// Measures a gateway with a part of these machines, and with all.
pub fn measure(runtime: &Runtime, engine: &str, settings: &str, machines: usize) -> Vec<Growth> {
    let at_once = AT_ONCE.iter().find(|(name, _)| *name == engine).unwrap().1;
    let mut gateway = Gateway::init();
    gateway.settings(settings);
    if !settings.is_empty() {
        gateway.command(&["store", "create-key"]);
    }
    let sizes = [machines / PARTS, machines];
    let (mut measured, mut filled) = (Vec::new(), 0);
    for machines in sizes {
        runtime.block_on(fill(open(&gateway), at_once, filled, machines));
        filled = machines;
        measured.push(costs(&mut gateway, engine, machines));
    }
    let items = if engine == "etcd" { "machines (etcd)" } else { "machines" };
    let growth = Growth::all(items, sizes, measured);
    let is_constant = |growth: &Growth| growth.what().starts_with("serve");
    growth
        .into_iter()
        .map(|growth| match is_constant(&growth) {
            true => growth,
            false => growth.with_memory(Memory::Linear),
        })
        .collect()
}

fn costs(gateway: &mut Gateway, engine: &str, machines: usize) -> [Cost; 8] {
    let of = format!("{machines} machines, {engine}");
    let start = Cost::of_start(&of, gateway);
    let file = |name: &str| gateway.path(name).to_str().unwrap().to_owned();
    let (import, backup, page) = (file("import.csv"), file("machines.backup"), file("report.html"));
    drop(fs::remove_file(&backup));
    fs::write(&import, rows(machines)).unwrap();
    let last = format!("node-{}", machines - 1);
    let run = |arguments: &[&str]| Cost::of_command(&of, gateway, arguments);
    [
        start,
        run(&["machines", "list", "--limit", "100"]),
        run(&["machines", "list", "--output", "json"]),
        run(&["machines", "show", &last]),
        run(&["machines", "import", "--dry-run", &import]),
        run(&["status"]),
        run(&["report", "--html", &page]),
        run(&["backup", &backup]),
    ]
}

/// Returns a file with machines that the store does not have.
fn rows(first: usize) -> String {
    let mut text = "ek,name\n".to_owned();
    for number in first..first + IMPORTED {
        writeln!(text, "{},new-{number}", ek(number)).unwrap();
    }
    text
}

fn ek(number: usize) -> String {
    format!("{number:064x}")
}

/// Returns the machine's entry in the allowlist.
fn record(number: usize) -> String {
    format!(
        "{{\"name\":\"node-{number}\",\"pools\":[\"worker\"],\"note\":\"rack {}\",\"added\":1}}",
        number % 1000
    )
}

fn open(gateway: &Gateway) -> Arc<dyn Store> {
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    Arc::new(AnyStore::open(&settings.store).unwrap())
}

/// Writes machines with names into the EK allowlist, up to this number.
async fn fill(store: Arc<dyn Store>, at_once: usize, filled: usize, machines: usize) {
    let mut writing = JoinSet::new();
    for first in (filled..machines).step_by(at_once) {
        let some = first..machines.min(first + at_once);
        let entries = |of: fn(usize) -> (String, String)| -> Vec<StoreEntry> {
            let entry = |(id, value)| StoreEntry { id, value };
            some.clone().map(of).map(entry).collect()
        };
        let kinds = [
            (EntryKind::Ek, entries(|number| (ek(number), record(number)))),
            (
                EntryKind::Name,
                entries(|number| (format!("node-{number}"), format!("tpm:{}", ek(number)))),
            ),
            (
                EntryKind::NameOf,
                entries(|number| (format!("tpm:{}", ek(number)), format!("node-{number}"))),
            ),
        ];
        for (kind, entries) in kinds {
            let store = Arc::clone(&store);
            writing.spawn(async move { assert!(store.change(kind, Vec::new(), entries).await.unwrap()) });
        }
        while writing.len() >= WRITERS {
            writing.join_next().await.unwrap().unwrap();
        }
    }
    writing.join_all().await;
}
