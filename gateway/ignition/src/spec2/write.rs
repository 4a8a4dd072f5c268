//! Translation of spec 3 to spec 2.2, by the rules of the converter that the Machine Config Operator uses. Values that the converter drops
//! silently are refused.

use serde_json::{Map, Value, json};

use super::{ROOT, VERSION, schema};
use crate::SpecVersion;
use crate::features::Inexpressible;

type OutputFields = Map<String, Value>;

/// Translates a config that uses nothing newer than spec 3.0. Leaves out values that are empty, false or zero, like Go's encoder.
pub(crate) fn from_spec3(config: OutputFields) -> Result<OutputFields, Inexpressible> {
    let mut config = Value::Object(config);
    let filesystems = Filesystems::from_config(&config)?;
    let mut ignition = json!({"version": VERSION});
    let references: [(&str, &[&str]); 3] = [
        ("/ignition/config/merge", &["config", "append"]),
        ("/ignition/config/replace", &["config", "replace"]),
        (
            "/ignition/security/tls/certificateAuthorities",
            &["security", "tls", "certificateAuthorities"],
        ),
    ];
    for (from, to) in references {
        if let Some(found) = config.pointer(from) {
            put(&mut ignition, to, each(found, reference));
        }
    }
    if let Some(timeouts) = config.pointer("/ignition/timeouts") {
        put(&mut ignition, &["timeouts"], timeouts.clone());
    }

    let mut storage = OutputFields::new();
    for list in ["disks", "raid"] {
        if let Some(entries) = take(&mut config, "storage", list) {
            storage.insert(list.to_owned(), entries);
        }
    }
    disks(storage.get_mut("disks"))?;
    if !filesystems.list.is_empty() {
        storage.insert("filesystems".to_owned(), filesystems.list.clone().into());
    }
    for list in ["directories", "links", "files"] {
        let Some(Value::Array(entries)) = take(&mut config, "storage", list) else {
            continue;
        };
        let mut translated = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let node = filesystems.node(entry);
            if list == "files" {
                translated.extend(file(node, &format!("storage.files.{index}"))?);
            } else {
                translated.push(Value::Object(node));
            }
        }
        storage.insert(list.to_owned(), translated.into());
    }
    let mut translated = OutputFields::new();
    for (section, mut value) in [
        ("ignition", ignition),
        ("passwd", config.get_mut("passwd").map_or(Value::Null, Value::take)),
        ("storage", storage.into()),
        ("systemd", config.get_mut("systemd").map_or(Value::Null, Value::take)),
    ] {
        omit_zeroes(&mut value);
        if !value.is_null() {
            translated.insert(section.to_owned(), value);
        }
    }
    check(translated)
}

/// Checks the result against the schema, to catch errors of the translation.
fn check(translated: OutputFields) -> Result<OutputFields, Inexpressible> {
    let mut config = Value::Object(translated);
    schema::CONFIG
        .check(&mut config, "")
        .map_err(|error| refuse(error.place, &error.problem))?;
    match config {
        Value::Object(config) => Ok(config),
        _ => Ok(OutputFields::new()),
    }
}

fn refuse(place: impl Into<String>, problem: &str) -> Inexpressible {
    Inexpressible {
        version: SpecVersion::V2_2,
        place: place.into(),
        problem: problem.to_owned(),
    }
}

fn take(config: &mut Value, section: &str, list: &str) -> Option<Value> {
    config.get_mut(section)?.get_mut(list).map(Value::take)
}

fn put(value: &mut Value, steps: &[&str], new: Value) {
    match (steps, value) {
        ([last], Value::Object(fields)) => {
            fields.insert((*last).to_owned(), new);
        }
        ([step, rest @ ..], Value::Object(fields)) => put(fields.entry(*step).or_insert_with(|| json!({})), rest, new),
        _ => {}
    }
}

fn each(value: &Value, translate: fn(&Value) -> Value) -> Value {
    match value {
        Value::Array(entries) => entries.iter().map(translate).collect(),
        one => translate(one),
    }
}

fn reference(resource: &Value) -> Value {
    let mut reference = json!({"source": resource.get("source").cloned().unwrap_or_default(), "verification": {}});
    if let Some(hash) = resource.pointer("/verification/hash") {
        put(&mut reference, &["verification", "hash"], hash.clone());
    }
    reference
}

/// Partitions of spec 2.2 are in sectors, and cannot be deleted.
fn disks(disks: Option<&mut Value>) -> Result<(), Inexpressible> {
    for (disk_index, disk) in disks.and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        let partitions = disk.get_mut("partitions").and_then(Value::as_array_mut);
        for (index, partition) in partitions.into_iter().flatten().filter_map(Value::as_object_mut).enumerate() {
            let place = |field: &str| format!("storage.disks.{disk_index}.partitions.{index}.{field}");
            for field in ["sizeMiB", "startMiB"] {
                if partition.contains_key(field) {
                    return Err(refuse(place(field), "spec 2 has partitions in sectors, whose size is unknown"));
                }
            }
            for (field, default) in [("shouldExist", true), ("wipePartitionEntry", false)] {
                if partition.remove(field).is_some_and(|flag| flag != Value::Bool(default)) {
                    return Err(refuse(place(field), "spec 2 has no such key"));
                }
            }
        }
    }
    Ok(())
}

/// Filesystems of a config: they have names in spec 2.2, and their files are relative to their own roots.
struct Filesystems {
    list: Vec<Value>,
    /// Mount points in spec 3, which are also their names.
    paths: Vec<String>,
}

impl Filesystems {
    fn from_config(config: &Value) -> Result<Self, Inexpressible> {
        let (mut list, mut paths) = (Vec::new(), Vec::new());
        let filesystems = config.pointer("/storage/filesystems").and_then(Value::as_array);
        for (index, filesystem) in filesystems.into_iter().flatten().enumerate() {
            let place = |field: &str| format!("storage.filesystems.{index}.{field}");
            let mut mount = filesystem.as_object().cloned().unwrap_or_default();
            let path = mount
                .remove("path")
                .and_then(|path| path.as_str().map(str::to_owned))
                .filter(|path| !path.is_empty());
            if path.as_deref() == Some("/") {
                return Err(refuse(place("path"), "spec 2 cannot define the node's own root"));
            }
            if mount.get("format").and_then(Value::as_str).is_none_or(str::is_empty) {
                return Err(refuse(place("format"), "spec 2 requires a format of a filesystem"));
            }
            if paths.iter().any(|other| Some(other) == path.as_ref()) {
                return Err(refuse(place("path"), "spec 2 cannot have two filesystems with one path"));
            }
            // Those that are nowhere are numbered.
            let name = path.clone().unwrap_or_else(|| index.to_string());
            list.push(json!({"name": name, "mount": mount}));
            paths.extend(path);
        }
        Ok(Self { list, paths })
    }

    /// Returns the node, relative to the innermost filesystem that contains it.
    fn node(&self, node: Value) -> OutputFields {
        let mut node = match node {
            Value::Object(node) => node,
            _ => OutputFields::new(),
        };
        let path = node.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
        let inside = |filesystem: &String| -> Option<String> {
            let rest = path.strip_prefix(filesystem.as_str())?;
            match rest {
                "" => Some("/".to_owned()),
                rest => rest.starts_with('/').then(|| rest.to_owned()),
            }
        };
        let innermost = self
            .paths
            .iter()
            .filter_map(|filesystem| Some((filesystem, inside(filesystem)?)))
            .max_by_key(|(filesystem, _)| filesystem.len());
        let (filesystem, path) = match innermost {
            Some((filesystem, path)) => (filesystem.clone(), path),
            None => (ROOT.to_owned(), path.clone()),
        };
        node.insert("filesystem".to_owned(), filesystem.into());
        node.insert("path".to_owned(), path.into());
        node
    }
}

/// Returns the file, then one file for each content to append.
fn file(mut file: OutputFields, place: &str) -> Result<Vec<Value>, Inexpressible> {
    let (contents, append) = (file.remove("contents"), file.remove("append"));
    let source = contents.as_ref().and_then(|contents| contents.get("source"));
    // The default there is to overwrite.
    file.entry("overwrite").or_insert(Value::Bool(false));
    let mut files = Vec::new();
    if source.is_some() {
        let mut whole = file.clone();
        whole.insert("contents".to_owned(), contents_of(contents.as_ref()));
        files.push(Value::Object(whole));
    }
    for part in append.iter().filter_map(Value::as_array).flatten() {
        let mut appended = file.clone();
        appended.insert("overwrite".to_owned(), Value::Bool(false));
        appended.insert("append".to_owned(), Value::Bool(true));
        appended.insert("contents".to_owned(), contents_of(Some(part)));
        files.push(Value::Object(appended));
    }
    if files.is_empty() {
        return Err(refuse(place, "spec 2 requires contents of a file"));
    }
    Ok(files)
}

fn contents_of(resource: Option<&Value>) -> Value {
    let mut contents = reference(resource.unwrap_or(&Value::Null));
    if let Some(compression) = resource.and_then(|resource| resource.get("compression")) {
        put(&mut contents, &["compression"], compression.clone());
    }
    contents
}

/// Removes the values that Go's `omitempty` leaves out: zero values of fields that are not pointers. Pointers are `overwrite`, `enabled`,
/// ids, modes, hashes and a user's password.
fn omit_zeroes(value: &mut Value) {
    const POINTERS: [&str; 11] = [
        "overwrite",
        "enabled",
        "id",
        "uid",
        "gid",
        "mode",
        "hash",
        "passwordHash",
        "uuid",
        "httpTotal",
        "httpResponseHeaders",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                omit_zeroes(value);
                POINTERS.contains(&name.as_str())
                    || match value {
                        Value::Null | Value::Bool(false) => false,
                        Value::String(text) => !text.is_empty(),
                        Value::Number(number) => number.as_i64() != Some(0),
                        Value::Array(entries) => !entries.is_empty(),
                        Value::Object(fields) => !fields.is_empty() || name == "verification" || name == "contents",
                        Value::Bool(true) => true,
                    }
            });
        }
        Value::Array(entries) => entries.iter_mut().for_each(omit_zeroes),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn translate(mut config: Value) -> Result<Value, Inexpressible> {
        config["ignition"]["version"] = "3.6.0".into();
        let bytes = Config::from_value(config).unwrap().express(SpecVersion::V2_2)?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    #[track_caller]
    fn check(config: Value, mut expected: Value) {
        expected["ignition"]["version"] = "2.2.0".into();
        assert_eq!(translate(config).unwrap(), expected);
    }

    #[track_caller]
    fn refused(config: Value, place: &str) {
        assert_eq!(translate(config).unwrap_err().place, place);
    }

    #[test]
    fn writes_files_with_filesystem_and_overwrite() {
        let files = |files: Value| json!({"storage": {"files": files}});
        check(
            files(json!([{"path": "/a", "mode": 420, "contents": {"source": "data:,a"}}])),
            files(json!([{"filesystem": "root", "path": "/a", "mode": 420, "overwrite": false,
                "contents": {"source": "data:,a", "verification": {}}}])),
        );
        check(
            files(
                json!([{"path": "/a", "overwrite": true, "contents": {"source": "", "compression": "gzip"}, "append": [{"source": "data:,b"}]}]),
            ),
            files(json!([
                {"filesystem": "root", "path": "/a", "overwrite": true, "contents": {"compression": "gzip", "verification": {}}},
                {"filesystem": "root", "path": "/a", "overwrite": false, "append": true, "contents": {"source": "data:,b", "verification": {}}},
            ])),
        );
        // Without contents it is there and empty, unless it is there already: no words for that.
        refused(files(json!([{"path": "/a"}])), "storage.files.0");
        refused(
            files(json!([{"path": "/a", "mode": 0o1644, "contents": {"source": "data:,"}}])),
            "storage.files.0.mode",
        );
    }

    #[test]
    fn filesystems_are_written_with_names() {
        let filesystem = |path: &str| json!({"device": "/d", "format": "xfs", "path": path, "wipeFilesystem": true});
        check(
            json!({"storage": {
                "filesystems": [filesystem("/var"), {"device": "/e", "format": "ext4", "label": "l", "options": ["o"]}],
                "directories": [{"path": "/var"}, {"path": "/var/a"}, {"path": "/variable"}]}}),
            json!({"storage": {
                "filesystems": [
                    {"name": "/var", "mount": {"device": "/d", "format": "xfs", "wipeFilesystem": true}},
                    {"name": "1", "mount": {"device": "/e", "format": "ext4", "label": "l", "options": ["o"]}}],
                "directories": [
                    {"filesystem": "/var", "path": "/"},
                    {"filesystem": "/var", "path": "/a"},
                    {"filesystem": "root", "path": "/variable"}]}}),
        );
        refused(json!({"storage": {"filesystems": [filesystem("/")]}}), "storage.filesystems.0.path");
        refused(
            json!({"storage": {"filesystems": [{"device": "/d"}]}}),
            "storage.filesystems.0.format",
        );
    }

    #[test]
    fn rejects_features_missing_in_spec_2() {
        refused(json!({"storage": {"luks": [{"name": "a", "device": "/d"}]}}), "storage.luks");
        refused(json!({"kernelArguments": {"shouldExist": ["a"]}}), "kernelArguments");
        refused(json!({"ignition": {"proxy": {"noProxy": ["a"]}}}), "ignition.proxy");
        for (field, value) in [
            ("sizeMiB", json!(0)),
            ("startMiB", json!(1)),
            ("resize", json!(true)),
            ("shouldExist", json!(false)),
            ("wipePartitionEntry", json!(true)),
        ] {
            let disks = json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, field: value}]}]}});
            refused(disks, &format!("storage.disks.0.partitions.0.{field}"));
        }
        let disk = |partition: Value| json!({"storage": {"disks": [{"device": "/d", "partitions": [partition]}]}});
        check(
            disk(json!({"number": 1, "shouldExist": true, "wipePartitionEntry": false, "resize": false})),
            disk(json!({"number": 1})),
        );
    }
}
