//! Form of an entry in the log: no secret, and nothing by which a short one could be found by trial.
//!
//! The store keeps a provisioning token under its hash. A token that was made elsewhere may be a word that a person has chosen. So the log
//! has no hash of it, keyed or not, but the administrator's name for it.

use attest_log::admin::ValueChange;
use attest_store::{EntryChange, EntryKind};
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};

/// First line of the data that digests are made over, so that they are digests of nothing else.
const DOMAIN: &str = "attest-gateway/v1/admin-record\n";
/// Longest value that is in a record as it is; of a longer one there is its digest.
const VALUE_LIMIT_BYTES: usize = 2048;
/// Longest id, in characters.
const ID_LIMIT_CHARACTERS: usize = 256;
/// Fields of a provisioning token that the log may have.
const OF_TOKEN: [&str; 10] = [
    "name",
    "pool",
    "pools",
    "created",
    "expires",
    "uses",
    "again",
    "networks",
    "superseded",
    "rotation",
];
/// Such fields of the seal's keys, and of each key.
const OF_SEAL: [&str; 3] = ["key_file", "store", "keys"];
const OF_SEALS_KEY: [&str; 4] = ["id", "made", "seals_from", "ends"];

/// An entry that was changed.
pub(super) fn thing(change: &EntryChange) -> ValueChange {
    let EntryChange { kind, id, before, after } = change;
    let show = |value: &Option<String>| value.as_ref().map(|value| value_of(kind, value));
    let id = if is(kind, EntryKind::Token) {
        let named = before.iter().chain(after).find_map(|value| name(value));
        named.unwrap_or_else(|| "without a name".to_owned())
    } else {
        id.clone()
    };
    ValueChange {
        kind: kind.clone(),
        id: id.chars().take(ID_LIMIT_CHARACTERS).collect(),
        before: show(before),
        after: show(after),
    }
}

fn is(kind: &str, wanted: EntryKind) -> bool {
    kind == wanted.as_str()
}

/// Returns the name of a token.
fn name(value: &str) -> Option<String> {
    let token: Map<String, Value> = serde_json::from_str(value).ok()?;
    token.get("name")?.as_str().map(str::to_owned)
}

fn value_of(kind: &str, value: &str) -> Value {
    let read = || serde_json::from_str::<Map<String, Value>>(value).ok();
    let shown = if is(kind, EntryKind::Token) {
        read().map(token)
    } else if is(kind, EntryKind::SealKey) {
        read().map(seal)
    } else {
        // Some are a word, and no JSON.
        Some(serde_json::from_str(value).unwrap_or_else(|_| Value::from(value)))
    };
    match shown {
        Some(shown) if shown.to_string().len() <= VALUE_LIMIT_BYTES => shown,
        // A digest would have the hash in it.
        _ if is(kind, EntryKind::Token) => json!({ "bytes": value.len() }),
        _ => json!({ "sha256": sha256(value), "bytes": value.len() }),
    }
}

fn only(mut members: Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    members.retain(|name, _| known.contains(&name.as_str()));
    members
}

fn token(token: Map<String, Value>) -> Value {
    let mut token = only(token, &OF_TOKEN);
    // The hash of the token that took its place.
    if let Some(Value::Object(superseded)) = token.get_mut("superseded") {
        superseded.remove("by");
    }
    Value::Object(token)
}

fn seal(document: Map<String, Value>) -> Value {
    let mut document = only(document, &OF_SEAL);
    if let Some(Value::Array(keys)) = document.get_mut("keys") {
        for key in keys {
            let members = key.as_object_mut().map(std::mem::take).unwrap_or_default();
            *key = Value::Object(only(members, &OF_SEALS_KEY));
        }
    }
    Value::Object(document)
}

fn sha256(value: &str) -> String {
    let mut context = Context::new(&SHA256);
    context.update(DOMAIN.as_bytes());
    context.update(value.as_bytes());
    HEXLOWER.encode(context.finish().as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn change(kind: EntryKind, id: &str, before: Option<&str>, after: Option<&str>) -> ValueChange {
        thing(&EntryChange {
            kind: kind.as_str().to_owned(),
            id: id.to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        })
    }

    #[test]
    fn redacts_token_hashes() {
        let hash = "c0ffee".repeat(10);
        let text =
            format!(r#"{{"name":"rack","pools":["worker"],"created":1,"expires":2,"superseded":{{"at":1,"by":"{hash}"}},"new":"{hash}"}}"#);
        let told = change(EntryKind::Token, &hash, Some(&text), None);
        assert_eq!(told.id, "rack");
        let members = json!({"name": "rack", "pools": ["worker"], "created": 1, "expires": 2, "superseded": {"at": 1}});
        assert_eq!(told.before, Some(members));
        for unreadable in [hash.as_str(), "{", "[]", "\"c0ffee\""] {
            let told = change(EntryKind::Token, &hash, Some(unreadable), None);
            assert!(!serde_json::to_string(&told).unwrap().contains("c0ffee"), "{told:?}");
        }
        let long = text.replace("worker", &"w".repeat(VALUE_LIMIT_BYTES));
        let told = change(EntryKind::Token, &hash, Some(&long), None).before.unwrap();
        assert_eq!(told["bytes"], long.len());
    }

    #[test]
    fn redacts_seal_key_ciphertext() {
        let text = r#"{"v":1,"key_file":"f","store":"s","keys":[{"id":"i","made":1,"seals_from":2,"ends":3,"ciphertext":"SECRET"}, 7]}"#;
        let told = change(EntryKind::SealKey, "keys", None, Some(text)).after.unwrap();
        assert_eq!(
            told,
            json!({"key_file": "f", "store": "s", "keys": [{"id": "i", "made": 1, "seals_from": 2, "ends": 3}, {}]})
        );
        let told = change(EntryKind::SealKey, "keys", None, Some("SECRET")).after.unwrap();
        assert_eq!((told["bytes"].as_u64(), told["sha256"].as_str().unwrap().len()), (Some(6), 64));
    }

    #[test]
    fn records_long_values_of_other_entries_as_digest() {
        let told = change(EntryKind::Name, "worker-1", Some("tpm:aa"), Some("tpm:bb"));
        assert_eq!((told.before, told.after), (Some(json!("tpm:aa")), Some(json!("tpm:bb"))));
        let told = change(EntryKind::Ek, &"f".repeat(1000), None, Some(r#"{"name":null}"#));
        assert_eq!((told.id.len(), told.after), (ID_LIMIT_CHARACTERS, Some(json!({"name": null}))));
        let long = "x".repeat(VALUE_LIMIT_BYTES + 1);
        let told = change(EntryKind::Name, "n", None, Some(&long)).after.unwrap();
        assert_ne!(
            told["sha256"],
            json!(HEXLOWER.encode(aws_lc_rs::digest::digest(&SHA256, long.as_bytes()).as_ref()))
        );
    }
}
