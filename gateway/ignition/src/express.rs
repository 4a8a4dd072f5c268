//! A config in the spec version that a node asks for.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

use super::config::{is_pruned, without_values};
use super::{Config, SpecVersion, spec2};

/// A config that an older spec version has no words for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} cannot be said in spec {version}: {problem}")]
pub struct Inexpressible {
    /// The version that was wanted.
    pub version: SpecVersion,
    pub place: String,
    /// What it has no words for.
    pub problem: String,
}

/// What becomes of a value in a version that does not know it.
#[derive(Clone, Copy)]
enum Verdict {
    /// The older version knows it too.
    Known,
    /// It says nothing that its absence does not say.
    Nothing,
    /// It says something.
    Unsaid,
}

/// Something that came with a version.
struct Feature {
    since: SpecVersion,
    /// `*` is each entry of a list.
    place: &'static str,
    judge: fn(&Value) -> Verdict,
    /// What it is, for an [`Inexpressible`].
    what: &'static str,
}

/// What came with each version, from Ignition's own list ("Migrating between configuration versions") and its schemas.
const FEATURES: &[Feature] = {
    use SpecVersion::{V3_1, V3_2, V3_3, V3_4, V3_5, V3_6};
    &[
        Feature::new(V3_6, "storage.files.*.mode", special_bits, "setuid, setgid and sticky bits"),
        Feature::new(V3_6, "storage.directories.*.mode", special_bits, "setuid, setgid and sticky bits"),
        Feature::new(V3_6, "storage.luks.*.clevis.custom.pin", any_pin, "pins besides tpm2, tang and sss"),
        Feature::new(V3_5, "storage.luks.*.cex", enabled, "keys on a Crypto Express card"),
        Feature::new(V3_4, "storage.luks.*.discard", if_true, "discard"),
        Feature::new(V3_4, "storage.luks.*.openOptions", always, "openOptions"),
        Feature::new(V3_4, "storage.luks.*.clevis.tang.*.advertisement", text, "advertisements"),
        Feature::new(V3_3, "kernelArguments", always, "kernel arguments"),
        Feature::new(V3_3, "storage.filesystems.*.format", none, "the format none"),
        Feature::new(V3_3, "storage.luks.*.clevis.custom", without_pin, ""),
        Feature::new(V3_2, "storage.luks", always, "LUKS devices"),
        Feature::new(V3_2, "passwd.users.*.shouldExist", if_false, "users that should not exist"),
        Feature::new(V3_2, "passwd.groups.*.shouldExist", if_false, "groups that should not exist"),
        Feature::new(V3_2, "storage.disks.*.partitions.*.resize", if_true, "resizing"),
        Feature::new(V3_1, "ignition.proxy", always, "proxies"),
        Feature::new(V3_1, "storage.filesystems.*.mountOptions", always, "mountOptions"),
        Feature::new(V3_1, "ignition.config.merge.*.compression", text, "compressed configs"),
        Feature::new(V3_1, "ignition.config.replace.compression", text, "compressed configs"),
        Feature::new(
            V3_1,
            "ignition.security.tls.certificateAuthorities.*.compression",
            text,
            "compressed certificates",
        ),
    ]
};

/// What came for everything that is fetched; the place is within one of [`RESOURCES`].
const RESOURCE_FEATURES: &[Feature] = &[
    Feature::new(SpecVersion::V3_4, "source", arn, "ARNs"),
    Feature::new(SpecVersion::V3_2, "source", google, "Google Cloud Storage"),
    Feature::new(SpecVersion::V3_1, "httpHeaders", always, "HTTP headers"),
    Feature::new(SpecVersion::V3_1, "verification.hash", sha256, "SHA-256"),
];

/// Everything that is fetched.
const RESOURCES: [&str; 6] = [
    "ignition.config.merge.*",
    "ignition.config.replace",
    "ignition.security.tls.certificateAuthorities.*",
    "storage.files.*.append.*",
    "storage.files.*.contents",
    "storage.luks.*.keyFile",
];

impl Config {
    /// The config as compact JSON of that spec version.
    ///
    /// # Errors
    /// [`Inexpressible`]: nothing is left out in silence.
    pub fn express(&self, version: SpecVersion) -> Result<Vec<u8>, Inexpressible> {
        let bytes = self.said(version)?;
        if version == SpecVersion::V2_2 {
            return Ok(bytes);
        }
        // What the table above should miss, the version's own schema finds.
        let refuse = |place: &str, problem: String| Inexpressible {
            version,
            place: place.to_owned(),
            problem,
        };
        match ignition_config::Config::parse_slice(&bytes) {
            Err(error) => Err(refuse("$", without_values(&error.to_string()))),
            Ok((_, warnings)) => match warnings.into_iter().next() {
                Some(ignition_config::Warning::UnusedKey(key)) => Err(refuse(&key, "there is no such key".to_owned())),
                Some(_) => Err(refuse("$", "something is unknown".to_owned())),
                None => Ok(bytes),
            },
        }
    }

    /// The same, not looked at by that version's schema: for whoever serves nobody with it.
    ///
    /// # Errors
    /// [`Inexpressible`].
    fn said(&self, version: SpecVersion) -> Result<Vec<u8>, Inexpressible> {
        let bytes = |config: Result<Vec<u8>, serde_json::Error>| {
            config.map_err(|error| Inexpressible {
                version,
                place: "$".to_owned(),
                problem: error.to_string(),
            })
        };
        if version == SpecVersion::V2_2 {
            let known = known_to(self, version)?;
            return bytes(serde_json::to_vec(&spec2::from_spec3(known.into_owned())?));
        }
        bytes(serde_json::to_vec(&self.in_version(version)?))
    }

    /// The same, to be written by others, in a version of spec 3.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn in_version(&self, version: SpecVersion) -> Result<InVersion<'_>, Inexpressible> {
        let mut config = known_to(self, version)?;
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

/// What such a config says of itself.
struct Ignition<'c>(&'c Map<String, Value>, SpecVersion);

impl Serialize for InVersion<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.config.len()))?;
        for (section, value) in self.config.as_ref() {
            match value {
                Value::Object(ignition) if section == "ignition" => map.serialize_entry(section, &Ignition(ignition, self.version))?,
                _ => map.serialize_entry(section, value)?,
            }
        }
        map.end()
    }
}

impl Serialize for Ignition<'_> {
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

/// The config without what says nothing, if that version knows the rest. Spec 2.2 knows less than 3.0 of each thing.
pub(super) fn known_to(config: &Config, version: SpecVersion) -> Result<Cow<'_, Map<String, Value>>, Inexpressible> {
    let mut says_nothing = Vec::new();
    for (feature, place) in newer_than(version) {
        let found = feature.look(config.value(), &place);
        let found = found.map_err(|place| Inexpressible {
            version,
            place,
            problem: format!("{} came with spec {}", feature.what, feature.since),
        });
        if found? {
            says_nothing.push((feature, place));
        }
    }
    if says_nothing.is_empty() {
        return Ok(Cow::Borrowed(config.value()));
    }
    let mut value = Value::Object(config.value().clone());
    for (feature, place) in says_nothing {
        feature.take_out(&mut value, &place);
    }
    match value {
        Value::Object(config) => Ok(Cow::Owned(config)),
        _ => Ok(Cow::Owned(Map::new())),
    }
}

/// What that version does not know, and the steps to each of its places.
fn newer_than(version: SpecVersion) -> impl Iterator<Item = (&'static Feature, Vec<&'static str>)> {
    let newer = move |feature: &&Feature| feature.since > version;
    let plain = FEATURES.iter().filter(newer);
    let of_resources = RESOURCE_FEATURES.iter().filter(newer).flat_map(|feature| {
        let places = RESOURCES.into_iter();
        places.map(move |resource| (feature, resource.split('.').chain(feature.place.split('.')).collect()))
    });
    plain
        .map(|feature| (feature, feature.place.split('.').collect()))
        .chain(of_resources)
}

impl Feature {
    const fn new(since: SpecVersion, place: &'static str, judge: fn(&Value) -> Verdict, what: &'static str) -> Self {
        Self { since, place, judge, what }
    }

    /// Whether something is there that says nothing. The error is the place of what says something.
    fn look(&self, fields: &Map<String, Value>, steps: &[&str]) -> Result<bool, String> {
        let [field, rest @ ..] = steps else { return Ok(false) };
        let Some(value) = fields.get(*field) else { return Ok(false) };
        if !rest.is_empty() {
            return self.look_into(value, rest).map_err(|place| format!("{field}.{place}"));
        }
        match (self.judge)(value) {
            Verdict::Known => Ok(false),
            Verdict::Nothing => Ok(true),
            Verdict::Unsaid => Err((*field).to_owned()),
        }
    }

    fn look_into(&self, value: &Value, steps: &[&str]) -> Result<bool, String> {
        match (steps, value) {
            (["*", rest @ ..], Value::Array(entries)) => {
                let mut found = false;
                for (index, entry) in entries.iter().enumerate() {
                    found |= self.look_into(entry, rest).map_err(|place| format!("{index}.{place}"))?;
                }
                Ok(found)
            }
            (_, Value::Object(fields)) => self.look(fields, steps),
            _ => Ok(false),
        }
    }

    /// Takes out what says nothing.
    fn take_out(&self, value: &mut Value, steps: &[&str]) {
        match (steps, value) {
            (["*", rest @ ..], Value::Array(entries)) => entries.iter_mut().for_each(|entry| self.take_out(entry, rest)),
            ([last], Value::Object(fields)) => {
                fields.retain(|field, value| field != last || !matches!((self.judge)(value), Verdict::Nothing));
            }
            ([field, rest @ ..], Value::Object(fields)) => {
                if let Some(value) = fields.get_mut(*field) {
                    self.take_out(value, rest);
                }
            }
            _ => {}
        }
    }
}

const fn nothing_unless(said: bool) -> Verdict {
    if said { Verdict::Unsaid } else { Verdict::Nothing }
}

const fn known_unless(new: bool) -> Verdict {
    if new { Verdict::Unsaid } else { Verdict::Known }
}

const fn always(_: &Value) -> Verdict {
    Verdict::Unsaid
}

fn text(value: &Value) -> Verdict {
    nothing_unless(value.as_str() != Some(""))
}

fn if_true(value: &Value) -> Verdict {
    nothing_unless(value.as_bool() != Some(false))
}

fn if_false(value: &Value) -> Verdict {
    nothing_unless(value.as_bool() != Some(true))
}

fn enabled(value: &Value) -> Verdict {
    value.get("enabled").map_or(Verdict::Nothing, if_true)
}

fn special_bits(value: &Value) -> Verdict {
    known_unless(value.as_i64().is_none_or(|mode| mode & !0o777 != 0))
}

fn any_pin(value: &Value) -> Verdict {
    known_unless(!matches!(value.as_str(), Some("" | "tpm2" | "tang" | "sss")))
}

/// In spec 3.2 a custom pin that is there must be complete.
fn without_pin(value: &Value) -> Verdict {
    let pinned = value.get("pin").and_then(Value::as_str).is_some_and(|pin| !pin.is_empty());
    if pinned { Verdict::Known } else { Verdict::Nothing }
}

fn none(value: &Value) -> Verdict {
    known_unless(value.as_str() == Some("none"))
}

fn arn(value: &Value) -> Verdict {
    known_unless(has_scheme(value, "arn"))
}

fn google(value: &Value) -> Verdict {
    known_unless(has_scheme(value, "gs"))
}

fn sha256(value: &Value) -> Verdict {
    known_unless(value.as_str().is_none_or(|hash| !hash.starts_with("sha512-")))
}

fn has_scheme(url: &Value, scheme: &str) -> bool {
    url.as_str()
        .and_then(|url| url.split_once(':'))
        .is_some_and(|(found, _)| found.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(mut value: Value) -> Config {
        value["ignition"]["version"] = "3.6.0".into();
        Config::from_value(value).unwrap()
    }

    fn said(value: Value, version: SpecVersion) -> Result<Value, Inexpressible> {
        config(value).express(version).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    /// The version that it came with can say it, the one before cannot, and names the place.
    #[track_caller]
    fn came_with(version: SpecVersion, place: &str, value: Value) {
        let mut expected = value.clone();
        expected["ignition"]["version"] = version.as_str().into();
        assert_eq!(said(value.clone(), version).unwrap(), expected);
        let before = SpecVersion::ALL.into_iter().rfind(|other| *other < version).unwrap();
        let refused = said(value, before).unwrap_err();
        assert_eq!((refused.version, refused.place.as_str()), (before, place));
    }

    /// In that version it says nothing.
    #[track_caller]
    fn means_nothing_in(version: SpecVersion, value: Value, rest: Value) {
        let mut rest = rest;
        rest["ignition"]["version"] = version.as_str().into();
        assert_eq!(said(value, version).unwrap(), rest);
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
    fn what_everyone_knows_stays() {
        let plain = json!({"storage": {"files": [{"path": "/a", "mode": 420, "overwrite": true, "contents": {"source": "data:,a"}}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "[Unit]\n"}]}});
        for version in SpecVersion::ALL.into_iter().skip(1) {
            means_nothing_in(version, plain.clone(), plain.clone());
        }
    }

    #[test]
    fn each_feature_has_its_version() {
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
    fn what_says_nothing_is_dropped() {
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
        let refused = said(file(json!({"source": "gs://hunter2/o"})), SpecVersion::V3_1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "storage.files.0.contents.source cannot be said in spec 3.1.0: Google Cloud Storage came with spec 3.2.0"
        );
    }
}
