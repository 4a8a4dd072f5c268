//! Merging of configs by Ignition's rules.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Config;
use super::schema::{Family, ListRule, rule_of};

impl Config {
    /// Returns this config with `child` merged over it, by Ignition's own rules. Objects are merged field by field, lists by the keys of
    /// their entries; other values are the child's, if it has them.
    #[must_use]
    pub fn merge(self, child: Self) -> Self {
        let mut merged = self.into_map();
        objects(&mut merged, child.into_map());
        Self::pruned(merged)
    }
}

fn objects(parent: &mut Map<String, Value>, child: Map<String, Value>) {
    for (field, list) in &mut *parent {
        if let Value::Array(entries) = list
            && let ListRule::ByKey(key, family) = rule_of(field, entries)
        {
            // What the child has under another kind (a link where there was a file) is the child's alone.
            let elsewhere = elsewhere(&child, family, field);
            if !elsewhere.is_empty() {
                entries.retain(|entry| !elsewhere.contains(&key.key(entry)));
            }
        }
    }
    for (field, new) in child {
        match (parent.get_mut(&field), new) {
            (Some(Value::Object(old)), Value::Object(new)) => objects(old, new),
            (Some(Value::Array(old)), Value::Array(new)) => lists(&field, old, new),
            (_, new) => {
                parent.insert(field, new);
            }
        }
    }
    // Both were without empty fields; only what was taken out of lists can have made some.
    parent.retain(|_, value| match value {
        Value::Array(entries) => !entries.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
}

/// Returns the keys that the child has in the family's other lists.
fn elsewhere<'c>(child: &'c Map<String, Value>, family: Family, list: &str) -> HashSet<Cow<'c, str>> {
    let mut keys = HashSet::new();
    if family == Family::Alone {
        return keys;
    }
    for (field, value) in child.iter().filter(|(field, _)| *field != list) {
        if let Value::Array(entries) = value
            && let ListRule::ByKey(key, other) = rule_of(field, entries)
            && other == family
        {
            keys.extend(entries.iter().map(|entry| key.key(entry)));
        }
    }
    keys
}

/// Merges in time proportional to the child's entries, plus one lookup per key of the parent. A pool has a thousand such merges in a row.
fn lists(field: &str, parent: &mut Vec<Value>, child: Vec<Value>) {
    let ListRule::ByKey(key, _) = rule_of(field, if child.is_empty() { &*parent } else { &child }) else {
        return parent.extend(child);
    };
    let places: HashMap<String, usize> = child
        .iter()
        .enumerate()
        .map(|(place, entry)| (key.key(entry).into_owned(), place))
        .collect();
    let mut child: Vec<Option<Value>> = child.into_iter().map(Some).collect();
    parent.retain_mut(|old| {
        let new = places
            .get(&*key.key(old))
            .and_then(|place| child.get_mut(*place))
            .and_then(Option::take);
        match (old, new) {
            (_, None) => true,
            // A header without a value takes the parent's away.
            (_, Some(Value::Object(new))) if field == "httpHeaders" && !new.contains_key("value") => false,
            (Value::Object(old), Some(Value::Object(new))) => {
                objects(old, new);
                true
            }
            (old, Some(new)) => {
                *old = new;
                true
            }
        }
    });
    parent.extend(child.into_iter().flatten());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(parent: Value, child: Value, expected: Value) {
        let config = |mut value: Value| {
            value["ignition"]["version"] = "3.4.0".into();
            Config::from_value(value).unwrap()
        };
        assert_eq!(config(parent).merge(config(child)).value(), config(expected).value());
    }

    fn files(files: Value) -> Value {
        json!({"storage": {"files": files}})
    }

    #[test]
    fn the_child_wins_field_by_field() {
        let (a, b) = (json!({"path": "/a", "mode": 420}), json!({"path": "/b"}));
        check(files(json!([a, b])), files(json!([])), files(json!([a, b])));
        check(files(json!([a])), files(json!([b])), files(json!([a, b])));
        check(
            files(json!([b, a])),
            files(json!([{"path": "/a", "mode": 384}])),
            files(json!([b, {"path": "/a", "mode": 384}])),
        );
        check(
            files(json!([{"path": "/a", "mode": 420, "contents": {"source": "data:,a", "compression": "gzip"}}])),
            files(json!([{"path": "/a", "contents": {"source": "data:,b"}}])),
            files(json!([{"path": "/a", "mode": 420, "contents": {"source": "data:,b", "compression": "gzip"}}])),
        );
        check(
            files(json!([{"path": "/a", "append": [{"source": "data:,1"}]}])),
            files(json!([{"path": "/a", "append": [{"source": "data:,1"}]}])),
            files(json!([{"path": "/a", "append": [{"source": "data:,1"}, {"source": "data:,1"}]}])),
        );
    }

    #[test]
    fn path_or_argument_of_child_replaces_any_kind() {
        check(
            json!({"storage": {"files": [{"path": "/a"}, {"path": "/b"}]}}),
            json!({"storage": {"links": [{"path": "/a", "target": "/c"}]}}),
            json!({"storage": {"files": [{"path": "/b"}], "links": [{"path": "/a", "target": "/c"}]}}),
        );
        check(
            json!({"kernelArguments": {"shouldExist": ["a", "b"]}}),
            json!({"kernelArguments": {"shouldNotExist": ["a"]}}),
            json!({"kernelArguments": {"shouldExist": ["b"], "shouldNotExist": ["a"]}}),
        );
        check(
            json!({"kernelArguments": {"shouldExist": ["a"]}}),
            json!({"kernelArguments": {"shouldNotExist": ["a"]}}),
            json!({"kernelArguments": {"shouldNotExist": ["a"]}}),
        );
    }

    #[test]
    fn header_without_value_removes_the_parent_header() {
        let with =
            |headers: Value| json!({"storage": {"files": [{"path": "/a", "contents": {"source": "https://a/", "httpHeaders": headers}}]}});
        check(
            with(json!([{"name": "a", "value": "1"}, {"name": "b", "value": "2"}])),
            with(json!([{"name": "a"}])),
            with(json!([{"name": "b", "value": "2"}])),
        );
    }

    #[test]
    fn merges_units_users_and_partitions_by_key() {
        check(
            json!({"systemd": {"units": [{"name": "a.service", "enabled": true, "dropins": [{"name": "1.conf", "contents": "x"}]}]}}),
            json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "2.conf", "contents": "y"}]}]}}),
            json!({"systemd": {"units": [{"name": "a.service", "enabled": true,
                "dropins": [{"name": "1.conf", "contents": "x"}, {"name": "2.conf", "contents": "y"}]}]}}),
        );
        check(
            json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a", "b"], "groups": ["w"]}]}}),
            json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["b", "c"], "groups": ["w"]}]}}),
            json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a", "b", "c"], "groups": ["w"]}]}}),
        );
        check(
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, "label": "a"}, {"label": "b"}]}]}}),
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, "sizeMiB": 5}, {"label": "b", "sizeMiB": 6}]}]}}),
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, "label": "a", "sizeMiB": 5}, {"label": "b", "sizeMiB": 6}]}]}}),
        );
    }
}
