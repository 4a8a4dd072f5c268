//! Manifests of Kubernetes Secrets: written for `oc apply -f`, and read back from a cluster.

pub mod reading;

use data_encoding::BASE64;
use zeroize::Zeroizing;

/// Returns a Secret of type `Opaque`. Names and keys must be constants of the caller, never external text.
#[must_use]
pub fn secret(namespace: &str, name: &str, data: &[(&str, &[u8])]) -> Zeroizing<String> {
    labelled(namespace, name, None, data)
}

/// Returns a Secret like [`secret`], with a label that has no value.
#[must_use]
pub fn labelled(namespace: &str, name: &str, label: Option<&str>, data: &[(&str, &[u8])]) -> Zeroizing<String> {
    let labels = label.map_or_else(String::new, |label| format!("  labels:\n    {label}: \"\"\n"));
    let mut manifest = Zeroizing::new(format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {namespace}\n{labels}type: Opaque\ndata:\n"
    ));
    for (key, value) in data {
        manifest.push_str("  ");
        manifest.push_str(key);
        manifest.push_str(": ");
        manifest.push_str(&Zeroizing::new(BASE64.encode(value)));
        manifest.push('\n');
    }
    manifest
}

/// Returns the value of a key of an existing Secret. `None` if the text is not such a manifest.
///
/// # Errors
/// What is wrong with it; never anything of its values.
pub fn value(text: &str, key: &str) -> Option<Result<Zeroizing<String>, String>> {
    reading::is_manifest(text).then(|| reading::value(text, &[key]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn secret_manifest_is_valid_yaml() {
        let manifest = secret("openshift-config", "machineconfig-auth", &[("token", b"abc"), ("empty", b"")]);
        let read: serde_json::Value = serde_saphyr::from_str(&manifest).unwrap();
        assert_eq!(read["kind"], "Secret");
        assert_eq!(read["metadata"]["name"], "machineconfig-auth");
        assert_eq!(read["metadata"]["namespace"], "openshift-config");
        assert_eq!(read["data"]["token"], "YWJj");
        assert_eq!(read["data"]["empty"], serde_json::Value::Null);
    }
}
