//! Reading of certificates and keys from a manifest of one Secret or one ConfigMap, in YAML or JSON.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

/// Maximum number of nodes of a manifest: it has some ten keys, and the fields that an API server adds.
const YAML_NODE_LIMIT: usize = 10_000;
/// Maximum number of aliases; a manifest needs none.
const YAML_ALIAS_LIMIT: usize = 16;

/// The fields of an object that are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestObject {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "type")]
    of_type: Option<String>,
    #[serde(default)]
    data: Option<BTreeMap<String, Option<String>>>,
    #[serde(default)]
    string_data: Option<BTreeMap<String, Option<String>>>,
}

impl Drop for ManifestObject {
    fn drop(&mut self) {
        for values in [&mut self.data, &mut self.string_data].into_iter().flatten() {
            values.values_mut().flatten().for_each(Zeroize::zeroize);
        }
    }
}

/// Returns whether a text is PEM. In a manifest, PEM is indented, encoded, or inside a string.
pub fn is_pem(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("-----BEGIN"))
}

/// Returns whether a text is a manifest that may hold certificates or keys.
pub fn is_manifest(text: &str) -> bool {
    !is_pem(text) && read(text).is_ok_and(|object| matches!(object.kind.as_str(), "Secret" | "ConfigMap"))
}

/// Returns the type of a Secret, if it has one.
pub fn type_of(text: &str) -> Option<String> {
    // By its clone: what is in it is wiped when it goes.
    read(text).ok().filter(|object| object.kind == "Secret")?.of_type.clone()
}

/// Returns the value of the first of `keys` that a manifest has.
///
/// # Errors
/// What is wrong with it, or which key is missing; never anything of its values.
pub fn value(text: &str, keys: &[&str]) -> Result<Zeroizing<String>, String> {
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    let object = read(text)?;
    let found = object.value(keys)?;
    found.ok_or_else(|| format!("the {} has no {}", object.kind, keys.join(" and no ")))
}

/// Returns a value like [`value`], for a key that may be missing.
pub fn optional(text: &str, key: &str) -> Result<Option<Zeroizing<String>>, String> {
    read(text)?.value(&[key])
}

impl ManifestObject {
    fn value(&self, keys: &[&str]) -> Result<Option<Zeroizing<String>>, String> {
        let secret = match (self.api_version.as_str(), self.kind.as_str()) {
            ("v1", "Secret") => true,
            ("v1", "ConfigMap") => false,
            _ => return Err("is neither PEM nor the manifest of a Secret or a ConfigMap (apiVersion v1)".to_owned()),
        };
        for key in keys {
            let get = |values: &Option<BTreeMap<String, Option<String>>>| values.as_ref()?.get(*key)?.clone().map(Zeroizing::new);
            // As the API server does it: stringData goes over data.
            if let Some(plain) = get(&self.string_data).filter(|_| secret) {
                return Ok(Some(plain));
            }
            let Some(found) = get(&self.data) else { continue };
            return if secret { decode(key, &found).map(Some) } else { Ok(Some(found)) };
        }
        Ok(None)
    }
}

fn read(text: &str) -> Result<ManifestObject, String> {
    // What a parser says of a place may hold the text there.
    let place = |line: Option<u64>| line.map_or_else(String::new, |line| format!(", line {line}"));
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| {
            format!(
                "is not a manifest: not JSON of one object{}",
                place(u64::try_from(error.line()).ok())
            )
        });
    }
    let mut options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: YAML_NODE_LIMIT, max_aliases: YAML_ALIAS_LIMIT },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: YAML_NODE_LIMIT, max_alias_expansions_per_anchor: YAML_ALIAS_LIMIT },
    };
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map(|location| location.line());
        format!("is neither PEM nor a manifest: not YAML of one object{}", place(line))
    })
}

fn decode(key: &str, value: &str) -> Result<Zeroizing<String>, String> {
    let text: Zeroizing<String> = Zeroizing::new(value.chars().filter(|character| !character.is_ascii_whitespace()).collect());
    let bytes = BASE64.decode(text.as_bytes()).map_err(|_| format!("{key} is not Base64"))?;
    String::from_utf8(bytes).map(Zeroizing::new).map_err(|error| {
        drop(Zeroizing::new(error.into_bytes()));
        format!("{key} is not UTF-8")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: machine-config-server-tls\ntype: kubernetes.io/tls\ndata:\n  tls.crt: Y2Vy\n    dA==\n  tls.key: a2V5\n";

    #[test]
    fn first_present_key_of_a_secret_is_used() {
        let check = |text: &str, keys: &[&str], expected: &str| assert_eq!(*value(text, keys).unwrap(), expected, "{text}");
        check(SECRET, &["tls.crt"], "cert");
        check(SECRET, &["tls.key"], "key");
        check(SECRET, &["ca.crt", "tls.crt"], "cert");
        check(
            r#"{"apiVersion":"v1","kind":"Secret","data":{"tls.key":"a2V5"}}"#,
            &["tls.key"],
            "key",
        );
        check(
            "apiVersion: v1\nkind: Secret\nstringData:\n  tls.key: |\n    plain\n",
            &["tls.key"],
            "plain\n",
        );
        check(
            "apiVersion: v1\nkind: Secret\ndata: {tls.key: a2V5}\nstringData: {tls.key: over}\n",
            &["tls.key"],
            "over",
        );
        check(
            "---\napiVersion: v1\nkind: ConfigMap\ndata:\n  ca-bundle.crt: plain\n",
            &["ca.crt", "ca-bundle.crt"],
            "plain",
        );
    }

    #[test]
    fn error_names_the_missing_key_and_quotes_nothing() {
        let check = |text: &str, expected: &str| {
            let error = value(text, &["tls.crt", "ca.crt"]).unwrap_err();
            assert!(error.contains(expected), "{error:?} has no {expected:?}");
            assert!(!error.contains("hunter2"), "{error}");
        };
        check("", "empty");
        check(" \n", "empty");
        check("hunter2", "neither PEM nor a manifest");
        check("hunter2: [", "neither PEM nor a manifest");
        check("{\"hunter2\"", "not JSON");
        check("kind: hunter2\napiVersion: v1\n", "Secret or a ConfigMap");
        check("kind: Secret\napiVersion: v2\n", "Secret or a ConfigMap");
        check("kind: Secret\napiVersion: v1\n", "the Secret has no tls.crt and no ca.crt");
        check("kind: Secret\napiVersion: v1\ndata: {tls.crt: hunter2}\n", "tls.crt is not Base64");
        check("kind: Secret\napiVersion: v1\ndata: {tls.crt: /w==}\n", "tls.crt is not UTF-8");
        check("kind: Secret\napiVersion: v1\ndata: {tls.crt: [hunter2]}\n", "not YAML");
        check(
            "kind: ConfigMap\napiVersion: v1\nstringData: {tls.crt: hunter2}\n",
            "the ConfigMap has no",
        );
        check(&format!("{SECRET}---\n{SECRET}"), "not YAML of one object");
        let aliases: String = (0..40).map(|_| "  - *a\n").collect();
        check(&format!("a: &a hunter2\nb:\n{aliases}kind: Secret\n"), "not YAML");
    }

    #[test]
    fn distinguishes_pem_from_a_manifest() {
        let pem = "-----BEGIN CERTIFICATE-----";
        let check = |text: &str, expected: bool| assert_eq!(is_pem(text), expected, "{text}");
        check(pem, true);
        check(&format!("subject=CN=a\n{pem}\n"), true);
        check(&format!("kind: ConfigMap\ndata:\n  ca.crt: |\n    {pem}\n"), false);
        check(&format!(r#"{{"kind":"ConfigMap","data":{{"ca.crt":"{pem}"}}}}"#), false);
        check("", false);
    }
}
