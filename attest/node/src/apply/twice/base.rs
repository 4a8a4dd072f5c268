//! Base configs of the initramfs, which Ignition merges below this one ([`crate::ignition::base`]). Ignition applies them again, too.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::{NotRepeatable, Refusals, is_true, list, text};
use crate::ignition::base::BaseConfig;

/// Lists whose members are merged by a name.
const NAMED: [(&str, &str); 6] = [
    ("/storage/files", "path"),
    ("/storage/directories", "path"),
    ("/storage/links", "path"),
    ("/passwd/users", "name"),
    ("/passwd/groups", "name"),
    ("/systemd/units", "name"),
];
/// Lists of nodes. The last entry for a path counts, and replaces the entries for it in all three lists.
const NODES: [&str; 3] = ["/storage/files", "/storage/directories", "/storage/links"];

/// Copies files with contents from base configs into the config, with `overwrite`: in a base config without it they can be written only
/// once. Ignition's validation requires contents together with `overwrite`; all else is merged from the base config.
pub fn take_over(config: &mut Value, base: &[BaseConfig]) {
    for base in base.iter().filter_map(parsed) {
        for (_, file) in list(&base, "/storage/files") {
            let Some(path) = text(file, "path") else { continue };
            let contents = file
                .get("contents")
                .filter(|contents| contents.get("source").is_some_and(Value::is_string));
            let Some(contents) = contents else { continue };
            if is_true(file, "overwrite") || NODES.iter().any(|nodes| named(config, nodes, "path", path).is_some()) {
                continue;
            }
            let file = json!({"path": path, "overwrite": true, "contents": contents});
            if let Some(files) = files(config) {
                files.push(file);
            }
        }
    }
}

/// Applies a config's rules to each base config, merged with `config`, and collects the refusals.
pub(crate) fn check(config: &Value, base: &[BaseConfig], found: &mut Refusals, rules: impl Fn(&Value, &mut Refusals)) {
    for base in base {
        let Some(mut merged) = parsed(base) else {
            found.refuse(&base.place, "", "this base config of the initramfs is not JSON");
            continue;
        };
        merge(&mut merged, config);
        let mut refused = Refusals::default();
        rules(&merged, &mut refused);
        let at = |at: &dyn Display| format!("{} of the initramfs, {at}", base.place);
        let refused = refused.0.into_iter();
        found
            .0
            .extend(refused.map(|NotRepeatable { at: place, why }| NotRepeatable { at: at(&place), why }));
    }
}

/// Returns the remainders of the base configs ([`merge`]). Skips those that are not JSON objects.
pub(crate) fn merged(config: &Value, base: &[BaseConfig]) -> impl Iterator<Item = Value> {
    base.iter().filter_map(parsed).map(|mut base| {
        merge(&mut base, config);
        base
    })
}

fn parsed(base: &BaseConfig) -> Option<Value> {
    serde_json::from_str(&base.text).ok().filter(Value::is_object)
}

/// Reduces a base config to its own members, with `config`'s changes to them. Members that only `config` has are not added.
fn merge(base: &mut Value, config: &Value) {
    for (pointer, key) in NAMED {
        let Some(members) = base.pointer_mut(pointer).and_then(Value::as_array_mut) else {
            continue;
        };
        let is_node = NODES.contains(&pointer);
        members.retain_mut(|member| {
            let Some(name) = text(member, key).map(str::to_owned) else {
                return true;
            };
            let own = named(config, pointer, key, &name);
            if let (Some(member), Some(own)) = (member.as_object_mut(), own.and_then(Value::as_object)) {
                overlay(member, own);
            }
            // What is overwritten, or something else now, is looked at in the other config.
            let is_other = is_node && own.is_none() && NODES.iter().any(|nodes| named(config, nodes, key, &name).is_some());
            !(is_other || is_node && own.is_some_and(|own| is_true(own, "overwrite")))
        });
    }
}

fn overlay(member: &mut Map<String, Value>, own: &Map<String, Value>) {
    let said = own.iter().filter(|(_, value)| !value.is_null());
    member.extend(said.map(|(name, value)| (name.clone(), value.clone())));
}

fn named<'a>(config: &'a Value, pointer: &str, key: &str, name: &str) -> Option<&'a Value> {
    list(config, pointer)
        .map(|(_, member)| member)
        .find(|member| text(member, key) == Some(name))
}

/// The files of a config, which may have none yet.
fn files(config: &mut Value) -> Option<&mut Vec<Value>> {
    let storage = member(config, "storage", json!({}))?;
    member(storage, "files", json!([]))?.as_array_mut()
}

fn member<'a>(value: &'a mut Value, name: &str, empty: Value) -> Option<&'a mut Value> {
    let member = value.as_object_mut()?.entry(name).or_insert(Value::Null);
    if member.is_null() {
        *member = empty;
    }
    Some(member)
}
