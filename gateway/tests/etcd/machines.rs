//! Import of machines into a store on etcd, in several transactions.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::gateways::gateway;
use super::*;
use crate::machines::import::{all_or_nothing, exported, many};
use crate::support::program;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_rows_are_imported_in_several_transactions() {
    let site = Site::start();
    let gateway = gateway(&site, "");
    // etcd takes 128 operations in a transaction.
    all_or_nothing(&gateway, |transactions| (100..1000).contains(&transactions));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_import_is_finished_by_the_same_import() {
    const ROWS: usize = 5000;
    let site = Site::start();
    let gateway = gateway(&site, "");
    let file = gateway.path("machines.csv");
    fs::write(&file, many(ROWS)).unwrap();
    let whole = many(ROWS);
    let names: Vec<&str> = whole.lines().skip(1).map(|row| row.split(',').nth(1).unwrap()).collect();
    let mut was_partial = false;
    for wait in [300, 700, 1200, 2000] {
        let mut child = program();
        child
            .arg("--config")
            .arg(gateway.path("gateway.toml"))
            .args(["machines", "import"])
            .arg(&file);
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(wait)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        // The first rows of the file, each with its name.
        let found = exported(&gateway);
        let mut found: Vec<&str> = found.lines().skip(1).map(|row| row.split(',').nth(3).unwrap()).collect();
        found.sort_by_key(|name| name.strip_prefix("worker-").unwrap().parse::<usize>().unwrap());
        assert_eq!(found, names[..found.len()]);
        was_partial |= !found.is_empty() && found.len() < ROWS;
        if found.len() == ROWS {
            break;
        }
    }
    assert!(was_partial, "an import was killed in the middle");
    gateway.command(&["machines", "import", file.to_str().unwrap()]);
    assert_eq!(exported(&gateway).lines().count(), ROWS + 1);
    // Each attempt that changed something is recorded, with the same file.
    let acts = gateway.wait_for_acts(2, "machines.import");
    let digest = |act: &Value| act["admin"]["things"][0]["after"]["sha256"].clone();
    assert!(acts.iter().all(|act| digest(act) == digest(&acts[0])), "{acts:?}");
    let status = gateway.command(&["status", "--output", "json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(
        (status["replicas"].as_array().unwrap().len(), &status["stops"]),
        (1, &Value::Array(Vec::new())),
        "{status}"
    );
}
