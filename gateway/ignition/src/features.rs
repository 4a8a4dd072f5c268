//! Features of configs, by the spec version that they came with.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{Config, SpecVersion};

/// A config that an older spec version cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} is not supported in spec {version}: {problem}")]
pub struct Inexpressible {
    pub version: SpecVersion,
    pub place: String,
    /// The feature that the version lacks.
    pub problem: String,
}

/// The judgement of a value for a version that lacks its feature.
#[derive(Clone, Copy)]
enum FeatureVerdict {
    /// The older version knows this value too.
    Known,
    /// The value means the same as its absence.
    Nothing,
    /// The value means something that the older version cannot express.
    Unsaid,
}

/// A feature of configs that came with a version.
struct Feature {
    since: SpecVersion,
    /// Path of the field; `*` is each entry of a list.
    place: &'static str,
    judge: fn(&Value) -> FeatureVerdict,
    /// The feature's name in an [`Inexpressible`].
    what: &'static str,
}

/// The features of each version, from Ignition's own list ("Migrating between configuration versions") and its schemas.
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

/// The features of fetched resources; each place is within one of [`RESOURCES`].
const RESOURCE_FEATURES: &[Feature] = &[
    Feature::new(SpecVersion::V3_4, "source", arn, "ARNs"),
    Feature::new(SpecVersion::V3_2, "source", google, "Google Cloud Storage"),
    Feature::new(SpecVersion::V3_1, "httpHeaders", always, "HTTP headers"),
    Feature::new(SpecVersion::V3_1, "verification.hash", sha256, "SHA-256"),
];

/// The places of fetched resources in a config.
const RESOURCES: [&str; 6] = [
    "ignition.config.merge.*",
    "ignition.config.replace",
    "ignition.security.tls.certificateAuthorities.*",
    "storage.files.*.append.*",
    "storage.files.*.contents",
    "storage.luks.*.keyFile",
];

/// Returns the config without values that mean the same as their absence, if that version knows all others. Spec 2.2 has no feature that 3.0 lacks.
pub(super) fn drop_defaults(config: &Config, version: SpecVersion) -> Result<Cow<'_, Map<String, Value>>, Inexpressible> {
    let mut says_nothing = Vec::new();
    for (feature, place) in newer_than(version) {
        let found = feature.check_default(config.value(), &place);
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

/// Returns the features that came after a version, each with the steps to its place.
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
    const fn new(since: SpecVersion, place: &'static str, judge: fn(&Value) -> FeatureVerdict, what: &'static str) -> Self {
        Self { since, place, judge, what }
    }

    /// Returns whether a value is there that means the same as its absence. The error is the place of a value that means something.
    fn check_default(&self, fields: &Map<String, Value>, steps: &[&str]) -> Result<bool, String> {
        let [field, rest @ ..] = steps else { return Ok(false) };
        let Some(value) = fields.get(*field) else { return Ok(false) };
        if !rest.is_empty() {
            return self.check_default_in(value, rest).map_err(|place| format!("{field}.{place}"));
        }
        match (self.judge)(value) {
            FeatureVerdict::Known => Ok(false),
            FeatureVerdict::Nothing => Ok(true),
            FeatureVerdict::Unsaid => Err((*field).to_owned()),
        }
    }

    fn check_default_in(&self, value: &Value, steps: &[&str]) -> Result<bool, String> {
        match (steps, value) {
            (["*", rest @ ..], Value::Array(entries)) => {
                let mut found = false;
                for (index, entry) in entries.iter().enumerate() {
                    found |= self.check_default_in(entry, rest).map_err(|place| format!("{index}.{place}"))?;
                }
                Ok(found)
            }
            (_, Value::Object(fields)) => self.check_default(fields, steps),
            _ => Ok(false),
        }
    }

    /// Removes values that mean the same as their absence.
    fn take_out(&self, value: &mut Value, steps: &[&str]) {
        match (steps, value) {
            (["*", rest @ ..], Value::Array(entries)) => entries.iter_mut().for_each(|entry| self.take_out(entry, rest)),
            ([last], Value::Object(fields)) => {
                fields.retain(|field, value| field != last || !matches!((self.judge)(value), FeatureVerdict::Nothing));
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

const fn nothing_unless(said: bool) -> FeatureVerdict {
    if said { FeatureVerdict::Unsaid } else { FeatureVerdict::Nothing }
}

const fn known_unless(new: bool) -> FeatureVerdict {
    if new { FeatureVerdict::Unsaid } else { FeatureVerdict::Known }
}

const fn always(_: &Value) -> FeatureVerdict {
    FeatureVerdict::Unsaid
}

fn text(value: &Value) -> FeatureVerdict {
    nothing_unless(value.as_str() != Some(""))
}

fn if_true(value: &Value) -> FeatureVerdict {
    nothing_unless(value.as_bool() != Some(false))
}

fn if_false(value: &Value) -> FeatureVerdict {
    nothing_unless(value.as_bool() != Some(true))
}

fn enabled(value: &Value) -> FeatureVerdict {
    value.get("enabled").map_or(FeatureVerdict::Nothing, if_true)
}

fn special_bits(value: &Value) -> FeatureVerdict {
    known_unless(value.as_i64().is_none_or(|mode| mode & !0o777 != 0))
}

fn any_pin(value: &Value) -> FeatureVerdict {
    known_unless(!matches!(value.as_str(), Some("" | "tpm2" | "tang" | "sss")))
}

/// Judges a custom pin: in spec 3.2 one that is there must be complete.
fn without_pin(value: &Value) -> FeatureVerdict {
    let pinned = value.get("pin").and_then(Value::as_str).is_some_and(|pin| !pin.is_empty());
    if pinned { FeatureVerdict::Known } else { FeatureVerdict::Nothing }
}

fn none(value: &Value) -> FeatureVerdict {
    known_unless(value.as_str() == Some("none"))
}

fn arn(value: &Value) -> FeatureVerdict {
    known_unless(has_scheme(value, "arn"))
}

fn google(value: &Value) -> FeatureVerdict {
    known_unless(has_scheme(value, "gs"))
}

fn sha256(value: &Value) -> FeatureVerdict {
    known_unless(value.as_str().is_none_or(|hash| !hash.starts_with("sha512-")))
}

fn has_scheme(url: &Value, scheme: &str) -> bool {
    url.as_str()
        .and_then(|url| url.split_once(':'))
        .is_some_and(|(found, _)| found.eq_ignore_ascii_case(scheme))
}
