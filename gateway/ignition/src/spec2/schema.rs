//! Schema of a config of spec 2.2.

use serde_json::Value;

use super::NotTranslatable;

/// Type of a value in the schema.
pub(super) enum FieldShape {
    Text,
    Flag,
    Number,
    List(&'static Self),
    Fields(&'static [(&'static str, Self)]),
}

use FieldShape::{Fields, Flag, List, Number, Text};

const TEXTS: FieldShape = List(&Text);
const VERIFICATION: FieldShape = Fields(&[("hash", Text)]);
const REFERENCE: FieldShape = Fields(&[("source", Text), ("verification", VERIFICATION)]);
const OWNER: FieldShape = Fields(&[("id", Number), ("name", Text)]);
const DROPINS: FieldShape = List(&Fields(&[("name", Text), ("contents", Text)]));

const FILE: FieldShape = Fields(&[
    ("filesystem", Text),
    ("path", Text),
    ("overwrite", Flag),
    ("user", OWNER),
    ("group", OWNER),
    ("append", Flag),
    (
        "contents",
        Fields(&[("compression", Text), ("source", Text), ("verification", VERIFICATION)]),
    ),
    ("mode", Number),
]);
const DIRECTORY: FieldShape = Fields(&[
    ("filesystem", Text),
    ("path", Text),
    ("overwrite", Flag),
    ("user", OWNER),
    ("group", OWNER),
    ("mode", Number),
]);
const LINK: FieldShape = Fields(&[
    ("filesystem", Text),
    ("path", Text),
    ("overwrite", Flag),
    ("user", OWNER),
    ("group", OWNER),
    ("hard", Flag),
    ("target", Text),
]);
const DISK: FieldShape = Fields(&[
    ("device", Text),
    ("wipeTable", Flag),
    (
        "partitions",
        List(&Fields(&[
            ("label", Text),
            ("number", Number),
            ("size", Number),
            ("start", Number),
            ("typeGuid", Text),
            ("guid", Text),
        ])),
    ),
]);
const RAID: FieldShape = Fields(&[
    ("name", Text),
    ("level", Text),
    ("devices", TEXTS),
    ("spares", Number),
    ("options", TEXTS),
]);
const FILESYSTEM: FieldShape = Fields(&[
    ("name", Text),
    ("path", Text),
    (
        "mount",
        Fields(&[
            ("device", Text),
            ("format", Text),
            ("wipeFilesystem", Flag),
            ("label", Text),
            ("uuid", Text),
            ("options", TEXTS),
            ("create", Fields(&[("force", Flag), ("options", TEXTS)])),
        ]),
    ),
]);
const UNIT: FieldShape = Fields(&[
    ("name", Text),
    ("enable", Flag),
    ("enabled", Flag),
    ("mask", Flag),
    ("contents", Text),
    ("dropins", DROPINS),
]);
const USER: FieldShape = Fields(&[
    ("name", Text),
    ("passwordHash", Text),
    ("sshAuthorizedKeys", TEXTS),
    ("create", USER_CREATE),
    ("uid", Number),
    ("gecos", Text),
    ("homeDir", Text),
    ("noCreateHome", Flag),
    ("primaryGroup", Text),
    ("groups", TEXTS),
    ("noUserGroup", Flag),
    ("noLogInit", Flag),
    ("shell", Text),
    ("system", Flag),
]);
const USER_CREATE: FieldShape = Fields(&[
    ("uid", Number),
    ("gecos", Text),
    ("homeDir", Text),
    ("noCreateHome", Flag),
    ("primaryGroup", Text),
    ("groups", TEXTS),
    ("noUserGroup", Flag),
    ("noLogInit", Flag),
    ("shell", Text),
    ("system", Flag),
]);
const GROUP: FieldShape = Fields(&[("name", Text), ("gid", Number), ("passwordHash", Text), ("system", Flag)]);

pub(super) const CONFIG: FieldShape = Fields(&[
    (
        "ignition",
        Fields(&[
            ("version", Text),
            ("config", Fields(&[("append", List(&REFERENCE)), ("replace", REFERENCE)])),
            ("timeouts", Fields(&[("httpResponseHeaders", Number), ("httpTotal", Number)])),
            (
                "security",
                Fields(&[("tls", Fields(&[("certificateAuthorities", List(&REFERENCE))]))]),
            ),
        ]),
    ),
    (
        "storage",
        Fields(&[
            ("disks", List(&DISK)),
            ("raid", List(&RAID)),
            ("filesystems", List(&FILESYSTEM)),
            ("files", List(&FILE)),
            ("directories", List(&DIRECTORY)),
            ("links", List(&LINK)),
        ]),
    ),
    ("systemd", Fields(&[("units", List(&UNIT))])),
    (
        "networkd",
        Fields(&[("units", List(&Fields(&[("name", Text), ("contents", Text), ("dropins", DROPINS)])))]),
    ),
    ("passwd", Fields(&[("users", List(&USER)), ("groups", List(&GROUP))])),
]);

impl FieldShape {
    /// Checks a value at a place, and removes nulls, which stand for missing values.
    pub(super) fn check(&self, value: &mut Value, place: &str) -> Result<(), NotTranslatable> {
        let step = |step: &str| {
            if place.is_empty() {
                step.to_owned()
            } else {
                format!("{place}.{step}")
            }
        };
        let expected = match (self, value) {
            (Text, Value::String(_)) | (Flag, Value::Bool(_)) => return Ok(()),
            (Number, Value::Number(number)) if number.is_i64() => return Ok(()),
            (List(shape), Value::Array(entries)) => {
                let mut entries = entries.iter_mut().enumerate();
                return entries.try_for_each(|(index, entry)| shape.check(entry, &step(&index.to_string())));
            }
            (Fields(fields), Value::Object(values)) => {
                values.retain(|_, value| !value.is_null());
                for (name, value) in values {
                    let Some((_, shape)) = fields.iter().find(|(field, _)| field == name) else {
                        return Err(NotTranslatable {
                            place: step(name),
                            problem: "spec 2.2 does not support this key: a node would silently boot without it".to_owned(),
                        });
                    };
                    shape.check(value, &step(name))?;
                }
                return Ok(());
            }
            (Text, _) => "a text",
            (Flag, _) => "true or false",
            (Number, _) => "a whole number",
            (List(_), _) => "a list",
            (Fields(_), _) => "an object",
        };
        Err(NotTranslatable {
            place: if place.is_empty() { "$".to_owned() } else { place.to_owned() },
            problem: format!("{expected} is expected"),
        })
    }
}
