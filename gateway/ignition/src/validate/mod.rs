//! Validation of configs that have the right shape: the fatal part of Ignition's validation, by the rules of spec 3.6.
//!
//! Ignition validates each config that it reads, and the result of merging them. A node does not boot if Ignition refuses its config, so
//! the gateway checks it first. A problem never shows a value: it may be a secret.

mod at;
mod disks;
mod duplicates;
mod nodes;
mod sources;
mod unit_files;
mod units;

use super::Config;
use at::At;

/// A config that Ignition would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Invalid {
    /// Place, such as `storage.files.3.path`.
    pub place: String,
    pub problem: String,
}

pub(super) fn validate(config: &Config) -> Result<(), Invalid> {
    let section = |name| At::section(config.value(), name);
    let (ignition, storage, systemd) = (section("ignition"), section("storage"), section("systemd"));
    duplicates::check(config.value())?;
    sources::ignition(&ignition)?;
    nodes::check(&storage, &systemd)?;
    disks::check(&storage)?;
    units::check(&systemd)
}

/// Checks a path as Ignition does: it must be absolute, and as short as it can be.
fn path(at: &At<'_>) -> Result<(), Invalid> {
    let path = at.text_or_empty();
    at.must(!path.is_empty(), "a path is expected")?;
    at.must(path.starts_with('/'), "an absolute path is expected")?;
    at.must(is_clean(path), "a path without `.`, `..`, doubled or trailing slashes is expected")
}

/// Returns whether an absolute path is as short as it can be.
fn is_clean(path: &str) -> bool {
    path == "/" || path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
}

/// Returns the absolute path without `.`, `..`, doubled and trailing slashes.
pub(super) fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(mut value: Value) -> Config {
        value["ignition"]["version"] = "3.6.0".into();
        match value {
            Value::Object(map) => Config::held(map),
            _ => Config::empty(),
        }
    }

    /// Asserts that validation fails, and that the first of several problems is reported.
    #[track_caller]
    pub(super) fn refused(value: Value, place: &str) {
        let problem = validate(&config(value.clone())).expect_err(&value.to_string());
        assert_eq!(problem.place, place, "{problem} in {value}");
    }

    #[track_caller]
    pub(super) fn taken(value: Value) {
        assert_eq!(validate(&config(value.clone())), Ok(()), "{value}");
    }

    #[test]
    fn paths_must_be_absolute_and_clean() {
        let check = |text: &str, expected: bool| {
            let value = json!({"storage": {"files": [{"path": text}]}});
            if expected {
                taken(value);
            } else {
                refused(value, "storage.files.0.path");
            }
        };
        for good in ["/", "/a", "/a/b", "/a..b/.c", "/ä b", "/a/..."] {
            check(good, true);
        }
        for bad in ["", "a", "./a", "//", "/a/", "/a//b", "/a/./b", "/a/../b", "/.", "/.."] {
            check(bad, false);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::default() })]

        #[test]
        fn is_clean_agrees_with_cleaned(path in "/[./a]{0,8}") {
            assert_eq!(is_clean(&path), cleaned(&path) == path, "{path}");
        }
    }

    #[test]
    fn accepts_an_empty_config() {
        taken(json!({}));
    }
}
