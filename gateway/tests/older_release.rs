//! What an earlier release has written is read: its decisions are made again, and what its stores hold is there.
//!
//! `older_release/` was written by the program of 22 November 2026, in its own tests: one record of each set of kinds that was trusted and of
//! each code whose evidence is recorded whole, with the large parts in `evidence/`; and three stores as SQL of one schema, with what that program
//! said of each. None of it is changed when the program changes; a later release adds a folder beside it.

use std::fs;
use std::path::{Path, PathBuf};

use attest_gateway::audit::{Blobs, ReplayError, replay};
use rusqlite::Connection;
use serde_json::Value;

use crate::support::Gateway;

fn written(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/older_release").join(path)
}

fn records() -> Vec<String> {
    let records = fs::read_to_string(written("records.jsonl")).unwrap();
    records.lines().map(str::to_owned).collect()
}

/// A gateway that was never started, with the large parts of the records in its state folder.
fn auditor() -> Gateway {
    let gateway = Gateway::init();
    let evidence = gateway.path("state/evidence");
    fs::create_dir_all(&evidence).unwrap();
    for entry in fs::read_dir(written("evidence")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), evidence.join(entry.file_name())).unwrap();
    }
    gateway
}

/// What the library says of a record: its claims, or the code of the refusal.
fn again(blobs: &Blobs, record: &str) -> Result<Value, String> {
    match replay(record, blobs) {
        Ok(result) => Ok(serde_json::to_value(result.claims()).unwrap()),
        Err(ReplayError::Reject(reject)) => Err(reject.code().to_owned()),
        Err(other) => panic!("{other}: {record}"),
    }
}

#[test]
fn each_decision_is_made_again() {
    let gateway = auditor();
    let blobs = Blobs::open(&gateway.path("state/evidence")).unwrap();
    let records = records();
    let mut trusted = 0;
    for line in &records {
        let record: Value = serde_json::from_str(line).unwrap();
        match again(&blobs, line) {
            // What the store said is no part of the record: the evidence was good.
            Ok(claims) if record["verdict"] == "trusted" => {
                assert_eq!(claims, record["claims"]);
                trusted += 1;
            }
            Ok(_) => assert!(["instance-claimed", "node-name-taken", "node-revoked"].contains(&record["code"].as_str().unwrap())),
            Err(code) => assert_eq!(record["code"], code),
        }
    }
    assert_eq!((records.len(), trusted), (47, 15));

    let log = written("records.jsonl");
    let said = gateway.command(&["audit", "--continued", "--log", log.to_str().unwrap()]);
    assert!(said.contains("47 as recorded, 0 different"), "{said}");
}

/// The words of a table, without the state of a token, which follows from the time.
fn words(said: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut rows: Vec<Vec<String>> = said.lines().map(cells).collect();
    let state = |row: &Vec<String>| row.iter().any(|cell| ["current", "spent", "expired"].contains(&cell.as_str()));
    for row in rows.iter_mut().filter(|row| state(row)) {
        row.remove(2);
    }
    rows
}

#[test]
fn what_a_store_holds_is_there() {
    for store in ["tokens", "tpms", "instances"] {
        let mut gateway = Gateway::init();
        let state = gateway.path("state");
        fs::create_dir_all(&state).unwrap();
        let folder = written("stores").join(store);
        let database = Connection::open(state.join("gateway.db")).unwrap();
        for sql in [written("stores/schema.sql"), folder.join("gateway.sql")] {
            database.execute_batch(&fs::read_to_string(sql).unwrap()).unwrap();
        }
        drop(database);
        fs::copy(folder.join("store.mark"), state.join("store.mark")).unwrap();

        let said = fs::read_to_string(folder.join("said")).unwrap();
        let commands = said.split("$ attest-gateway ").skip(1);
        for (command, expected) in commands.filter_map(|section| section.split_once('\n')) {
            let arguments: Vec<&str> = command.split(' ').collect();
            assert_eq!(words(&gateway.command(&arguments)), words(expected), "{store}: {command}");
        }
        gateway.run();
    }
}
