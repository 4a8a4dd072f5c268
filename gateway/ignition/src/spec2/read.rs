//! Spec 2.2 to spec 3, by the rules of the Machine Config Operator.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{NotTranslatable, ROOT, schema};

type InputFields = Map<String, Value>;

/// The user that nodes of OpenShift have; others are refused.
const USER: &str = "core";

/// Returns the fields in spec 3, neither pruned nor validated.
pub(crate) fn to_spec3(mut value: Value) -> Result<InputFields, NotTranslatable> {
    schema::CONFIG.check(&mut value, "")?;
    let Value::Object(mut config) = value else {
        return Err(refuse("$", "an object is expected"));
    };
    refuse_what_is_gone(&config)?;
    config.remove("networkd");
    if let Some(Value::Object(ignition)) = config.get_mut("ignition")
        && let Some(Value::Object(references)) = ignition.get_mut("config")
        && let Some(append) = references.remove("append")
    {
        references.insert("merge".to_owned(), append);
    }
    if let Some(Value::Object(storage)) = config.get_mut("storage") {
        storage.remove("filesystems");
        for list in ["directories", "links", "files"] {
            let mut nodes = take_list(storage, list);
            for (index, node) in nodes.iter_mut().enumerate() {
                in_root(node, &format!("storage.{list}.{index}"))?;
            }
            if list == "files" {
                nodes = files(nodes);
            }
            storage.insert(list.to_owned(), objects(nodes));
        }
        let partitions = storage.get_mut("disks").and_then(Value::as_array_mut).into_iter().flatten();
        for partition in partitions
            .filter_map(|disk| disk.get_mut("partitions")?.as_array_mut())
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            partition.remove("size");
            partition.remove("start");
        }
    }
    if let Some(Value::Object(systemd)) = config.get_mut("systemd") {
        let units = units(take_list(systemd, "units"));
        systemd.insert("units".to_owned(), objects(units));
    }
    if let Some(Value::Object(passwd)) = config.get_mut("passwd") {
        let users = users(take_list(passwd, "users"))?;
        passwd.insert("users".to_owned(), objects(users));
    }
    for (_, section) in &mut config {
        omit_zeroes(section);
    }
    Ok(config)
}

fn refuse(place: impl Into<String>, problem: &str) -> NotTranslatable {
    NotTranslatable {
        place: place.into(),
        problem: problem.to_owned(),
    }
}

/// Refuses features that spec 3 does not have.
fn refuse_what_is_gone(config: &InputFields) -> Result<(), NotTranslatable> {
    let list = |section: &str, list: &str| {
        let entries = config.get(section).and_then(|section| section.get(list)?.as_array());
        entries.into_iter().flatten().enumerate()
    };
    if list("networkd", "units").next().is_some() {
        return Err(refuse("networkd.units", "spec 3 has no networkd: use files instead"));
    }
    for (index, user) in list("passwd", "users") {
        if user.get("create").is_some() {
            return Err(refuse(
                format!("passwd.users.{index}.create"),
                "this is deprecated: put its fields into the user",
            ));
        }
    }
    for (index, filesystem) in list("storage", "filesystems") {
        // The node's own root needs no definition: where it is mounted while Ignition runs is no news.
        let is_root = filesystem.get("name").and_then(Value::as_str) == Some(ROOT)
            && filesystem.get("mount").is_none()
            && matches!(filesystem.get("path").and_then(Value::as_str), Some("/" | "/sysroot"));
        if !is_root {
            return Err(refuse(
                format!("storage.filesystems.{index}"),
                "only root can be converted to spec 3: other filesystems have no mount point",
            ));
        }
    }
    for (disk_index, disk) in list("storage", "disks") {
        let partitions = disk.get("partitions").and_then(Value::as_array);
        for (index, partition) in partitions.into_iter().flatten().enumerate() {
            for field in ["size", "start"] {
                if partition.get(field).and_then(Value::as_i64).is_some_and(|sectors| sectors != 0) {
                    return Err(refuse(
                        format!("storage.disks.{disk_index}.partitions.{index}.{field}"),
                        "this is in sectors, whose size is unknown",
                    ));
                }
            }
        }
    }
    Ok(())
}

fn take_list(section: &mut InputFields, list: &str) -> Vec<InputFields> {
    match section.remove(list) {
        Some(Value::Array(entries)) => entries
            .into_iter()
            .filter_map(|entry| match entry {
                Value::Object(fields) => Some(fields),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn objects(entries: Vec<InputFields>) -> Value {
    entries.into_iter().map(Value::Object).collect()
}

fn text<'a>(fields: &'a InputFields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Normalizes a node's path, and removes the name of the only filesystem. Spec 2 accepts paths that are not as short as spec 3 requires.
fn in_root(node: &mut InputFields, place: &str) -> Result<(), NotTranslatable> {
    if text(node, "filesystem") != ROOT {
        return Err(refuse(format!("{place}.filesystem"), "root is expected"));
    }
    node.remove("filesystem");
    let path = text(node, "path");
    if !path.starts_with('/') {
        return Err(refuse(format!("{place}.path"), "an absolute path is expected"));
    }
    let path = crate::validate::cleaned(path);
    node.insert("path".to_owned(), path.into());
    Ok(())
}

/// Merges files with the same path: the last one stays, with everything appended to it afterwards. (The Machine Config Operator would keep
/// only the last thing appended.)
fn files(entries: Vec<InputFields>) -> Vec<InputFields> {
    let mut files: Vec<Option<InputFields>> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for mut file in entries {
        let path = text(&file, "path").to_owned();
        let appends = file.remove("append") == Some(Value::Bool(true));
        let mut contents = match file.remove("contents") {
            Some(Value::Object(contents)) => contents,
            _ => InputFields::new(),
        };
        contents.entry("source").or_insert_with(|| "".into());
        let earlier = places.get(&path).and_then(|place| files.get_mut(*place)).and_then(Option::take);
        if appends {
            file.remove("overwrite");
            let mut whole = earlier.unwrap_or_default();
            whole.entry("overwrite").or_insert(Value::Bool(false));
            whole.extend(file);
            if let Some(parts) = whole.entry("append").or_insert_with(|| Value::Array(Vec::new())).as_array_mut() {
                parts.push(Value::Object(contents));
            }
            file = whole;
        } else {
            // Spec 3's default is the other.
            file.entry("overwrite").or_insert(Value::Bool(true));
            file.insert("contents".to_owned(), Value::Object(contents));
        }
        places.insert(path, files.len());
        files.push(Some(file));
    }
    files.into_iter().flatten().collect()
}

/// Merges units with the same name. The last one stays, with the drop-ins of all; of drop-ins with the same name that of the last unit
/// stays.
fn units(entries: Vec<InputFields>) -> Vec<InputFields> {
    let mut units: Vec<(InputFields, Vec<InputFields>)> = Vec::new();
    // The place of a unit, and the names of the drop-ins that it has.
    let mut known: HashMap<String, (usize, HashSet<String>)> = HashMap::new();
    // From the last to the first.
    for mut unit in entries.into_iter().rev() {
        // `enabled` replaced `enable`, which could only enable.
        if unit.remove("enable") == Some(Value::Bool(true)) {
            unit.entry("enabled").or_insert(Value::Bool(true));
        }
        let mut dropins = take_list(&mut unit, "dropins");
        let (place, names) = known
            .entry(text(&unit, "name").to_owned())
            .or_insert_with(|| (units.len(), HashSet::new()));
        dropins.retain(|dropin| !names.contains(text(dropin, "name")));
        names.extend(dropins.iter().map(|dropin| text(dropin, "name").to_owned()));
        match units.get_mut(*place) {
            Some((_, later)) => later.append(&mut dropins),
            None => units.push((unit, dropins)),
        }
    }
    let with_dropins = |(mut unit, dropins): (InputFields, Vec<InputFields>)| {
        unit.insert("dropins".to_owned(), objects(dropins));
        unit
    };
    units.into_iter().rev().map(with_dropins).collect()
}

/// Merges users; only `core` is allowed. The last one stays, with the keys of all, its own first.
fn users(entries: Vec<InputFields>) -> Result<Vec<InputFields>, NotTranslatable> {
    for (index, user) in entries.iter().enumerate() {
        if text(user, "name") != USER {
            return Err(refuse(format!("passwd.users.{index}.name"), "only core is expected"));
        }
    }
    let mut keys = Vec::new();
    let mut known = HashSet::new();
    let mut last = None;
    for mut user in entries.into_iter().rev() {
        if let Some(Value::Array(more)) = user.remove("sshAuthorizedKeys") {
            keys.extend(more.into_iter().filter(|key| known.insert(key.clone())));
        }
        last.get_or_insert(user);
    }
    if let Some(user) = &mut last {
        user.insert("sshAuthorizedKeys".to_owned(), keys.into());
    }
    Ok(last.into_iter().collect())
}

/// Removes values that are empty, false or zero: in spec 2 they are unset, except for a few fields.
fn omit_zeroes(value: &mut Value) {
    const SET: [&str; 11] = [
        "source",
        "overwrite",
        "enabled",
        "id",
        "uid",
        "gid",
        "mode",
        "hash",
        "passwordHash",
        "httpTotal",
        "httpResponseHeaders",
    ];
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            omit_zeroes(value);
            let zero = match value {
                Value::Bool(flag) => !*flag,
                Value::String(text) => text.is_empty(),
                Value::Number(number) => number.as_i64() == Some(0),
                _ => false,
            };
            !zero || SET.contains(&name.as_str())
        }),
        Value::Array(entries) => entries.iter_mut().for_each(omit_zeroes),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Config, NotAConfig};

    fn read(mut config: Value) -> Result<Config, NotAConfig> {
        config["ignition"]["version"] = "2.2.0".into();
        Config::parse(config.to_string().as_bytes())
    }

    #[track_caller]
    fn check(config: Value, mut expected: Value) {
        expected["ignition"]["version"] = "3.6.0".into();
        let read = read(config).unwrap();
        assert_eq!(Value::Object(read.value().clone()), expected);
        // It has the shape of spec 3 too.
        assert_eq!(Config::from_value(expected).unwrap(), read);
    }

    #[track_caller]
    fn refused(config: Value, place: &str) {
        match read(config).unwrap_err() {
            NotAConfig::Spec2(error) => assert_eq!(error.place, place, "{error}"),
            other => panic!("{other}"),
        }
    }

    fn files(files: Value) -> Value {
        json!({"storage": {"files": files}})
    }

    #[test]
    fn rejects_unknown_keys_and_wrong_types() {
        check(json!({}), json!({}));
        check(
            json!({"networkd": {}, "passwd": {}, "storage": {"files": null}, "systemd": {"units": []}}),
            json!({}),
        );
        refused(json!({"sotrage": {}}), "sotrage");
        refused(
            files(json!([{"path": "/a", "filesystem": "root", "usre": {}}])),
            "storage.files.0.usre",
        );
        refused(files(json!({})), "storage.files");
        refused(files(json!(["a"])), "storage.files.0");
        refused(files(json!([{"path": 1}])), "storage.files.0.path");
        refused(files(json!([{"mode": "0644"}])), "storage.files.0.mode");
        refused(files(json!([{"mode": 1.5}])), "storage.files.0.mode");
        refused(files(json!([{"append": [{"source": "data:,"}]}])), "storage.files.0.append");
        // A key of spec 3.
        refused(json!({"ignition": {"config": {"merge": []}}}), "ignition.config.merge");
        let error = read(files(json!([{"mode": "hunter2"}]))).unwrap_err().to_string();
        assert_eq!(error, "spec 2: storage.files.0.mode: a whole number is expected");
    }

    #[test]
    fn rejects_features_removed_since_spec_2() {
        refused(json!({"networkd": {"units": [{"name": "a.network"}]}}), "networkd.units");
        refused(
            json!({"passwd": {"users": [{"name": "core", "create": {}}]}}),
            "passwd.users.0.create",
        );
        refused(
            json!({"passwd": {"users": [{"name": "core"}, {"name": "root"}]}}),
            "passwd.users.1.name",
        );
        refused(files(json!([{"path": "/a"}])), "storage.files.0.filesystem");
        refused(files(json!([{"path": "/a", "filesystem": "var"}])), "storage.files.0.filesystem");
        refused(files(json!([{"path": "a", "filesystem": "root"}])), "storage.files.0.path");
        let filesystem = |filesystem: Value| json!({"storage": {"filesystems": [filesystem]}});
        check(filesystem(json!({"name": "root", "path": "/sysroot"})), json!({}));
        let mount = json!({"device": "/d", "format": "xfs"});
        refused(filesystem(json!({"name": "var", "mount": mount})), "storage.filesystems.0");
        refused(filesystem(json!({"name": "root", "mount": mount})), "storage.filesystems.0");
        let disk = |partition: Value| json!({"storage": {"disks": [{"device": "/d", "partitions": [partition]}]}});
        check(
            disk(json!({"number": 1, "size": 0, "start": 0, "label": ""})),
            disk(json!({"number": 1})),
        );
        refused(disk(json!({"number": 1, "size": 2048})), "storage.disks.0.partitions.0.size");
    }

    #[test]
    fn files_overwrite_by_default() {
        let file = |more: Value| {
            let mut file = json!({"filesystem": "root", "path": "/a//b/", "contents": {"source": "data:,", "verification": {}}});
            file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            files(json!([file]))
        };
        let contents = json!({"source": "data:,"});
        check(
            file(json!({})),
            files(json!([{"path": "/a/b", "overwrite": true, "contents": contents}])),
        );
        check(
            file(json!({"overwrite": false, "mode": 420})),
            files(json!([{"path": "/a/b", "overwrite": false, "mode": 420, "contents": contents}])),
        );
        check(
            file(json!({"append": true})),
            files(json!([{"path": "/a/b", "overwrite": false, "append": [contents]}])),
        );
        check(
            file(json!({"contents": {}})),
            files(json!([{"path": "/a/b", "overwrite": true, "contents": {"source": ""}}])),
        );
    }

    #[test]
    fn last_duplicate_file_wins() {
        let file =
            |source: &str, append: bool| json!({"filesystem": "root", "path": "/a", "append": append, "contents": {"source": source}});
        check(
            files(json!([
                file("data:,1", false),
                file("data:,2", true),
                file("data:,3", false),
                file("data:,4", true),
                file("data:,5", true)
            ])),
            files(json!([{"path": "/a", "overwrite": true, "contents": {"source": "data:,3"},
                "append": [{"source": "data:,4"}, {"source": "data:,5"}]}])),
        );
        let dropin = |name: &str, contents: &str| json!({"name": name, "contents": contents});
        let unit = |more: Value| {
            let mut unit = json!({"name": "a.service"});
            unit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            unit
        };
        check(
            json!({"systemd": {"units": [
                unit(json!({"mask": true, "dropins": [dropin("1.conf", "[A]"), dropin("2.conf", "[A]")]})),
                {"name": "b.service"},
                unit(json!({"enable": true, "dropins": [dropin("2.conf", "[B]"), dropin("3.conf", "[B]")]}))]}}),
            json!({"systemd": {"units": [
                {"name": "b.service"},
                unit(json!({"enabled": true, "dropins": [dropin("2.conf", "[B]"), dropin("3.conf", "[B]"), dropin("1.conf", "[A]")]}))]}}),
        );
        check(
            json!({"passwd": {"users": [
                {"name": "core", "sshAuthorizedKeys": ["a", "b"], "shell": "/a"},
                {"name": "core", "sshAuthorizedKeys": ["b", "c", "c"]}]}}),
            json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["b", "c", "a"]}]}}),
        );
    }

    #[test]
    fn enabled_overrides_enable() {
        let check = |unit: Value, expected: Option<bool>| {
            let unit = json!({"systemd": {"units": [unit]}});
            let config = read(unit).unwrap();
            assert_eq!(
                config.list(["systemd", "units"])[0].get("enabled").and_then(Value::as_bool),
                expected
            );
        };
        check(json!({"name": "a.service", "enable": true}), Some(true));
        check(json!({"name": "a.service", "enable": false}), None);
        check(json!({"name": "a.service", "enable": true, "enabled": false}), Some(false));
        check(json!({"name": "a.service", "enabled": true}), Some(true));
    }
}
