//! Files that the pre-approved config's units and kubelet configuration name, and that only the full config has.
//!
//! The operator's `/etc/kubernetes/kubelet.conf` names `clientCAFile: /etc/kubernetes/kubelet-ca.crt` (openshift/machine-config-operator
//! `templates/worker/01-worker-kubelet/_base/files/kubelet.yaml`). A Machine Config Server appends that file, and a kubelet does not start
//! without it. A file that neither config has may be the operating system's, and is not reported.

use std::collections::BTreeSet;

use attest_ignition::machine_config::appended::REPEATING;
use attest_ignition::{Config, data_url};
use serde_json::Value;

/// Largest text that is searched, in bytes: units and a kubelet's configuration have some kilobytes.
const TEXT_LIMIT_BYTES: usize = 256 * 1024;
/// Maximum number of missing files that are reported.
const NAMED_LIMIT: usize = 10;
const FILES: [&str; 2] = ["storage", "files"];
const UNITS: [&str; 2] = ["systemd", "units"];
/// The `kind` that a kubelet's configuration states.
const KUBELET: &str = "KubeletConfiguration";

/// A file that is named and missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MissingFile {
    /// The unit, or the file, that names it.
    pub named_by: String,
    pub path: String,
}

/// Returns all missing files, with the unit or file that names each.
pub(super) fn missing_files(pre_approved: &Config, full: &Config) -> Vec<MissingFile> {
    let paths = |config: &Config| -> BTreeSet<String> {
        let files = config.list(FILES).iter();
        files.filter_map(|file| text(file, "path")).map(str::to_owned).collect()
    };
    let (there, mut missing) = (paths(pre_approved), paths(full));
    missing.retain(|path| !there.contains(path) && !REPEATING.contains(&path.as_str()));
    if missing.is_empty() {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    let mut look = |named_by: &str, text: &str| {
        for word in path_candidates(text).filter(|word| missing.contains(*word)) {
            found.insert(MissingFile {
                named_by: named_by.to_owned(),
                path: word.to_owned(),
            });
        }
    };
    for unit in pre_approved.list(UNITS) {
        let name = text(unit, "name").unwrap_or_default();
        let dropins = unit.get("dropins").and_then(Value::as_array).into_iter().flatten();
        for contents in std::iter::once(unit).chain(dropins).filter_map(|part| text(part, "contents")) {
            look(name, contents);
        }
    }
    for file in pre_approved.list(FILES) {
        let (path, source) = (text(file, "path"), file.pointer("/contents/source").and_then(Value::as_str));
        let contents = source.filter(|source| source.len() <= TEXT_LIMIT_BYTES).and_then(data_url::decode);
        if let (Some(path), Some(contents)) = (path, contents)
            && let Ok(contents) = std::str::from_utf8(&contents)
            && contents.contains(KUBELET)
        {
            look(path, contents);
        }
    }
    found.into_iter().take(NAMED_LIMIT).collect()
}

fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value.get(field)?.as_str().filter(|text| text.len() <= TEXT_LIMIT_BYTES)
}

/// Returns the words of a text that could be paths, without the prefixes that systemd allows before one (systemd.service(5),
/// systemd.exec(5)).
fn path_candidates(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || "/._-@+".contains(c);
    let words = text
        .split(move |c| !is_of_a_path(c))
        .map(|word| word.trim_start_matches(['-', '@', '+']));
    words.filter(|word| word.starts_with('/'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    const CA: &str = "/etc/kubernetes/kubelet-ca.crt";
    const CONF: &str = "/etc/kubernetes/kubelet.conf";

    fn config(files: &[(&str, &str)], units: Value) -> Config {
        let file = |(path, contents): &(&str, &str)| json!({"path": path, "contents": {"source": data_url::encode(contents.as_bytes())}});
        let files: Vec<Value> = files.iter().map(file).collect();
        let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": files}, "systemd": {"units": units}});
        Config::parse(config.to_string().as_bytes()).unwrap()
    }

    #[track_caller]
    fn check(pre_approved: &Config, full: &Config, expected: &[(&str, &str)]) {
        let found = missing_files(pre_approved, full);
        let found: Vec<(&str, &str)> = found.iter().map(|found| (found.named_by.as_str(), found.path.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn reports_kubelet_ca_missing_from_pre_approved_config() {
        let kubelet =
            format!("kind: KubeletConfiguration\nauthentication:\n  x509:\n    clientCAFile: {CA}\n  anonymous:\n    enabled: false\n");
        let full = config(&[(CONF, &kubelet), (CA, "pem"), ("/etc/other", "x")], json!([]));
        check(&config(&[(CONF, &kubelet)], json!([])), &full, &[(CONF, CA)]);
        check(&config(&[(CONF, &kubelet), (CA, "pem")], json!([])), &full, &[]);
        // The operating system may bring what neither has.
        check(
            &config(&[(CONF, &kubelet)], json!([])),
            &config(&[(CONF, &kubelet)], json!([])),
            &[],
        );
        // A file that is no kubelet's configuration may name what it likes.
        check(&config(&[("/etc/notes", CA)], json!([])), &full, &[]);
    }

    #[test]
    fn finds_files_named_in_units_and_drop_ins() {
        let units = json!([
            {"name": "kubelet.service", "contents": format!("[Service]\nExecStart=/usr/bin/kubelet --config={CONF} --v=2\n"),
                "dropins": [{"name": "10.conf", "contents": "[Service]\nEnvironmentFile=-/etc/kubernetes/kubelet-env\nExecStartPre=/usr/local/bin/ready.sh;\n"}]},
            {"name": "masked.service", "mask": true},
        ]);
        let full = config(
            &[
                (CONF, "x"),
                ("/etc/kubernetes/kubelet-env", "x"),
                ("/usr/local/bin/ready.sh", "x"),
                ("/etc/kubernetes/kubelet", "x"),
            ],
            json!([]),
        );
        let named = ["/etc/kubernetes/kubelet-env", CONF, "/usr/local/bin/ready.sh"].map(|path| ("kubelet.service", path));
        check(&config(&[], units), &full, &named);
    }

    #[test]
    fn file_size_and_number_of_findings_are_limited() {
        let large = format!("kind: KubeletConfiguration\n{} {CA}\n", "x".repeat(TEXT_LIMIT_BYTES));
        let full = config(&[(CA, "pem")], json!([]));
        check(&config(&[(CONF, &large)], json!([])), &full, &[]);
        let many: Vec<String> = (0..1000).map(|number| format!("/etc/{number}")).collect();
        let files: Vec<(&str, &str)> = many.iter().map(|path| (path.as_str(), "x")).collect();
        let commands = many.iter().map(|path| format!("ExecStartPre={path}\n")).collect::<String>();
        let units = json!([{"name": "a.service", "contents": format!("[Service]\n{commands}")}]);
        assert_eq!(missing_files(&config(&[], units), &config(&files, json!([]))).len(), NAMED_LIMIT);
    }
}
