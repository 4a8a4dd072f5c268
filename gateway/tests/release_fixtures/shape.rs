//! Forms of what is written: SQL, names of keys and members, types and versions; no values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use attest::protocol::TICKET_PREFIX;
use attest_gateway::credentials::seal::{SealKeyRing, Sealed};
use data_encoding::BASE64;
use regex::Regex;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::life::Message;
use super::{BACKUP, ENGINES, EtcdKey, FACTS, Facts, KEYS, MESSAGES, OBJECTS, SEGMENTS, read_json};
use crate::log_retention::text;

/// Ids: what stands for them in the names of keys and members.
static IDS: LazyLock<Regex> = LazyLock::new(|| Regex::new("[0-9a-f]{8,}").unwrap());
/// Members whose values are part of the form.
const VERSIONS: [&str; 6] = ["v", "version", "protocol", "apiVersion", "schema", "release"];
/// Keys of a store that a gateway may or may not have left when it ends.
const PASSING: [&str; 3] = ["pending/", "outbox/", "expiry/"];
/// State files with a version of their own.
const STATE_FILES: [&str; 3] = ["standing.json", "seal.set", "store.mark"];

/// Lines such as `entry/token/… .value .name: string`, by the name of the format in `--version`, or by the file.
type Forms = BTreeMap<String, BTreeSet<String>>;

/// Returns the differences of the forms in `today` from those in a release's fixtures, without those of formats whose version was raised.
pub(super) fn differences(release: &Path, today: &Path) -> Vec<String> {
    let formats = |folder: &Path| read_json::<Facts>(&folder.join(ENGINES[0].name()).join(FACTS)).formats;
    let (before, now) = (formats(release), formats(today));
    let (read, written) = (forms(release), forms(today));
    let mut different = Vec::new();
    for (format, expected) in &read {
        let found = written.get(format).cloned().unwrap_or_default();
        // A backup and a file of the state folder have versions of their own.
        let version = |form: &BTreeSet<String>| {
            form.iter()
                .filter(|line| line.starts_with(".v =") || line.starts_with(".version ="))
                .cloned()
                .collect::<Vec<_>>()
        };
        if before.get(format) != now.get(format) || version(expected) != version(&found) {
            continue;
        }
        different.extend(
            expected
                .difference(&found)
                .map(|line| format!("{format}: no longer written: {line}")),
        );
        let new = found
            .difference(expected)
            .filter(|line| format != "log entry" || !is_ignored(line, expected));
        different.extend(new.map(|line| format!("{format}: new: {line}")));
    }
    different
}

/// Returns whether readers of the log ignore it: a new member of a decision.
fn is_ignored(line: &str, expected: &BTreeSet<String>) -> bool {
    let is_decision = ["evidence ", "config ", "challenge "]
        .iter()
        .any(|decision| line.starts_with(decision));
    let end = line
        .find(" .")
        .and_then(|begin| Some(begin + 2 + line[begin + 2..].find([':', '.', '[', '\'', ' '])?));
    let member = &line[..end.unwrap_or(line.len())];
    is_decision
        && !expected.iter().any(|line| {
            line.strip_prefix(member)
                .is_some_and(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
        })
}

fn forms(release: &Path) -> Forms {
    let mut forms = Forms::new();
    for engine in ENGINES {
        let folder = release.join(engine.name());
        let state = folder.join("state");
        store(&folder, forms.entry("store".to_owned()).or_default());
        log(&state, forms.entry("log entry".to_owned()).or_default());
        for file in STATE_FILES.iter().filter(|file| state.join(file).exists()) {
            members("", &read_json(&state.join(file)), forms.entry((*file).to_owned()).or_default());
        }
        let seal = forms.entry("seal".to_owned()).or_default();
        sealed(&folder, seal);
        for key in [state.join("seal.key"), folder.join("store.key")].iter().filter(|key| key.exists()) {
            let file = key.file_name().unwrap().to_str().unwrap();
            seal.extend(
                fs::read_to_string(key)
                    .unwrap()
                    .lines()
                    .map(|line| format!("{file}: {}", IDS.replace_all(line, "…"))),
            );
        }
        if folder.join(BACKUP).exists() {
            backup(&folder.join(BACKUP), forms.entry(BACKUP.to_owned()).or_default());
        }
        if folder.join(OBJECTS).exists() {
            let nodes = forms.entry("AttestedNode".to_owned()).or_default();
            for mut object in read_json::<Vec<Value>>(&folder.join(OBJECTS)) {
                if object["kind"] == "AttestedNode" {
                    // The API writes the rest.
                    object["metadata"] = json!({"labels": object["metadata"]["labels"]});
                    members("", &object, nodes);
                }
            }
        }
    }
    log(&release.join(SEGMENTS), forms.entry("log entry".to_owned()).or_default());
    let protocol = forms.entry("protocol".to_owned()).or_default();
    for Message { name, body } in read_json::<Vec<Message>>(&release.join(MESSAGES)) {
        members(&format!("{name} "), &body, protocol);
    }
    forms
}

fn store(folder: &Path, form: &mut BTreeSet<String>) {
    let file = folder.join("state/gateway.db");
    if file.exists() {
        // A copy: SQLite writes next to the file that it reads.
        let copy = tempfile::NamedTempFile::new().unwrap();
        fs::copy(&file, copy.path()).unwrap();
        let database = Connection::open(copy.path()).unwrap();
        let mut tables = database.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").unwrap();
        form.extend(tables.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap));
        for pragma in ["user_version", "application_id"] {
            let value: i64 = database.pragma_query_value(None, pragma, |row| row.get(0)).unwrap();
            form.insert(format!("{pragma} = {value}"));
        }
        let release: String = database.query_row("SELECT release FROM store", [], |row| row.get(0)).unwrap();
        form.insert(format!("release = {release}"));
        let mut pairs = database.prepare("SELECT key, value FROM pairs").unwrap();
        let pairs = pairs
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
            .unwrap();
        for (key, value) in pairs.map(Result::unwrap) {
            pair(&key, &value, form);
        }
    }
    if folder.join(KEYS).exists() {
        for EtcdKey { key, value, .. } in read_json::<Vec<EtcdKey>>(&folder.join(KEYS)) {
            pair(&format!("etcd {key}"), &value, form);
        }
    }
    if folder.join(OBJECTS).exists() {
        for mut object in read_json::<Vec<Value>>(&folder.join(OBJECTS)) {
            if object["kind"] == "Secret" {
                let data = BASE64.decode(object["data"]["data"].as_str().unwrap().as_bytes()).unwrap();
                let data = zstd::decode_all(&*data).unwrap();
                object["data"]["data"] = serde_json::from_slice(&data).unwrap_or_default();
                let writes = object["data"]["data"]["changes"]["writes"].take();
                for (key, value) in writes.as_object().into_iter().flatten() {
                    // One that has no value is removed.
                    value
                        .as_str()
                        .into_iter()
                        .for_each(|value| pair(&format!("changes {key}"), value, form));
                }
                members("Secret ", &object, form);
            }
        }
    }
}

fn pair(key: &str, value: &str, form: &mut BTreeSet<String>) {
    let key = IDS.replace_all(key, "…");
    let own = ["etcd gateway/kv/", "changes "]
        .iter()
        .find_map(|begin| key.strip_prefix(begin))
        .unwrap_or(&key);
    if !PASSING.iter().any(|passing| own.starts_with(passing)) {
        members(&format!("{key} "), &Value::String(value.to_owned()), form);
    }
}

/// Adds the forms of a ticket and a challenge, where the gateway has its own seal.
fn sealed(folder: &Path, form: &mut BTreeSet<String>) {
    let key = folder.join("state/seal.key");
    if key.exists() {
        // A copy, which only its owner can read.
        let copy = tempfile::NamedTempFile::new().unwrap();
        fs::write(copy.path(), fs::read(key).unwrap()).unwrap();
        let (seal, facts) = (SealKeyRing::open(copy.path()).unwrap(), read_json::<Facts>(&folder.join(FACTS)));
        let ticket = facts.ticket.strip_prefix(TICKET_PREFIX).unwrap();
        for (name, kind, text) in [
            ("ticket ", Sealed::Ticket, ticket),
            ("challenge ", Sealed::Challenge, &facts.challenge),
        ] {
            let content = seal.unseal(kind, text).unwrap();
            members(name, &serde_json::from_slice(&content).unwrap(), form);
        }
    }
}

/// Adds the form of each line but those of the store, without the release that has written the file.
fn backup(file: &Path, form: &mut BTreeSet<String>) {
    for line in fs::read_to_string(file).unwrap().lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if ["version", "file", "lines"].iter().any(|name| line.get(name).is_some()) {
            line.as_object_mut().unwrap().remove("release");
            members("", &line, form);
        }
    }
}

/// Adds the form of each line, by its decision. The files of a log have any order here.
fn log(folder: &Path, form: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().contains(".jsonl") {
            for line in text(&path).lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                let decision = line["decision"].as_str().unwrap_or("kept").to_owned();
                members(&format!("{decision} "), &line, form);
            }
        }
    }
}

/// Adds a line for each member: its path with the type, or with the value if that is a version.
fn members(path: &str, value: &Value, form: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Object(all) => {
            for (name, value) in all {
                let path = format!("{path}.{}", IDS.replace_all(name, "…"));
                if VERSIONS.contains(&name.as_str()) && !value.is_object() {
                    form.insert(format!("{path} = {value}"));
                } else {
                    members(&path, value, form);
                }
            }
            "object"
        }
        Value::Array(all) => {
            all.iter().for_each(|value| members(&format!("{path}[]"), value, form));
            "array"
        }
        // JSON as text.
        Value::String(text) if text.starts_with('{') && serde_json::from_str::<Value>(text).is_ok() => {
            return members(&format!("{path}'"), &serde_json::from_str(text).unwrap(), form);
        }
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null => "null",
    };
    form.insert(format!("{path}: {kind}"));
}
