//! Configs from JSON of any accepted spec version.

use std::fmt;

use regex::Regex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::validate::{self, Invalid};
use super::{Config, SpecVersion, features, spec2};

/// A config that Ignition would refuse, or would silently apply in part.
#[derive(Debug, thiserror::Error)]
pub enum NotAConfig {
    /// A config without anything: to Ignition an empty file is one, which boots the node unconfigured.
    #[error("the config is empty")]
    Empty,
    /// A text that is not JSON, or has a field of the wrong type.
    #[error("not an Ignition config: {0}")]
    Parse(String),
    /// A field of the wrong type, by its place.
    #[error("{place}: {problem}")]
    Field {
        /// The path of the field, such as `storage.files.3.mode`.
        place: String,
        problem: String,
    },
    /// A config without a version, or with one that the gateway does not read.
    #[error("ignition.version is {found}: 2.2.0 and 3.0.0 to 3.6.0 are read")]
    Version { found: String },
    /// A key that Ignition does not know in that version, and would silently drop.
    #[error("Ignition {version} does not support {key}: a node would silently boot without it")]
    UnknownKey { version: SpecVersion, key: String },
    /// A config that Ignition would refuse.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A config of spec 2 that spec 3 cannot express.
    #[error("spec 2: {0}")]
    Spec2(#[from] spec2::NotTranslatable),
}

/// Mode bits that Ignition follows since spec 3.6 only.
const SPECIAL_MODE_BITS: i64 = 0o7000;

impl Config {
    /// Reads a config: JSON, spec 2.2 or 3.0 to 3.6.
    ///
    /// # Errors
    /// [`NotAConfig`]. Its text never shows a value of the config.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotAConfig> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(NotAConfig::Empty);
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|error| NotAConfig::Parse(without_values(&error.to_string())))?;
        if let Some((version, config)) = right(bytes)
            && let Ok(typed) = serde_json::to_value(config)
        {
            return Self::right(&value, typed, version);
        }
        // From the bytes, not the value: errors name line and column, and a key that is there twice is found.
        Self::read(bytes, value)
    }

    /// Reads a config as [`Config::parse`] does, from parsed JSON.
    ///
    /// # Errors
    /// [`NotAConfig`].
    pub fn from_value(value: Value) -> Result<Self, NotAConfig> {
        let version = version_of(&value).ok();
        let schema = version.and_then(Schema::for_version);
        if let Some(version) = version
            && let Some(typed) = schema.as_ref().and_then(|schema| (schema.typed)(&value))
        {
            return Self::right(&value, typed, version);
        }
        let bytes = serde_json::to_vec(&value).map_err(|error| NotAConfig::Parse(without_values(&error.to_string())))?;
        Self::read(&bytes, value.clone()).map_err(|error| match error {
            // Lines of what was written just now tell nobody anything.
            NotAConfig::Parse(_) => schema.and_then(|schema| (schema.wrong_field)(&value)).unwrap_or(error),
            error => error,
        })
    }

    /// Takes a config that satisfies its schema: `read` is its JSON, `typed` the same by the schema.
    fn right(read: &Value, typed: Value, version: SpecVersion) -> Result<Self, NotAConfig> {
        if let Some(place) = list_for_object(read, &typed) {
            let problem = "a list, where an object belongs".to_owned();
            return Err(NotAConfig::Field { place, problem });
        }
        match typed {
            Value::Object(held) => Self::taken(held, version),
            _ => Err(NotAConfig::Parse("not an object".to_owned())),
        }
    }

    fn read(bytes: &[u8], value: Value) -> Result<Self, NotAConfig> {
        let version = version_of(&value)?;
        let held = if version == SpecVersion::V2_2 {
            spec2::to_spec3(value)?
        } else {
            typed(bytes, version)?
        };
        Self::taken(held, version)
    }

    /// Takes a config that satisfies the schema of its version.
    fn taken(mut held: Map<String, Value>, version: SpecVersion) -> Result<Self, NotAConfig> {
        if version < SpecVersion::V3_6 {
            mask_special_mode_bits(&mut held);
        }
        let config = Self::held(held);
        validate::validate(&config)?;
        if version < SpecVersion::NEWEST {
            // Ignition refuses words of later versions too: formats, URL schemes, hashes.
            features::drop_defaults(&config, version).map_err(|newer| Invalid {
                place: newer.place,
                problem: newer.problem,
            })?;
        }
        Ok(config)
    }

    /// Validates a merged config: two configs that Ignition accepts can make one that it refuses.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn validated(self) -> Result<Self, Invalid> {
        validate::validate(&self)?;
        Ok(self)
    }
}

fn version_of(value: &Value) -> Result<SpecVersion, NotAConfig> {
    let unknown = |found: &str| NotAConfig::Version {
        found: found.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(32).collect(),
    };
    let Some(found) = value.get("ignition").and_then(|ignition| ignition.get("version")) else {
        return Err(unknown("missing"));
    };
    let text = found.as_str().ok_or_else(|| unknown("not a text"))?;
    text.parse().map_err(|_| unknown(text))
}

/// Reads a config of spec 3 in one pass; `None` if it does not satisfy the schema of its version, for which [`typed`] finds the reason.
fn right(bytes: &[u8]) -> Option<(SpecVersion, ignition_config::Config)> {
    use ignition_config::Config::{V3_0, V3_1, V3_2, V3_3, V3_4, V3_5, V3_6};
    let (config, unknown) = ignition_config::Config::parse_slice(bytes).ok()?;
    let version = match config {
        V3_0(_) => SpecVersion::V3_0,
        V3_1(_) => SpecVersion::V3_1,
        V3_2(_) => SpecVersion::V3_2,
        V3_3(_) => SpecVersion::V3_3,
        V3_4(_) => SpecVersion::V3_4,
        V3_5(_) => SpecVersion::V3_5,
        V3_6(_) => SpecVersion::V3_6,
        _ => return None,
    };
    unknown.is_empty().then_some((version, config))
}

/// Reads a config by the schema of its version, without fields that are not set.
fn typed(bytes: &[u8], version: SpecVersion) -> Result<Map<String, Value>, NotAConfig> {
    let parse = |problem: &dyn fmt::Display| NotAConfig::Parse(without_values(&problem.to_string()));
    let (config, warnings) = ignition_config::Config::parse_slice(bytes).map_err(|error| parse(&error))?;
    if let Some(ignition_config::Warning::UnusedKey(key)) = warnings.into_iter().next() {
        return Err(NotAConfig::UnknownKey { version, key });
    }
    match serde_json::to_value(config) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(parse(&"not an object")),
        Err(error) => Err(parse(&error)),
    }
}

/// Returns the place of a list that is in place of an object. `serde` reads its entries as the fields, in their order; Ignition refuses it.
fn list_for_object(read: &Value, typed: &Value) -> Option<String> {
    let within = |key: &str, read, typed| {
        let place = list_for_object(read, typed)?;
        Some(if place.is_empty() {
            key.to_owned()
        } else {
            format!("{key}.{place}")
        })
    };
    match (read, typed) {
        (Value::Array(_), Value::Object(_)) => Some(String::new()),
        (Value::Array(read), Value::Array(typed)) => {
            let mut entries = read.iter().zip(typed).enumerate();
            entries.find_map(|(index, (read, typed))| within(&index.to_string(), read, typed))
        }
        (Value::Object(read), Value::Object(typed)) => read.iter().find_map(|(key, read)| within(key, read, typed.get(key)?)),
        _ => None,
    }
}

/// The schema of a spec version, applied to parsed JSON.
struct Schema {
    /// Returns the config by the schema, if all fields are known and of the right type.
    typed: fn(&Value) -> Option<Value>,
    /// Returns the first field of the wrong type.
    wrong_field: fn(&Value) -> Option<NotAConfig>,
}

impl Schema {
    /// Returns the schema of a version of spec 3.
    const fn for_version(version: SpecVersion) -> Option<Self> {
        Some(match version {
            SpecVersion::V2_2 => return None,
            SpecVersion::V3_0 => Self::for_type::<ignition_config::v3_0::Config>(),
            SpecVersion::V3_1 => Self::for_type::<ignition_config::v3_1::Config>(),
            SpecVersion::V3_2 => Self::for_type::<ignition_config::v3_2::Config>(),
            SpecVersion::V3_3 => Self::for_type::<ignition_config::v3_3::Config>(),
            SpecVersion::V3_4 => Self::for_type::<ignition_config::v3_4::Config>(),
            SpecVersion::V3_5 => Self::for_type::<ignition_config::v3_5::Config>(),
            SpecVersion::V3_6 => Self::for_type::<ignition_config::v3_6::Config>(),
        })
    }

    const fn for_type<T: DeserializeOwned + Serialize>() -> Self {
        Self {
            typed: |value| {
                let mut unknown = false;
                let config: T = serde_ignored::deserialize(value, |_| unknown = true).ok()?;
                let typed = serde_json::to_value(config).ok()?;
                (!unknown).then_some(typed)
            },
            wrong_field: |value| {
                let error = serde_path_to_error::deserialize::<_, T>(value).err()?;
                Some(NotAConfig::Field {
                    // `files[3]` in the words that places have elsewhere.
                    place: error.path().to_string().replace('[', ".").replace(']', ""),
                    problem: without_values(&error.inner().to_string()),
                })
            },
        }
    }
}

/// Removes mode bits that Ignition does not set before spec 3.6. In a config of a newer version they would take effect.
fn mask_special_mode_bits(config: &mut Map<String, Value>) {
    for list in ["files", "directories"] {
        let entries = config
            .get_mut("storage")
            .and_then(|storage| storage.get_mut(list))
            .and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            if let Some(mode) = entry.get_mut("mode")
                && let Some(bits) = mode.as_i64().filter(|bits| *bits >= 0)
            {
                *mode = (bits & !SPECIAL_MODE_BITS).into();
            }
        }
    }
}

/// Returns a parser's message without the values that it quotes: they may be secrets.
pub fn without_values(message: &str) -> String {
    match Regex::new(r#"(?s)(string|integer|floating point|character) ["`].*["`], expected"#) {
        Ok(quoted) => quoted.replace(message, "$1, expected").into_owned(),
        Err(_) => "a field has the wrong type".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn accepts_exactly_the_versions_of_ignition() {
        for version in SpecVersion::ALL {
            Config::parse(format!("{{\"ignition\":{{\"version\":\"{version}\"}}}}").as_bytes()).unwrap();
        }
        for bad in [
            "",
            " \n",
            "{}",
            "[]",
            "null",
            "x",
            r#"{"ignition":{}}"#,
            r#"{"ignition":{"version":"3.1.0"}"#,
        ] {
            error(bad);
        }
        assert!(error(r#"{"ignition":{"version":"3.99.0"}}"#).contains("3.99.0"));
        assert!(error(r#"{"ignition":{"version":3}}"#).contains("not a text"));
        assert!(error(r#"{"ignition":{"version":"3.1.0"},"sotrage":{}}"#).contains("sotrage"));
        assert!(error("{\"ignition\":{\"version\":\"3.1.0\"},\n\"storage\":{\"files\":[{\"path\":1}]}}").contains("line 2"));
        // A key of a later version.
        assert!(error(r#"{"ignition":{"version":"3.2.0"},"kernelArguments":{"shouldExist":["a"]}}"#).contains("kernelArguments"));
        // A word of a later version.
        assert!(
            error(r#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/a","contents":{"source":"gs://b/o"}}]}}"#)
                .contains("3.2.0")
        );
        assert!(error(r#"{"ignition":{"version":"3.1.0"},"ignition":{"version":"3.1.0"}}"#).contains("duplicate"));
    }

    #[test]
    fn parsed_value_and_bytes_yield_the_same_config() {
        let file = |version: &str, file: &str| format!(r#"{{"ignition":{{"version":"{version}"}},"storage":{{"files":[{file}]}}}}"#);
        for version in SpecVersion::ALL {
            let version = version.as_str();
            for (text, taken) in [
                (
                    file(version, r#"{"path":"/a","mode":420,"contents":{"source":"data:,a"}}"#),
                    version != "2.2.0",
                ),
                (
                    file(version, r#"{"path":"/a","filesystem":"root","contents":{}}"#),
                    version == "2.2.0",
                ),
                (file(version, r#"{"path":"/a","overwrite":null}"#), version != "2.2.0"),
                (file(version, r#"{"path":"/a","mode":4e2}"#), false),
                (file(version, r#"{"path":"/a","mode":"420"}"#), false),
                (file(version, r#"{"path":"/a","moed":420}"#), false),
                (file(version, r#"{"mode":420}"#), false),
                (file(version, r#"{"path":"/a","mode":3735928559000}"#), false),
                (file(version, r#"{"path":"a"}"#), false),
                (file(version, "[]"), false),
                // By serde these are the fields of an object, in order.
                (
                    format!(r#"{{"ignition":{{"version":"{version}"}},"systemd":[[{{"name":"a.service","enabled":true}}]]}}"#),
                    false,
                ),
            ] {
                let value = serde_json::from_str(&text).unwrap();
                let [read, parsed] = [Config::from_value(value), Config::parse(text.as_bytes())];
                assert_eq!((read.is_ok(), parsed.is_ok()), (taken, taken), "{text}: {read:?}, {parsed:?}");
                assert_eq!(read.ok(), parsed.ok(), "{text}");
            }
        }
        for (lists, place) in [
            (r#""systemd":[[{"name":"a.service"}]]"#, "systemd: "),
            (r#""passwd":{"groups":[{"name":"a"},[1,"b",null,null,false]]}"#, "passwd.groups.1: "),
        ] {
            let text = format!(r#"{{"ignition":{{"version":"3.4.0"}},{lists}}}"#);
            let read = Config::from_value(serde_json::from_str(&text).unwrap()).unwrap_err().to_string();
            assert!(read.starts_with(place) && read.contains("a list"), "{read}");
            assert_eq!(error(&text), read);
        }
        // What is later's in one version is taken in another.
        let arguments = |version: &str| {
            let text = format!(r#"{{"ignition":{{"version":"{version}"}},"kernelArguments":{{"shouldExist":["a"]}}}}"#);
            Config::from_value(serde_json::from_str(&text).unwrap()).is_ok()
        };
        assert_eq!(["3.2.0", "3.3.0"].map(arguments), [false, true]);
    }

    #[test]
    fn drops_null_and_empty_fields() {
        let config = Config::parse(
            br#"{"ignition":{"version":"3.1.0","proxy":{},"config":{"merge":[]}},"storage":{"files":[{"path":"/a","mode":null,"contents":{}}]}}"#,
        )
        .unwrap();
        let expected = serde_json::json!({"ignition": {"version": "3.6.0"}, "storage": {"files": [{"path": "/a"}]}});
        assert_eq!(Value::Object(config.value().clone()), expected);
    }

    #[test]
    fn config_from_value_equals_config_from_text() {
        let value = serde_json::json!({
            "ignition": {"version": "3.4.0", "proxy": {}, "timeouts": {"httpTotal": 3}, "config": {"merge": [], "replace": {"source": null}}},
            "kernelArguments": {"shouldExist": ["a"], "shouldNotExist": null},
            "passwd": {"users": [{"name": "core", "uid": 0, "groups": [], "sshAuthorizedKeys": ["k"]}]},
            "storage": {
                "files": [{"path": "/a", "mode": 0o4755, "user": {}, "contents": {"source": "data:,x", "httpHeaders": []}, "append": [{}]}],
                "luks": [{"name": "l", "device": "/d", "clevis": {"tpm2": true, "tang": []}, "openOptions": ["o"]}],
                "disks": [{"device": "/d", "partitions": [{"number": 1, "sizeMiB": 7, "label": "p"}]}],
            },
            "systemd": {"units": [{"name": "a.service", "mask": false, "dropins": [{"name": "b.conf", "contents": null}]}]},
        });
        let parsed = Config::parse(value.to_string().as_bytes()).unwrap();
        assert!(Config::from_value(value).unwrap() == parsed, "{parsed:?}");
        // What is wrong is named, in both, by what does not read it in one pass.
        let unknown = serde_json::json!({"ignition": {"version": "3.4.0"}, "storage": {"file": []}});
        for error in [Config::parse(unknown.to_string().as_bytes()), Config::from_value(unknown)] {
            assert!(matches!(
                error,
                Err(NotAConfig::UnknownKey {
                    version: SpecVersion::V3_4,
                    ..
                })
            ));
        }
    }

    #[test]
    fn special_mode_bits_are_ignored_before_3_6() {
        let mode = |version: &str| {
            let text = format!(r#"{{"ignition":{{"version":"{version}"}},"storage":{{"files":[{{"path":"/a","mode":2541}}]}}}}"#);
            Config::parse(text.as_bytes()).unwrap().list(["storage", "files"])[0]["mode"].as_i64()
        };
        assert_eq!((mode("3.5.0"), mode("3.6.0")), (Some(0o755), Some(0o4755)));
    }

    #[test]
    fn no_error_and_no_debug_output_shows_a_value() {
        let text = r#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/a","mode":"hunter\"2"}]}}"#;
        assert!(!error(text).contains("hunter"), "{}", error(text));
        let text = r#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,hunter2"}}]}}"#;
        assert!(!format!("{:?}", Config::parse(text.as_bytes()).unwrap()).contains("hunter"));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::default() })]

        #[test]
        fn arbitrary_config_never_panics(text in "[\\[\\]{},:\"a-z0-9.\\\\ -]{0,120}", version in 0..8_usize, number in proptest::prelude::any::<i64>()) {
            drop(Config::parse(text.as_bytes()));
            let version = SpecVersion::ALL[version];
            for field in ["storage", "passwd", "systemd", "kernelArguments", "ignition"] {
                drop(Config::parse(format!("{{\"ignition\":{{\"version\":\"{version}\"}},\"{field}\":{text}}}").as_bytes()));
            }
            let file = format!("{{\"ignition\":{{\"version\":\"{version}\"}},\"storage\":{{\"files\":[{{\"path\":\"/a\",\"mode\":{number}}}]}}}}");
            drop(Config::parse(file.as_bytes()));
        }
    }
}
