//! What an earlier release has written is read: its decisions are made again, and what its stores hold is there.
//!
//! `older_release/` was written by the program of 22 November 2026, in its own tests: one record of each set of kinds that was trusted and of
//! each code whose evidence is recorded whole, with the large parts in `evidence/`; and three stores as SQL of one schema, with what that program
//! said of each. `on-etcd` was written that evening: what stood in etcd, with the tokens that are in it and the key file. None of it is changed when the
//! program changes; a later release adds a folder beside it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use attest_gateway::audit::{Blobs, ReplayError, Shown, Use, replay, served_for};
use cloud_fixtures::etcd::Etcd;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::log_schema::LOG;
use crate::support::{Gateway, POOL, bearer};

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
    let said = gateway.command(&["audit", "--unchained", "--continued", "--log", log.to_str().unwrap()]);
    assert!(said.contains("47 as recorded, 0 different"), "{said}");
}

/// The first record that was trusted by these kinds.
fn trusted(kinds: &Value) -> Value {
    let records = records().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let mut of_kinds = records.filter(|record| record["verdict"] == "trusted" && record["kinds"] == *kinds);
    of_kinds.next().unwrap()
}

/// A config that a record's ticket was given for.
fn use_of(earned: &Value) -> Value {
    let made = Use {
        number: 1,
        again: false,
        late_seconds: None,
    };
    json!({
        "v": 1, "time": earned["time"], "at": earned["at"], "id": "0123456789abcdef0123456789abcdef", "decision": "config",
        "verdict": "served", "peer": "192.0.2.1:1", "pool": earned["pool"], "shown": "ticket", "identity": earned["identity"],
        "decided_by": "evidence", "reason": served_for(Shown::Ticket, Some(made)), "grant": earned["grant"], "grants": earned["grants"],
        "config_sha256": "ab".repeat(32), "spec_version": "3.4.0", "earned_by": earned["id"], "use_number": 1,
    })
}

/// Lines as a release wrote them that took documents of Nitro Enclaves: made by hand from those of one that did not.
#[test]
fn what_was_decided_where_enclaves_were_taken_is_read() {
    let gateway = auditor();
    let blobs = Blobs::open(&gateway.path("state/evidence")).unwrap();
    let nitro = trusted(&json!(["aws-nitro-tpm"]));
    let mut rules = nitro["basis"]["policy"]["aws_nitro_tpm"].clone();
    rules["shape"] = json!("enclave");

    // A TPM's, in a pool that took an enclave's document, too: it comes out the same.
    let mut by_tpm = trusted(&json!(["tpm"]));
    by_tpm["basis"]["policy"]["aws_nitro_tpm"] = rules.clone();
    by_tpm["basis"]["policy"]["accepts"] = json!([["tpm"], ["aws-nitro-tpm"]]);
    assert_eq!(again(&blobs, &by_tpm.to_string()).unwrap(), by_tpm["claims"]);

    // One whose inventory names an enclave.
    let mut in_inventory = trusted(&json!(["tpm", "azure"]));
    let before = blobs.get(in_inventory["basis"]["inventory"].as_str().unwrap()).unwrap();
    let inventory = [b"aws-enclave:i-0123456789abcdef0\n", before.as_slice()].concat();
    let name = Blobs::name(&inventory);
    blobs.put(&name, &inventory).unwrap();
    in_inventory["basis"]["inventory"] = json!(name);
    assert_eq!(again(&blobs, &in_inventory.to_string()).unwrap(), in_inventory["claims"]);

    // An enclave's own: nobody can judge it, and what it earned is known.
    let mut by_enclave = nitro;
    let identity = "aws-enclave:i-0123456789abcdef0";
    by_enclave["identity"] = json!(identity);
    for claimed in ["identity", "instance"] {
        by_enclave["claims"][claimed] = json!(identity);
    }
    by_enclave["claims"]["aws_nitro_tpm"]["shape"] = json!("enclave");
    by_enclave["basis"]["policy"]["aws_nitro_tpm"] = rules;
    by_enclave["basis"]["challenge"]["subject"]["aws_nitro_tpm"]["shape"] = json!("enclave");
    assert!(matches!(
        replay(&by_enclave.to_string(), &blobs),
        Err(ReplayError::NoLongerJudged(_))
    ));

    let log = gateway.path("enclaves.jsonl");
    let audit = |lines: &[&Value]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&log, text).unwrap();
        gateway.try_command(&["audit", "--unchained", "--log", log.to_str().unwrap()])
    };
    for line in [&by_tpm, &in_inventory, &by_enclave] {
        LOG.check(line).unwrap();
    }
    let used = use_of(&by_enclave);
    let said = audit(&[&by_tpm, &in_inventory, &by_enclave, &used]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{text}");
    assert!(
        text.contains("3 as recorded, 0 different; 0 recorded by digest, 0 unread, 1 no longer judged, 0 lines"),
        "{text}"
    );
    // What else its line says has to be true all the same.
    type Alteration = fn(&mut Value);
    let altered: [(&str, Alteration); 9] = [
        ("evidence", |line| drop(line["basis"].as_object_mut().unwrap().remove("evidence"))),
        ("pool", |line| line["pool"] = json!("another")),
        ("identity", |line| line["identity"] = json!("aws-enclave:i-1")),
        ("identity, twice", |line| {
            for identity in ["/identity", "/claims/identity"] {
                *line.pointer_mut(identity).unwrap() = json!("tpm:00");
            }
        }),
        ("instance", |line| line["instance"] = json!("gcp:p/1")),
        ("claims", |line| line["claims"] = json!({})),
        ("shape", |line| line["claims"]["aws_nitro_tpm"]["shape"] = json!("nitro-tpm")),
        ("ticket", |line| drop(line.as_object_mut().unwrap().remove("ticket"))),
        ("ticket's terms", |line| line["ticket"]["uses"] = json!(0)),
    ];
    for (what, alter) in altered {
        let mut line = by_enclave.clone();
        alter(&mut line);
        assert!(!audit(&[&line]).status.success(), "{what}");
    }
    // One that was refused to a TPM is not made an enclave's.
    let mut of_tpm = by_tpm;
    of_tpm["claims"] = by_enclave["claims"].clone();
    of_tpm["identity"] = json!(identity);
    of_tpm["basis"]["challenge"]["subject"]["aws_nitro_tpm"] = json!({"shape": "enclave"});
    of_tpm["kinds"] = json!(["tpm", "aws-nitro-tpm"]);
    assert!(!audit(&[&of_tpm]).status.success());
    assert!(!audit(&[&used]).status.success());
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

/// A gateway with a store that an earlier release has written.
fn with_older_store(store: &str) -> Gateway {
    let gateway = Gateway::init();
    let state = gateway.path("state");
    fs::create_dir_all(&state).unwrap();
    let folder = written("stores").join(store);
    let database = Connection::open(state.join("gateway.db")).unwrap();
    for sql in [written("stores/schema.sql"), folder.join("gateway.sql")] {
        database.execute_batch(&fs::read_to_string(sql).unwrap()).unwrap();
    }
    drop(database);
    fs::copy(folder.join("store.mark"), state.join("store.mark")).unwrap();
    gateway
}

#[test]
fn what_a_store_holds_is_there() {
    for store in ["tokens", "tpms", "instances"] {
        let mut gateway = with_older_store(store);
        says_the_same(&gateway, &written("stores").join(store));
        gateway.run();
    }
}

#[test]
fn no_command_brings_a_store_up_to_date_under_a_gateway_that_serves() {
    let gateway = with_older_store("tokens");
    let is_older = || {
        let database = Connection::open(gateway.path("state/gateway.db")).unwrap();
        let entries = database.query_row("SELECT count(*) FROM sqlite_master WHERE name = 'entries'", [], |row| {
            row.get::<_, u32>(0)
        });
        entries.unwrap() == 1
    };
    // What a gateway that serves holds, of this release and of earlier ones.
    for held in ["attestation.lock", "attestation.jsonl"] {
        let lock = fs::File::create(gateway.path("state").join(held)).unwrap();
        lock.lock().unwrap();
        let file = gateway.path("backup.jsonl");
        for command in [&["token", "list"][..], &["store", "backup", file.to_str().unwrap()]] {
            let refused = gateway.try_command(command);
            let said = String::from_utf8(refused.stderr).unwrap();
            assert!(!refused.status.success() && said.contains("an older release's"), "{said}");
            assert!(is_older(), "{held}: {command:?}");
        }
    }
    gateway.command(&["token", "list"]);
    assert!(!is_older());
    // One of today is for commands beside a gateway that serves.
    let lock = fs::File::create(gateway.path("state/attestation.lock")).unwrap();
    lock.lock().unwrap();
    gateway.command(&["token", "list"]);
}

/// Each command says what it said then.
fn says_the_same(gateway: &Gateway, folder: &Path) {
    let said = fs::read_to_string(folder.join("said")).unwrap();
    let commands = said.split("$ attest-gateway ").skip(1);
    for (command, expected) in commands.filter_map(|section| section.split_once('\n')) {
        let arguments: Vec<&str> = command.split(' ').collect();
        let now = gateway.command(&arguments);
        assert_eq!(words(&now), words(expected), "{}: {command}", folder.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_on_etcd_holds_is_there_and_counts() {
    let (etcd, folder) = (Etcd::start(), written("on-etcd"));
    for line in fs::read_to_string(folder.join("content.jsonl")).unwrap().lines() {
        let kept: Value = serde_json::from_str(line).unwrap();
        etcd.ctl(&["put", kept["key"].as_str().unwrap(), kept["value"].as_str().unwrap()]);
    }
    let mut gateway = Gateway::init();
    let endpoint = etcd.endpoint();
    gateway.settings(&format!(
        "[store]\nengine = \"etcd\"\nendpoints = [{endpoint:?}]\nkey_file = \"store.key\""
    ));
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let key_file = gateway.path("store.key");
    fs::copy(folder.join("store.key"), &key_file).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
    says_the_same(&gateway, &folder);

    // By the keys of the seal that are there: with another key file it does not start.
    gateway.run();
    let tokens = fs::read_to_string(folder.join("tokens")).unwrap();
    let tokens: BTreeMap<&str, &str> = tokens.lines().filter_map(|line| line.split_once(' ')).collect();
    let config = async |name| gateway.config("/config/worker", &[&bearer(tokens[name])]).await;
    for _ in 2..9 {
        assert_eq!(config("current").await.status, 200);
    }
    config("current").await.refused(403, "token-spent");
    config("spent").await.refused(403, "token-spent");
    config("revoked").await.refused(403, "token-invalid");
}
