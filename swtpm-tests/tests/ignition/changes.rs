//! Changes that may make a config invalid.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value};

/// Texts that are right in some places, and wrong in others.
#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "", "a", "/", "//", "/a/", "/a/../b", "/a/.", "a/b", "/d/e", "a:b", "gzip", "xz", "none", "zfs", "raid0", "stripe", "raid7",
    "tang", "pkcs11", "a.service", "a.conf", "a.service.", "service", "a.", ".mount", "b/c.timer", "[Unit", "[Unit] x", "[Unit]\nA",
    "[Unit]\nA=b\\", "ftp://h/", "oem:///x", "HTTP://h/", "http:h", "http://h:x/", "http://h/%zz", "http://h/?%zz", "http://[::1",
    "http://[::1]:80/", "http://a b/", "http://u:p@h/", "gs://b/o", "s3://b/o?versionId=", "arn:aws:s3:::b/o", "data:", "data:,",
    "data:,%", "data:,a b", "data:text/plain,a", "data:foo/bar,a", "data:text,a", "data:;charset=a;base64,YQ==", "data:;base64,YQ",
    "data:;base65,YQ==", "data:a", "DATA:,a", "://", "sha512-00", "sha256-00", "sha1-", "sha512",
    "01234567-89AB-CDEF-EDCB-A9876543210g",
];
/// Lengths near the longest labels.
const LONG: &[usize] = &[11, 12, 13, 15, 16, 17, 36, 37, 47, 48, 256, 257];
/// Hash functions with right and wrong lengths of the sum.
const HASHES: &[(&str, usize)] = &[("sha256", 64), ("sha512", 128), ("sha256", 63), ("sha512", 64), ("sha1", 40)];

/// Change of one value, anywhere in a config, that makes most configs invalid.
#[derive(Debug, Clone)]
pub struct Change {
    place: Index,
    text: String,
    number: i64,
    list: bool,
    remove: bool,
}

/// Returns a strategy for all changes.
pub fn change() -> impl Strategy<Value = Change> {
    let text = prop_oneof![
        8 => select(TEXTS).prop_map(str::to_owned),
        1 => select(LONG).prop_map(|length| "l".repeat(length)),
        1 => select(HASHES)
            .prop_map(|(function, length)| format!("{function}-{}", "0".repeat(length))),
    ];
    let number = select(&[-1, 0, 1, 2, 50, 100, 0o777, 0o7777, 0o10000, 100_000][..]);
    (
        any::<Index>(),
        text,
        number,
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(place, text, number, list, remove)| Change {
            place,
            text,
            number,
            list,
            remove,
        })
}

impl Change {
    /// Makes the change, if there is anything to change.
    pub fn make(&self, config: &mut Value) {
        let mut places = Vec::new();
        // Not the version: it decides which rules there are.
        for (section, value) in config.as_object().unwrap() {
            walk(value, &format!("/{section}"), self.list, &mut places);
        }
        places.retain(|place| place != "/ignition/version");
        if places.is_empty() {
            return;
        }
        let place = self.place.get(&places);
        let (parent, field) = place.rsplit_once('/').unwrap();
        // Names are required by the schema that we read with; Ignition takes a user, a group or an array without one.
        if self.remove && field != "name" {
            if let Some(Value::Object(fields)) = config.pointer_mut(parent) {
                fields.remove(field);
            }
            return;
        }
        match config.pointer_mut(place).unwrap() {
            Value::String(text) => text.clone_from(&self.text),
            Value::Number(number) => *number = self.number.into(),
            Value::Bool(flag) => *flag = !*flag,
            Value::Array(entries) => {
                // An entry that is there twice.
                let again = entries.first().cloned();
                entries.extend(again);
            }
            Value::Object(_) | Value::Null => {}
        }
    }
}

/// Collects the JSON pointers to all lists, or to all other values that are not objects.
fn walk(value: &Value, place: &str, lists: bool, places: &mut Vec<String>) {
    let fields = |fields: &Map<String, Value>, places: &mut Vec<String>| {
        for (name, value) in fields {
            walk(value, &format!("{place}/{name}"), lists, places);
        }
    };
    match value {
        Value::Object(object) => fields(object, places),
        Value::Array(entries) => {
            if lists {
                places.push(place.to_owned());
            }
            for (index, entry) in entries.iter().enumerate() {
                walk(entry, &format!("{place}/{index}"), lists, places);
            }
        }
        _ if !lists => places.push(place.to_owned()),
        _ => {}
    }
}
