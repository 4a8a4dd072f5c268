//! A config as the gateway holds it.

use std::fmt;

use serde_json::{Map, Value};

use super::SpecVersion;

/// An Ignition config of any accepted spec version, brought to the newest. What is not set is not there: no nulls, no empty objects or
/// lists. So two configs that mean the same are the same, but for the order of lists.
#[derive(Clone, PartialEq)]
pub struct Config(Map<String, Value>);

impl Config {
    /// Returns a config that changes nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self::held(Map::new())
    }

    /// Fields that are in the canonical form already.
    pub(super) const fn pruned(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// Restores a config from the map that was packed, without checks.
    pub const fn packed(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// Returns the canonical form of fields that are known to be a config's.
    pub(super) fn held(mut map: Map<String, Value>) -> Self {
        map.retain(|_, value| prune(value));
        let ignition = map.entry("ignition").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(ignition) = ignition {
            ignition.insert("version".to_owned(), SpecVersion::NEWEST.as_str().into());
        }
        Self(map)
    }

    /// Returns the config's fields, in spec [`SpecVersion::NEWEST`].
    #[must_use]
    pub const fn value(&self) -> &Map<String, Value> {
        &self.0
    }

    pub(super) fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Returns a list of the config by its place, such as `["storage", "files"]`.
    #[must_use]
    pub fn list(&self, place: [&str; 2]) -> &[Value] {
        let [section, list] = place;
        self.0
            .get(section)
            .and_then(|section| section.get(list))
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the same list for changes; creates it if it is missing.
    pub fn list_mut(&mut self, place: [&str; 2]) -> Option<&mut Vec<Value>> {
        let [section, list] = place;
        self.0
            .entry(section)
            .or_insert_with(|| Value::Object(Map::new()))
            .as_object_mut()?
            .entry(list)
            .or_insert_with(|| Value::Array(Vec::new()))
            .as_array_mut()
    }

    /// Takes a whole section out: `kernelArguments`, for one.
    pub fn take(&mut self, section: &str) -> Option<Value> {
        self.0.remove(section)
    }
}

/// Shows sizes only: a config holds secrets.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("files", &self.list(["storage", "files"]).len())
            .field("units", &self.list(["systemd", "units"]).len())
            .finish_non_exhaustive()
    }
}

/// Takes out what is not set; whether anything is left.
fn prune(value: &mut Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => {
            map.retain(|_, value| prune(value));
            !map.is_empty()
        }
        Value::Array(list) => {
            for entry in list.iter_mut() {
                prune(entry);
            }
            !list.is_empty()
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Returns whether [`prune`] would change nothing. `false` also for some pruned values that are expensive to recognize.
pub(super) fn is_pruned(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty() && map.values().all(is_pruned),
        Value::Array(list) => {
            let entry = |entry: &Value| match entry {
                Value::Object(map) => map.values().all(is_pruned),
                other => is_pruned(other),
            };
            !list.is_empty() && list.iter().all(entry)
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}
