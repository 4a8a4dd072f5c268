//! Differences between two configs.

use std::collections::{BTreeMap, BTreeSet};

use attest_ignition::machine_config::MachineConfigContent;
use attest_ignition::{Config, data_url};
use serde_json::{Map, Value};

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryDifference {
    /// Only the second config has it.
    Added,
    /// Both have it, differently.
    Changed,
    /// Only the first config has it.
    Missing,
}

/// An entry that differs between two configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDifference {
    /// Kind of the entry: `file`, `unit`, …
    pub kind: &'static str,
    /// Its path or name.
    pub name: String,
    pub change: EntryDifference,
    /// Bytes of its contents, if it has any.
    pub bytes: usize,
}

/// The named entries of a config: (kind, name) → entry.
type Entries<'c> = BTreeMap<(&'static str, &'c str), &'c Value>;

const LISTS: [([&str; 2], &str, &str); 12] = [
    (["storage", "files"], "file", "path"),
    (["storage", "directories"], "directory", "path"),
    (["storage", "links"], "link", "path"),
    (["storage", "disks"], "disk", "device"),
    (["storage", "raid"], "raid", "name"),
    (["storage", "luks"], "luks", "name"),
    (["storage", "filesystems"], "filesystem", "device"),
    (["systemd", "units"], "unit", "name"),
    (["passwd", "users"], "user", "name"),
    (["passwd", "groups"], "group", "name"),
    (["kernelArguments", "shouldExist"], "kernel argument", ""),
    (["kernelArguments", "shouldNotExist"], "kernel argument removed", ""),
];

fn entries(config: &Config) -> Entries<'_> {
    let mut entries = Entries::new();
    for (place, kind, key) in LISTS {
        for entry in config.list(place) {
            let name = if key.is_empty() {
                entry.as_str()
            } else {
                entry.get(key).and_then(Value::as_str)
            };
            entries.insert((kind, name.unwrap_or_default()), entry);
        }
    }
    // What has no name of its own: proxies, timeouts, CAs, references.
    if let Some(ignition) = config.value().get("ignition").and_then(Value::as_object) {
        for (field, value) in ignition.iter().filter(|(field, _)| *field != "version") {
            entries.insert(("ignition", field.as_str()), value);
        }
    }
    entries
}

/// Returns the differences between two configs, by kind and name.
#[must_use]
pub fn differences(first: &Config, second: &Config) -> Vec<ConfigDifference> {
    let (first, second) = (entries(first), entries(second));
    let mut differences = Vec::new();
    let mut add = |(kind, name): &(&'static str, &str), change, entry| {
        differences.push(ConfigDifference {
            kind,
            name: (*name).to_owned(),
            change,
            bytes: contents_bytes(entry),
        });
    };
    for (name, entry) in &second {
        match first.get(name) {
            None => add(name, EntryDifference::Added, entry),
            Some(old) if old != entry => add(name, EntryDifference::Changed, entry),
            Some(_) => {}
        }
    }
    for (name, entry) in first.iter().filter(|(name, _)| !second.contains_key(*name)) {
        add(name, EntryDifference::Missing, entry);
    }
    differences.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    differences
}

/// Returns the differences between two MachineConfigs, without their Ignition configs.
#[must_use]
pub(crate) fn spec_differences(first: &MachineConfigContent, second: &MachineConfigContent) -> Vec<ConfigDifference> {
    let said = |spec: &MachineConfigContent| -> BTreeSet<(&'static str, String)> {
        let named = |kind, name: &str| Some((kind, name.to_owned())).filter(|_| !name.is_empty());
        let arguments = spec.kernel_arguments.iter().map(|name| ("kernel argument", name.clone()));
        let extensions = spec.extensions.iter().map(|name| ("extension", name.clone()));
        arguments
            .chain(extensions)
            .chain(spec.fips.then(|| ("mode", "FIPS".to_owned())))
            .chain(named("kernel", spec.kernel_type.as_str()))
            .chain(named("image", &spec.os_image_url))
            .chain(named("image", &spec.base_os_extensions_container_image))
            .collect()
    };
    let (first, second) = (said(first), said(second));
    let different = |change| {
        move |(kind, name): &(&'static str, String)| ConfigDifference {
            kind,
            name: name.clone(),
            change,
            bytes: 0,
        }
    };
    let added = second.difference(&first).map(different(EntryDifference::Added));
    added
        .chain(first.difference(&second).map(different(EntryDifference::Missing)))
        .collect()
}

/// Returns an entry of the first config for which the second has nothing at that path. The first config is not a subset then.
#[must_use]
pub(crate) fn missing(first: &Config, second: &Config) -> Option<ConfigDifference> {
    let nodes = ["file", "directory", "link"];
    let arguments = ["kernel argument", "kernel argument removed"];
    let there = entries(second);
    let gone = |(kind, name): &(&'static str, &str)| {
        let family = [nodes.as_slice(), arguments.as_slice()]
            .into_iter()
            .find(|family| family.contains(kind));
        let elsewhere = family.is_some_and(|family| family.iter().any(|kind| there.contains_key(&(*kind, *name))));
        !there.contains_key(&(*kind, *name)) && !elsewhere
    };
    let ((kind, name), entry) = entries(first).into_iter().find(|(place, _)| gone(place))?;
    Some(ConfigDifference {
        kind,
        name: name.to_owned(),
        change: EntryDifference::Missing,
        bytes: contents_bytes(entry),
    })
}

fn contents_bytes(entry: &Value) -> usize {
    let decoded = |resource: &Value| {
        resource
            .get("source")
            .and_then(Value::as_str)
            .and_then(data_url::decode)
            .map_or(0, |bytes| bytes.len())
    };
    let texts = |object: &Map<String, Value>| object.get("contents").and_then(Value::as_str).map_or(0, str::len);
    let Some(object) = entry.as_object() else { return 0 };
    let list = |field: &str| object.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    object.get("contents").map_or(0, decoded)
        + texts(object)
        + list("append").iter().map(decoded).sum::<usize>()
        + list("dropins").iter().filter_map(Value::as_object).map(texts).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(mut value: Value) -> Config {
        value["ignition"]["version"] = "3.4.0".into();
        Config::from_value(value).unwrap()
    }

    #[test]
    fn names_each_difference() {
        let first = config(json!({
            "storage": {"files": [{"path": "/a", "mode": 420}, {"path": "/b"}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true}]},
        }));
        let second = config(json!({
            "ignition": {"timeouts": {"httpTotal": 3}},
            "storage": {"files": [{"path": "/a", "mode": 384}, {"path": "/c", "contents": {"source": "data:,abc"}}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true}]},
        }));
        let found: Vec<_> = differences(&first, &second)
            .into_iter()
            .map(|d| (d.kind, d.name, d.change, d.bytes))
            .collect();
        let expect = |kind, name: &str, change, bytes| (kind, name.to_owned(), change, bytes);
        assert_eq!(
            found,
            [
                expect("file", "/a", EntryDifference::Changed, 0),
                expect("file", "/b", EntryDifference::Missing, 0),
                expect("file", "/c", EntryDifference::Added, 3),
                expect("ignition", "timeouts", EntryDifference::Added, 0),
            ]
        );
        assert_eq!(missing(&first, &second).unwrap().name, "/b");
        assert_eq!(missing(&second, &second), None);
    }

    #[test]
    fn names_differences_outside_the_ignition_config() {
        let spec = |arguments: &[&str], fips| MachineConfigContent {
            kernel_arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            fips,
            ..MachineConfigContent::default()
        };
        let found = spec_differences(&spec(&["a", "b"], false), &spec(&["b", "c"], true));
        let found: Vec<_> = found.iter().map(|d| (d.kind, d.name.as_str(), d.change)).collect();
        assert_eq!(
            found,
            [
                ("kernel argument", "c", EntryDifference::Added),
                ("mode", "FIPS", EntryDifference::Added),
                ("kernel argument", "a", EntryDifference::Missing),
            ]
        );
    }

    #[test]
    fn path_of_another_type_is_not_missing() {
        let first = config(json!({"storage": {"files": [{"path": "/a"}]}}));
        let second = config(json!({"storage": {"links": [{"path": "/a", "target": "/b"}]}}));
        assert_eq!(missing(&first, &second), None);
        assert_eq!(missing(&first, &config(json!({}))).unwrap().name, "/a");
    }
}
