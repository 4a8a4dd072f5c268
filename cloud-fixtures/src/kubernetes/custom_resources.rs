//! Kinds that a CustomResourceDefinition makes: they are there while it is, hold to its schema, and are printed by its columns.
//!
//! It follows `staging/src/k8s.io/apiextensions-apiserver` in `kubernetes/kubernetes`. Fields that the schema does not name are dropped
//! (`pkg/apiserver/schema/pruning`). Invalid values are refused (`pkg/apiserver/validation`; lists that are maps:
//! `pkg/apiserver/schema/listtype`). A table has the name and the columns of the definition
//! (`pkg/registry/customresource/tableconvertor/tableconvertor.go`). Ages are formatted like by `HumanDuration` in
//! `apimachinery/pkg/util/duration`. It omits other versions, defaults, rules in CEL, and all keywords of a schema that are not in
//! [`WORDS`].

use regex::Regex;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::kinds::ResourceKind;
use super::objects::ObjectStore;
use super::status::ApiStatus;

/// Keywords of a schema that this server supports.
pub(super) const WORDS: [&str; 15] = [
    "type",
    "description",
    "properties",
    "required",
    "items",
    "enum",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
];

/// Returns the version of its definition; `None` if the kind's definition does not exist.
pub(super) fn version(objects: &ObjectStore, kind: ResourceKind) -> Option<Value> {
    let definition = objects.get(ResourceKind::by_plural("customresourcedefinitions"), "", &kind.qualified())?;
    let versions = definition["spec"]["versions"].as_array()?;
    let served = |version: &&Value| version["name"] == kind.version && version["served"] == true;
    versions.iter().find(served).cloned()
}

/// Returns the versions that definitions of this group serve, as discovery lists them, unless it serves a version that is supported here.
pub(super) fn other_versions(objects: &ObjectStore, group: &str) -> Vec<Value> {
    let kinds = ResourceKind::all().iter().filter(|kind| kind.group == group);
    let definitions = kinds.filter(|kind| !exists(objects, **kind)).filter_map(|kind| {
        let definition = objects.get(ResourceKind::by_plural("customresourcedefinitions"), "", &kind.qualified())?;
        Some(definition["spec"]["versions"].as_array()?.clone())
    });
    let served = definitions.flatten().filter(|version| version["served"] == true);
    let named = |version: Value| {
        let version = version["name"].as_str().unwrap_or_default();
        json!({"groupVersion": format!("{group}/{version}"), "version": version})
    };
    served.map(named).collect()
}

/// Returns the short names of the kind.
pub(super) fn short_names(objects: &ObjectStore, kind: ResourceKind) -> Value {
    let definition = objects.get(ResourceKind::by_plural("customresourcedefinitions"), "", &kind.qualified());
    definition.map_or(Value::Null, |definition| definition["spec"]["names"]["shortNames"].clone())
}

/// Returns whether this kind exists.
pub(super) fn exists(objects: &ObjectStore, kind: ResourceKind) -> bool {
    !objects.lacks(kind) && (!kind.is_custom() || version(objects, kind).is_some())
}

/// Largest request that etcd takes: its `--max-request-bytes`, <https://etcd.io/docs/v3.6/dev-guide/limit/>.
const REQUEST_LIMIT_BYTES: usize = 1_572_864;

/// Drops fields that the schema does not name, and refuses an object that is invalid or too large.
pub(super) fn fit(objects: &ObjectStore, kind: ResourceKind, object: &mut Value) -> Result<(), ApiStatus> {
    let version = version(objects, kind).ok_or_else(ApiStatus::no_such_path)?;
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut found = Vec::new();
    let fields = object.as_object_mut().ok_or_else(|| ApiStatus::bad_request("no object"))?;
    fields.retain(|name, _| ["apiVersion", "kind", "metadata"].contains(&&**name) || !schema["properties"][name].is_null());
    for (name, value) in fields
        .iter_mut()
        .filter(|(name, _)| !["apiVersion", "kind", "metadata"].contains(&&***name))
    {
        let schema = &schema["properties"][name];
        prune(schema, value);
        judge(schema, value, name, &mut found);
    }
    if object.to_string().len() > REQUEST_LIMIT_BYTES {
        return Err(ApiStatus::too_large());
    }
    match found.is_empty() {
        true => Ok(()),
        false => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            Err(ApiStatus::invalid(kind, name, &found.join(", ")))
        }
    }
}

fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) if schema["properties"].is_object() => {
            fields.retain(|name, _| !schema["properties"][name].is_null());
            for (name, value) in fields {
                prune(&schema["properties"][name.as_str()], value);
            }
        }
        Value::Object(fields) => fields.clear(),
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item)),
        _ => {}
    }
}

fn judge(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let unknown = schema
        .as_object()
        .into_iter()
        .flatten()
        .find(|(word, _)| !WORDS.contains(&&***word));
    assert!(unknown.is_none(), "{path}: {unknown:?} is not understood here");
    let of = schema["type"].as_str().unwrap_or_default();
    let fits = match of {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        other => panic!("{path}: no type {other:?}"),
    };
    if !fits {
        return found.push(format!("{path}: Invalid value: {path} in body must be of type {of}"));
    }
    let mut check = |holds: bool, why: &str| {
        if !holds {
            found.push(format!("{path}: {why}"));
        }
    };
    let limit = |word: &str| schema[word].as_u64().and_then(|limit| usize::try_from(limit).ok());
    if let Some(text) = value.as_str() {
        let characters = text.chars().count();
        check(limit("maxLength").is_none_or(|most| characters <= most), "Too long");
        check(limit("minLength").is_none_or(|least| characters >= least), "Too short");
        let pattern = schema["pattern"].as_str().map(|pattern| Regex::new(pattern).unwrap());
        check(
            pattern.is_none_or(|pattern| pattern.is_match(text)),
            "Invalid value: it does not match the pattern",
        );
        let is_date = schema["format"] != "date-time" || OffsetDateTime::parse(text, &Rfc3339).is_ok();
        check(is_date, "Invalid value: it is no date-time");
    }
    if let Some(all) = schema["enum"].as_array() {
        check(all.contains(value), "Unsupported value");
    }
    if let Some(least) = schema["minimum"].as_i64() {
        check(value.as_i64().is_none_or(|value| value >= least), "Invalid value: too small");
    }
    if let Some(items) = value.as_array() {
        check(limit("maxItems").is_none_or(|most| items.len() <= most), "Too many");
        check(limit("minItems").is_none_or(|least| items.len() >= least), "Too few");
        if schema["x-kubernetes-list-type"] == "map" {
            let names: Vec<&str> = schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let mut keys: Vec<Vec<String>> = items
                .iter()
                .map(|item| names.iter().map(|name| item[name].to_string()).collect())
                .collect();
            keys.sort();
            check(keys.windows(2).all(|pair| pair[0] != pair[1]), "Duplicate value");
        }
        for (number, item) in items.iter().enumerate() {
            judge(&schema["items"], item, &format!("{path}[{number}]"), found);
        }
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for name in required.filter(|name| !fields.contains_key(*name)) {
            found.push(format!("{path}.{name}: Required value"));
        }
        for (name, value) in fields {
            judge(&schema["properties"][name], value, &format!("{path}.{name}"), found);
        }
    }
}

/// Returns a table, as `kubectl get` requests it.
pub(super) fn table(objects: &ObjectStore, kind: ResourceKind, metadata: &Value, items: &[Value]) -> Value {
    let version = version(objects, kind).unwrap_or_default();
    let columns = version["additionalPrinterColumns"].as_array().cloned().unwrap_or_default();
    let named = json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0});
    let definition = |column: &Value| {
        let text = |field: &str| column[field].as_str().unwrap_or_default().to_owned();
        let priority = column["priority"].as_i64().unwrap_or_default();
        json!({"name": text("name"), "type": text("type"), "format": text("format"), "description": text("description"), "priority": priority})
    };
    let definitions: Vec<Value> = std::iter::once(named).chain(columns.iter().map(definition)).collect();
    let row = |item: &Value| {
        let cells = columns.iter().map(|column| cell(column, item));
        let cells: Vec<Value> = std::iter::once(item["metadata"]["name"].clone()).chain(cells).collect();
        let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]});
        json!({"cells": cells, "object": object})
    };
    let rows: Vec<Value> = items.iter().map(row).collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows})
}

/// Returns the cell of a column; supports paths of plain fields only.
fn cell(column: &Value, item: &Value) -> Value {
    let pointer = column["jsonPath"].as_str().unwrap_or_default().replace('.', "/");
    let Some(found) = item.pointer(&pointer).filter(|found| !found.is_null()) else {
        return Value::Null;
    };
    match column["type"].as_str().unwrap_or_default() {
        "string" => json!(found.as_str().map_or_else(|| found.to_string(), str::to_owned)),
        "integer" if found.is_i64() => found.clone(),
        "boolean" if found.is_boolean() => found.clone(),
        "date" => match found.as_str().and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok()) {
            Some(at) => json!(age((OffsetDateTime::now_utc() - at).whole_seconds())),
            None => json!("<invalid>"),
        },
        _ => Value::Null,
    }
}

fn age(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let with = |large: i64, unit: char, small: i64, of: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{of}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => with(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        _ => with(days / 365, 'y', days % 365, 'd'),
    }
}

/// Records the manager that changed fields of `spec`, like `metadata.managedFields` does for an update: one entry per manager and part
/// (`staging/src/k8s.io/apimachinery/pkg/util/managedfields`).
pub(super) fn manage(old: Option<&Value>, new: &mut Value, manager: &str, part: Option<&str>, now: &str) {
    let field = part.unwrap_or("spec");
    let empty = Map::new();
    let before = old.and_then(|old| old[field].as_object()).unwrap_or(&empty);
    let after = new[field].as_object().unwrap_or(&empty);
    let changed = |name: &&String| before.get(*name) != after.get(*name);
    let names: Vec<&String> = before.keys().chain(after.keys()).filter(changed).collect();
    if names.is_empty() && old.is_some() {
        return;
    }
    let owned: Map<String, Value> = names.iter().map(|name| (format!("f:{name}"), json!({}))).collect();
    let mut entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": new["apiVersion"], "time": now,
        "fieldsType": "FieldsV1", "fieldsV1": {format!("f:{field}"): owned},
    });
    if let Some(part) = part {
        entry["subresource"] = json!(part);
    }
    let mut all = old
        .and_then(|old| old["metadata"]["managedFields"].as_array())
        .cloned()
        .unwrap_or_default();
    all.retain(|other| other["manager"] != manager || other["subresource"] != entry["subresource"]);
    all.push(entry);
    new["metadata"]["managedFields"] = json!(all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_ages_as_the_kubernetes_api_does() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (30_000, "8h"),
            (180_000, "2d2h"),
            (800_000, "9d"),
            (70_000_000, "2y80d"),
        ] {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }
}
