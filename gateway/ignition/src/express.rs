//! A config in the spec version that a node asks for.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

use super::config::is_pruned;
use super::features::{Inexpressible, drop_defaults};
use super::parse::without_values;
use super::{Config, SpecVersion, spec2};

impl Config {
    /// Returns the config as compact JSON of that spec version.
    ///
    /// # Errors
    /// [`Inexpressible`]: nothing is left out in silence.
    pub fn express(&self, version: SpecVersion) -> Result<Vec<u8>, Inexpressible> {
        let bytes = self.express_unchecked(version)?;
        if version == SpecVersion::V2_2 {
            return Ok(bytes);
        }
        // The version's own schema finds what the list of features should miss.
        let refuse = |place: &str, problem: String| Inexpressible {
            version,
            place: place.to_owned(),
            problem,
        };
        match ignition_config::Config::parse_slice(&bytes) {
            Err(error) => Err(refuse("$", without_values(&error.to_string()))),
            Ok((_, warnings)) => match warnings.into_iter().next() {
                Some(ignition_config::Warning::UnusedKey(key)) => Err(refuse(&key, "unknown key".to_owned())),
                Some(_) => Err(refuse("$", "the config has an unknown part".to_owned())),
                None => Ok(bytes),
            },
        }
    }

    /// Returns the same JSON without validating it against that version's schema. It must not be served to nodes.
    ///
    /// # Errors
    /// [`Inexpressible`].
    fn express_unchecked(&self, version: SpecVersion) -> Result<Vec<u8>, Inexpressible> {
        let bytes = |config: Result<Vec<u8>, serde_json::Error>| {
            config.map_err(|error| Inexpressible {
                version,
                place: "$".to_owned(),
                problem: error.to_string(),
            })
        };
        if version == SpecVersion::V2_2 {
            let known = drop_defaults(self, version)?;
            return bytes(serde_json::to_vec(&spec2::from_spec3(known.into_owned())?));
        }
        bytes(serde_json::to_vec(&self.in_version(version)?))
    }

    /// Returns the config in a version of spec 3, for the caller to serialize.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn in_version(&self, version: SpecVersion) -> Result<InVersion<'_>, Inexpressible> {
        let mut config = drop_defaults(self, version)?;
        if !config.values().all(is_pruned) || !config.contains_key("ignition") {
            config = Cow::Owned(Self::held(config.into_owned()).into_map());
        }
        Ok(InVersion { config, version })
    }
}

/// A config with another version in it.
pub struct InVersion<'c> {
    config: Cow<'c, Map<String, Value>>,
    version: SpecVersion,
}

/// The `ignition` section of such a config, with the version replaced.
struct IgnitionMembers<'c>(&'c Map<String, Value>, SpecVersion);

impl Serialize for InVersion<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.config.len()))?;
        for (section, value) in self.config.as_ref() {
            match value {
                Value::Object(ignition) if section == "ignition" => {
                    map.serialize_entry(section, &IgnitionMembers(ignition, self.version))?
                }
                _ => map.serialize_entry(section, value)?,
            }
        }
        map.end()
    }
}

impl Serialize for IgnitionMembers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (field, value) in self.0 {
            if field == "version" {
                map.serialize_entry(field, self.1.as_str())?;
            } else {
                map.serialize_entry(field, value)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(mut value: Value) -> Config {
        value["ignition"]["version"] = "3.6.0".into();
        Config::from_value(value).unwrap()
    }

    fn express_value(value: Value, version: SpecVersion) -> Result<Value, Inexpressible> {
        config(value).express(version).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    /// Asserts that the version which introduced a feature can express the value, and that the version below it fails and names the place.
    #[track_caller]
    fn came_with(version: SpecVersion, place: &str, value: Value) {
        let mut expected = value.clone();
        expected["ignition"]["version"] = version.as_str().into();
        assert_eq!(express_value(value.clone(), version).unwrap(), expected);
        let before = SpecVersion::ALL.into_iter().rfind(|other| *other < version).unwrap();
        let refused = express_value(value, before).unwrap_err();
        assert_eq!((refused.version, refused.place.as_str()), (before, place));
    }

    /// Asserts that in that version the value is left out.
    #[track_caller]
    fn means_nothing_in(version: SpecVersion, value: Value, rest: Value) {
        let mut rest = rest;
        rest["ignition"]["version"] = version.as_str().into();
        assert_eq!(express_value(value, version).unwrap(), rest);
    }

    fn luks(mut luks: Value) -> Value {
        luks["name"] = "a".into();
        luks["device"] = "/d".into();
        json!({"storage": {"luks": [luks]}})
    }

    fn file(contents: Value) -> Value {
        json!({"storage": {"files": [{"path": "/a", "contents": contents}]}})
    }

    #[test]
    fn features_of_every_version_are_kept() {
        let plain = json!({"storage": {"files": [{"path": "/a", "mode": 420, "overwrite": true, "contents": {"source": "data:,a"}}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "[Unit]\n"}]}});
        for version in SpecVersion::ALL.into_iter().skip(1) {
            means_nothing_in(version, plain.clone(), plain.clone());
        }
    }

    #[test]
    fn each_feature_requires_its_spec_version() {
        use SpecVersion::{V3_1, V3_2, V3_3, V3_4, V3_5, V3_6};
        came_with(
            V3_6,
            "storage.files.0.mode",
            json!({"storage": {"files": [{"path": "/a", "mode": 0o4755}]}}),
        );
        came_with(
            V3_6,
            "storage.directories.0.mode",
            json!({"storage": {"directories": [{"path": "/a", "mode": 0o1777}]}}),
        );
        let pin = |pin: &str| luks(json!({"clevis": {"custom": {"pin": pin, "config": "{}"}}}));
        came_with(V3_6, "storage.luks.0.clevis.custom.pin", pin("pkcs11"));
        came_with(V3_2, "storage.luks", pin("sss"));
        came_with(V3_5, "storage.luks.0.cex", luks(json!({"cex": {"enabled": true}})));
        came_with(V3_4, "storage.luks.0.discard", luks(json!({"discard": true})));
        came_with(V3_4, "storage.luks.0.openOptions", luks(json!({"openOptions": ["a"]})));
        let tang = json!({"url": "http://a", "thumbprint": "b", "advertisement": "{}"});
        came_with(
            V3_4,
            "storage.luks.0.clevis.tang.0.advertisement",
            luks(json!({"clevis": {"tang": [tang]}})),
        );
        came_with(V3_4, "storage.files.0.contents.source", file(json!({"source": "arn:aws:s3:::b/o"})));
        came_with(V3_3, "kernelArguments", json!({"kernelArguments": {"shouldExist": ["a"]}}));
        let filesystem = |mut filesystem: Value| {
            filesystem["device"] = "/d".into();
            json!({"storage": {"filesystems": [filesystem]}})
        };
        came_with(V3_3, "storage.filesystems.0.format", filesystem(json!({"format": "none"})));
        came_with(
            V3_2,
            "passwd.users.0.shouldExist",
            json!({"passwd": {"users": [{"name": "a", "shouldExist": false}]}}),
        );
        came_with(
            V3_2,
            "passwd.groups.0.shouldExist",
            json!({"passwd": {"groups": [{"name": "a", "shouldExist": false}]}}),
        );
        came_with(
            V3_2,
            "storage.disks.0.partitions.0.resize",
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, "resize": true}]}]}}),
        );
        came_with(V3_2, "storage.files.0.contents.source", file(json!({"source": "gs://b/o"})));
        came_with(
            V3_1,
            "storage.filesystems.0.mountOptions",
            filesystem(json!({"format": "xfs", "mountOptions": ["a"]})),
        );
        came_with(V3_1, "ignition.proxy", json!({"ignition": {"proxy": {"httpProxy": "http://a"}}}));
        let hash = format!("sha256-{}", "0".repeat(64));
        came_with(
            V3_1,
            "storage.files.0.contents.verification.hash",
            file(json!({"source": "data:,", "verification": {"hash": hash}})),
        );
        let headers = json!([{"name": "a", "value": "b"}]);
        came_with(
            V3_1,
            "storage.files.0.contents.httpHeaders",
            file(json!({"source": "http://a", "httpHeaders": headers})),
        );
        let reference = json!({"source": "http://a", "compression": "gzip"});
        came_with(
            V3_1,
            "ignition.config.merge.0.compression",
            json!({"ignition": {"config": {"merge": [reference]}}}),
        );
        came_with(
            V3_1,
            "ignition.config.replace.compression",
            json!({"ignition": {"config": {"replace": reference}}}),
        );
        came_with(
            V3_1,
            "ignition.security.tls.certificateAuthorities.0.compression",
            json!({"ignition": {"security": {"tls": {"certificateAuthorities": [reference]}}}}),
        );
    }

    #[test]
    fn drops_values_equal_to_the_default() {
        use SpecVersion::{V3_0, V3_1, V3_2, V3_3, V3_4};
        means_nothing_in(V3_4, luks(json!({"cex": {"enabled": false}})), luks(json!({})));
        means_nothing_in(V3_3, luks(json!({"discard": false})), luks(json!({})));
        means_nothing_in(
            V3_2,
            luks(json!({"clevis": {"tpm2": true, "custom": {"needsNetwork": false}}})),
            luks(json!({"clevis": {"tpm2": true}})),
        );
        means_nothing_in(
            V3_1,
            json!({"passwd": {"users": [{"name": "a", "shouldExist": true}]}}),
            json!({"passwd": {"users": [{"name": "a"}]}}),
        );
        means_nothing_in(
            V3_1,
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1, "resize": false}]}]}}),
            json!({"storage": {"disks": [{"device": "/d", "partitions": [{"number": 1}]}]}}),
        );
        means_nothing_in(
            V3_0,
            json!({"ignition": {"config": {"replace": {"source": "http://a", "compression": ""}}}}),
            json!({"ignition": {"config": {"replace": {"source": "http://a"}}}}),
        );
    }

    #[test]
    fn no_error_shows_a_value() {
        let refused = express_value(file(json!({"source": "gs://hunter2/o"})), SpecVersion::V3_1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "storage.files.0.contents.source is not supported in spec 3.1.0: Google Cloud Storage came with spec 3.2.0"
        );
    }
}
