//! Keys that are there twice.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Invalid;
use crate::schema::{Family, ListRule, rule_of};

/// Checks that no list has two entries of one key, and also no two lists of one family.
pub(super) fn check(config: &Map<String, Value>) -> Result<(), Invalid> {
    object(config).map_err(|place| Invalid {
        place,
        problem: "duplicate entry".to_owned(),
    })
}

/// Checks an object; the error is the place.
fn object(fields: &Map<String, Value>) -> Result<(), String> {
    let mut families: HashMap<Family, HashSet<Cow<'_, str>>> = HashMap::new();
    for (field, value) in fields {
        match value {
            Value::Object(fields) => object(fields).map_err(|place| format!("{field}.{place}"))?,
            Value::Array(entries) => {
                if let ListRule::ByKey(key, family) = rule_of(field, entries) {
                    let mut alone = HashSet::new();
                    let seen = if family == Family::Alone {
                        &mut alone
                    } else {
                        families.entry(family).or_default()
                    };
                    for (index, entry) in entries.iter().enumerate() {
                        if !seen.insert(key.key(entry)) {
                            return Err(format!("{field}.{index}"));
                        }
                    }
                }
                for (index, entry) in entries.iter().enumerate() {
                    if let Value::Object(fields) = entry {
                        object(fields).map_err(|place| format!("{field}.{index}.{place}"))?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{refused, taken};

    #[test]
    fn rejects_duplicate_paths() {
        taken(json!({"storage": {"files": [{"path": "/a"}, {"path": "/b"}], "directories": [{"path": "/c"}]}}));
        refused(json!({"storage": {"files": [{"path": "/a"}, {"path": "/a"}]}}), "storage.files.1");
        refused(
            json!({"storage": {"files": [{"path": "/a"}], "directories": [{"path": "/a"}]}}),
            "storage.files.0",
        );
        refused(
            json!({"storage": {"files": [{"path": "/a"}], "links": [{"path": "/a", "target": "/b"}]}}),
            "storage.links.0",
        );
    }

    #[test]
    fn rejects_duplicate_keys_in_other_lists() {
        let user = |key: &str, value| json!({"passwd": {"users": [{"name": "core", key: value}]}});
        taken(user("groups", json!(["a", "b"])));
        refused(user("groups", json!(["a", "a"])), "passwd.users.0.groups.1");
        refused(user("sshAuthorizedKeys", json!(["a", "a"])), "passwd.users.0.sshAuthorizedKeys.1");
        refused(json!({"passwd": {"groups": [{"name": "a"}, {"name": "a"}]}}), "passwd.groups.1");
        taken(json!({"kernelArguments": {"shouldExist": ["a"], "shouldNotExist": ["b"]}}));
        refused(
            json!({"kernelArguments": {"shouldExist": ["a"], "shouldNotExist": ["a"]}}),
            "kernelArguments.shouldNotExist.0",
        );
        refused(
            json!({"systemd": {"units": [{"name": "a.service"}, {"name": "a.service"}]}}),
            "systemd.units.1",
        );
        let dropins = |name: &str| json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "a.conf"}, {"name": name}]}]}});
        taken(dropins("b.conf"));
        refused(dropins("a.conf"), "systemd.units.0.dropins.1");
        refused(
            json!({"ignition": {"config": {"merge": [{"source": "data:,"}, {"source": "data:,"}]}}}),
            "ignition.config.merge.1",
        );
        // Lists without keys may repeat themselves.
        taken(json!({"storage": {"files": [{"path": "/a", "append": [{"source": "data:,"}, {"source": "data:,"}]}]}}));
        taken(json!({"storage": {"filesystems": [{"device": "/d", "format": "xfs", "options": ["a", "a"], "mountOptions": ["a", "a"]}]}}));
    }
}
