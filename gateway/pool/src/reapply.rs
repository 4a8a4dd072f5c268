//! Check whether a node with the pre-approved config can let its Ignition apply the full one in a second run (`attest-node config
//! apply`).

use std::collections::BTreeSet;

use attest_ignition::Config;
use serde_json::Value;

/// Maximum number of paths that a warning names.
const NAMED_LIMIT: usize = 5;

/// Returns what prevents that, as far as the configs show it. Ignition stops at an existing file unless the config says to overwrite it.
#[must_use]
pub(crate) fn obstacle(pre_approved: &Config, full: &Config) -> Option<String> {
    let before: BTreeSet<&str> = files(pre_approved).filter_map(path).collect();
    let again = files(full).filter(|file| {
        let has_contents = file.pointer("/contents/source").is_some_and(|source| !source.is_null());
        has_contents && file.get("overwrite") != Some(&Value::Bool(true))
    });
    let paths: Vec<&str> = again.filter_map(path).filter(|path| before.contains(path)).collect();
    named(&paths).map(|named| {
        format!(
            "a node that has the pre-approved config cannot apply the full one by `attest-node config apply`, because Ignition writes no file \
             twice: say \"overwrite\": true for {named}"
        )
    })
}

/// Returns the first of these paths, and how many more there are; `None` for an empty list.
pub(super) fn named(paths: &[&str]) -> Option<String> {
    let more = paths.len().saturating_sub(NAMED_LIMIT);
    let named = paths.iter().take(NAMED_LIMIT).copied().collect::<Vec<_>>().join(", ");
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!paths.is_empty()).then(|| format!("{named}{more}"))
}

fn files(config: &Config) -> impl Iterator<Item = &Value> {
    let storage = config.value().get("storage");
    storage
        .and_then(|storage| storage.get("files"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn path(file: &Value) -> Option<&str> {
    file.get("path")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(before: &Value, full: &Value, named: Option<&str>) {
        let config = |files: &Value| {
            let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": files}});
            Config::parse(config.to_string().as_bytes()).unwrap()
        };
        let found = obstacle(&config(before), &config(full));
        assert_eq!(
            found
                .as_deref()
                .and_then(|found| found.rsplit_once(" for "))
                .map(|(_, named)| named),
            named,
            "{found:?}"
        );
    }

    #[test]
    fn rewritten_file_requires_overwrite() {
        let file = |path: &str, overwrite: Option<bool>| match overwrite {
            Some(overwrite) => json!({"path": path, "overwrite": overwrite, "contents": {"source": "data:,x"}}),
            None => json!({"path": path, "contents": {"source": "data:,x"}}),
        };
        let plain = json!([file("/a", None)]);
        check(&plain, &plain, Some("/a"));
        check(&plain, &json!([file("/a", Some(false)), file("/b", None)]), Some("/a"));
        check(&plain, &json!([file("/a", Some(true)), file("/b", None)]), None);
        check(&json!([]), &plain, None);
        check(&plain, &json!([{"path": "/a", "mode": 384}]), None);
        let many: Vec<Value> = (1..=7).map(|number| file(&format!("/{number}"), None)).collect();
        check(&json!(many), &json!(many), Some("/1, /2, /3, /4, /5 and 2 more"));
    }
}
