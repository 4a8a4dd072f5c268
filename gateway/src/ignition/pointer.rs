//! Pointer configs: the few lines that a node has before it has anything.

use data_encoding::BASE64;
use serde_json::{Value, json};
use url::Url;

/// A pointer to `source` for nodes that trust `ca` (PEM) only, with a provisioning token if they have one.
///
/// Spec 3.1.0: the oldest that has `httpHeaders`, so that every Ignition of spec 3.1 and later reads it. `merge` and not `replace`,
/// so that the CA stays in the node's config.
#[must_use]
pub fn render(source: &Url, ca: &str, token: Option<&str>) -> Value {
    let mut merge = json!({ "source": source.as_str() });
    if let (Some(token), Some(merge)) = (token, merge.as_object_mut()) {
        merge.insert(
            "httpHeaders".to_owned(),
            json!([{ "name": "Authorization", "value": format!("Bearer {token}") }]),
        );
    }
    json!({
        "ignition": {
            "version": "3.1.0",
            "config": { "merge": [merge] },
            "security": { "tls": { "certificateAuthorities": [{ "source": format!("data:text/plain;charset=utf-8;base64,{}", BASE64.encode(ca.as_bytes())) }] } },
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn ignition_takes_it() {
        let source = Url::parse("https://api-int.example.com:22623/config/worker").unwrap();
        for token in [None, Some("abc")] {
            let pointer = render(&source, "-----BEGIN CERTIFICATE-----\n", token);
            crate::ignition::Config::parse(pointer.to_string().as_bytes()).unwrap();
            assert_eq!(pointer.pointer("/ignition/config/merge/0/source").unwrap(), source.as_str());
            let header = pointer
                .pointer("/ignition/config/merge/0/httpHeaders/0/value")
                .and_then(Value::as_str);
            assert_eq!(header, token.map(|_| "Bearer abc"));
        }
    }
}
