//! Search for secrets in the structure of JSON and YAML documents.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{SecretKind, assignment};

/// Largest text that is parsed as YAML, in bytes: the size limit of an object in etcd. A larger text is only searched line by line.
const YAML_LIMIT_BYTES: usize = 1024 * 1024 + 512 * 1024;
/// Maximum number of values in a YAML text.
const YAML_NODE_LIMIT: usize = 50_000;
/// Maximum number of aliases in a YAML text, and of their expansions. Configs hardly have any, and a few lines could expand to gigabytes.
const YAML_ALIAS_LIMIT: usize = 100;

/// Returns the documents in a text; `None` if it is neither JSON nor YAML with keys.
pub(super) fn read(text: &[u8]) -> Option<Vec<Value>> {
    if let Some(b'{' | b'[') = text.trim_ascii_start().first()
        && let Ok(document) = serde_json::from_slice(text)
    {
        return Some(vec![document]);
    }
    if text.len() > YAML_LIMIT_BYTES {
        return None;
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: YAML_NODE_LIMIT, max_aliases: YAML_ALIAS_LIMIT },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: YAML_NODE_LIMIT, max_alias_expansions_per_anchor: YAML_ALIAS_LIMIT },
        with_snippet: false,
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(std::str::from_utf8(text).ok()?, options).ok()?;
    // Any text is YAML, of one scalar.
    documents
        .iter()
        .any(|document| document.is_object() || document.is_array())
        .then_some(documents)
}

/// Looks at a document; `texts` gets the texts in it.
pub(super) fn scan<'a>(document: &'a Value, kinds: &mut BTreeSet<SecretKind>, texts: &mut Vec<&'a str>) {
    match document {
        Value::Object(fields) => {
            let (kubeconfig, secret) = match fields.get("kind").and_then(Value::as_str) {
                Some("Config") => (has_credentials(fields), false),
                Some("Secret") => (false, ["data", "stringData"].iter().any(|key| is_filled(fields.get(*key)))),
                _ => (false, false),
            };
            if kubeconfig {
                kinds.insert(SecretKind::KubeconfigCredential);
            }
            if secret {
                kinds.insert(SecretKind::SecretManifest);
            }
            if is_private_jwk(fields) {
                kinds.insert(SecretKind::PrivateKey);
            }
            for (key, value) in fields {
                // A kubeconfig's users were looked at already.
                if kubeconfig && key == "users" {
                    strings(value, texts);
                    continue;
                }
                if let Some(kind) = assignment::kind_of_key(key)
                    && is_credential(key, kind, value)
                {
                    kinds.insert(kind);
                }
                scan(value, kinds, texts);
            }
        }
        Value::Array(list) => {
            for value in list {
                scan(value, kinds, texts);
            }
        }
        Value::String(text) => texts.push(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns whether some line of the text could hold the data of a Secret.
pub(super) fn has_data_line(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        let key = line.trim_ascii();
        [b"data".as_slice(), b"\"data", b"stringData", b"\"stringData"]
            .iter()
            .any(|word| key.starts_with(word))
    })
}

fn strings<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|value| strings(value, texts)),
        Value::Array(list) => list.iter().for_each(|value| strings(value, texts)),
        Value::String(text) => texts.push(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns whether a user of a kubeconfig has more than references to files.
fn has_credentials(kubeconfig: &Map<String, Value>) -> bool {
    fn within(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields
                .iter()
                .any(|(key, value)| assignment::kind_of_key(key).is_some_and(|kind| is_credential(key, kind, value)) || within(value)),
            Value::Array(list) => list.iter().any(within),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    kubeconfig.get("users").is_some_and(within)
}

fn is_credential(key: &str, kind: SecretKind, value: &Value) -> bool {
    match value {
        Value::String(text) => assignment::is_credential(key, kind, text),
        Value::Number(number) => assignment::is_credential(key, kind, &number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn is_filled(value: Option<&Value>) -> bool {
    value.and_then(Value::as_object).is_some_and(|fields| {
        fields
            .values()
            .any(|value| value.as_str().is_some_and(assignment::is_literal) || value.is_number())
    })
}

/// Returns whether this is a private JWK by RFC 7517: `d` is the private part of any asymmetric key, `k` is a symmetric one.
fn is_private_jwk(fields: &Map<String, Value>) -> bool {
    let has = |key: &str| fields.get(key).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    has("kty") && (has("d") || has("k"))
}
