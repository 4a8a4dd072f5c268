//! Changes to a part of an object.

use serde_json::Value;

use super::status::ApiStatus;

/// Applies a merge patch (RFC 7386).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let fields = target.as_object_mut().unwrap();
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

/// Applies a JSON patch by RFC 6902, without `move` and `copy`.
pub(super) fn steps(target: &mut Value, patch: &Value) -> Result<(), ApiStatus> {
    let wrong = || ApiStatus::bad_request("the JSON patch cannot be applied");
    for step in patch.as_array().ok_or_else(wrong)? {
        let path = step["path"].as_str().ok_or_else(wrong)?;
        let (parent, last) = path.rsplit_once('/').ok_or_else(wrong)?;
        let last = last.replace("~1", "/").replace("~0", "~");
        let value = step["value"].clone();
        if step["op"] == "test" {
            if target.pointer(path) != Some(&value) {
                return Err(ApiStatus::test_failed(path));
            }
            continue;
        }
        let parent = target.pointer_mut(parent).ok_or_else(wrong)?;
        match (step["op"].as_str().unwrap_or_default(), parent) {
            ("add" | "replace", Value::Object(fields)) => drop(fields.insert(last, value)),
            ("remove", Value::Object(fields)) => drop(fields.remove(&last).ok_or_else(wrong)?),
            ("add", Value::Array(items)) if last == "-" => items.push(value),
            (op, Value::Array(items)) => {
                let place: usize = last.parse().ok().filter(|place| *place <= items.len()).ok_or_else(wrong)?;
                match op {
                    "add" => items.insert(place, value),
                    "replace" => *items.get_mut(place).ok_or_else(wrong)? = value,
                    "remove" if place < items.len() => drop(items.remove(place)),
                    _ => return Err(wrong()),
                }
            }
            _ => return Err(wrong()),
        }
    }
    Ok(())
}
