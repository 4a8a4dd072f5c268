//! A config for whoever may see what a node was told, and none of its secrets. What may be read is named here; all else, and so whatever a later
//! spec version brings, is replaced by its length and a digest that nobody can guess by who has not got the key.

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};

use super::data_url;

/// What may be read of what stands at a place.
enum Shows {
    /// A text, number or flag, as it is.
    Itself,
    /// Nothing but that it is there.
    Hidden,
    /// Of each entry of a list.
    Each(&'static Self),
    /// Of these members; of others not even their names.
    Members(&'static [(&'static str, Self)]),
}

use Shows::{Each, Hidden, Itself, Members};

const TEXTS: Shows = Each(&Itself);
const VERIFICATION: &str = "verification";
/// Everything that is fetched, or stands there as a `data:` URL.
const RESOURCE: Shows = Members(&[
    ("source", Hidden),
    ("compression", Itself),
    (VERIFICATION, Members(&[("hash", Itself)])),
    ("httpHeaders", Each(&Members(&[("name", Itself), ("value", Hidden)]))),
]);
const IGNITION: Shows = Members(&[
    ("version", Itself),
    (
        "config",
        Members(&[("merge", Each(&RESOURCE)), ("append", Each(&RESOURCE)), ("replace", RESOURCE)]),
    ),
    ("timeouts", Members(&[("httpResponseHeaders", Itself), ("httpTotal", Itself)])),
    (
        "security",
        Members(&[("tls", Members(&[("certificateAuthorities", Each(&RESOURCE))]))]),
    ),
    (
        "proxy",
        Members(&[("httpProxy", Hidden), ("httpsProxy", Hidden), ("noProxy", Hidden)]),
    ),
]);
const ARGUMENTS: Shows = Members(&[("shouldExist", Hidden), ("shouldNotExist", Hidden)]);

const USER: Shows = Members(&[
    ("name", Itself),
    ("passwordHash", Hidden),
    ("sshAuthorizedKeys", Hidden),
    ("uid", Itself),
    ("gecos", Hidden),
    ("homeDir", Itself),
    ("noCreateHome", Itself),
    ("primaryGroup", Itself),
    ("groups", TEXTS),
    ("noUserGroup", Itself),
    ("noLogInit", Itself),
    ("shell", Itself),
    ("shouldExist", Itself),
    ("system", Itself),
]);
const GROUP: Shows = Members(&[
    ("name", Itself),
    ("gid", Itself),
    ("passwordHash", Hidden),
    ("shouldExist", Itself),
    ("system", Itself),
]);
const PASSWD: Shows = Members(&[("users", Each(&USER)), ("groups", Each(&GROUP))]);

const OWNER: Shows = Members(&[("id", Itself), ("name", Itself)]);
const FILE: Shows = Members(&[
    ("filesystem", Itself),
    ("path", Itself),
    ("overwrite", Itself),
    ("user", OWNER),
    ("group", OWNER),
    ("mode", Itself),
    ("contents", RESOURCE),
    ("append", Each(&RESOURCE)),
]);
const DIRECTORY: Shows = Members(&[
    ("filesystem", Itself),
    ("path", Itself),
    ("overwrite", Itself),
    ("user", OWNER),
    ("group", OWNER),
    ("mode", Itself),
]);
const LINK: Shows = Members(&[
    ("filesystem", Itself),
    ("path", Itself),
    ("overwrite", Itself),
    ("user", OWNER),
    ("group", OWNER),
    ("hard", Itself),
    ("target", Itself),
]);
const PARTITION: Shows = Members(&[
    ("label", Itself),
    ("number", Itself),
    ("size", Itself),
    ("start", Itself),
    ("sizeMiB", Itself),
    ("startMiB", Itself),
    ("typeGuid", Itself),
    ("guid", Itself),
    ("wipePartitionEntry", Itself),
    ("shouldExist", Itself),
    ("resize", Itself),
]);
const DISK: Shows = Members(&[("device", Itself), ("wipeTable", Itself), ("partitions", Each(&PARTITION))]);
const RAID: Shows = Members(&[
    ("name", Itself),
    ("level", Itself),
    ("devices", TEXTS),
    ("spares", Itself),
    ("options", Hidden),
]);
const FILESYSTEM: Shows = Members(&[
    ("device", Itself),
    ("format", Itself),
    ("label", Itself),
    ("uuid", Itself),
    ("path", Itself),
    ("wipeFilesystem", Itself),
    ("options", Hidden),
    ("mountOptions", Hidden),
    // Spec 2.2.
    ("name", Itself),
    (
        "mount",
        Members(&[
            ("device", Itself),
            ("format", Itself),
            ("label", Itself),
            ("uuid", Itself),
            ("wipeFilesystem", Itself),
            ("options", Hidden),
        ]),
    ),
]);
const CLEVIS: Shows = Members(&[
    (
        "tang",
        Each(&Members(&[("url", Hidden), ("thumbprint", Hidden), ("advertisement", Hidden)])),
    ),
    ("tpm2", Itself),
    ("threshold", Itself),
    ("custom", Members(&[("pin", Itself), ("config", Hidden), ("needsNetwork", Itself)])),
]);
const LUKS: Shows = Members(&[
    ("name", Itself),
    ("device", Itself),
    ("label", Itself),
    ("uuid", Itself),
    ("wipeVolume", Itself),
    ("discard", Itself),
    ("options", Hidden),
    ("openOptions", Hidden),
    ("keyFile", RESOURCE),
    ("clevis", CLEVIS),
    ("cex", Members(&[("enabled", Itself)])),
]);
const STORAGE: Shows = Members(&[
    ("files", Each(&FILE)),
    ("directories", Each(&DIRECTORY)),
    ("links", Each(&LINK)),
    ("disks", Each(&DISK)),
    ("raid", Each(&RAID)),
    ("filesystems", Each(&FILESYSTEM)),
    ("luks", Each(&LUKS)),
]);

const DROPINS: Shows = Each(&Members(&[("name", Itself), ("contents", Hidden)]));
const UNIT: Shows = Members(&[
    ("name", Itself),
    ("enable", Itself),
    ("enabled", Itself),
    ("mask", Itself),
    ("contents", Hidden),
    ("dropins", DROPINS),
]);
const UNITS: Shows = Members(&[("units", Each(&UNIT))]);
const CONFIG: Shows = Members(&[
    ("ignition", IGNITION),
    ("kernelArguments", ARGUMENTS),
    ("passwd", PASSWD),
    ("storage", STORAGE),
    ("systemd", UNITS),
    ("networkd", UNITS),
]);

/// The config, of any spec version, with what may be read of it. What is hidden is an object in its place: `redacted` says of what (`data` that a
/// URL carries, `text`, or `json`), `bytes` how long that is, `hmac_sha256` its HMAC by the key. Hidden lists are lists of those.
#[must_use]
pub fn redacted(config: &Value, key: &hmac::Key) -> Value {
    shown(config, &CONFIG, key)
}

fn shown(value: &Value, shows: &Shows, key: &hmac::Key) -> Value {
    match (shows, value) {
        (Itself, Value::Bool(_) | Value::Number(_) | Value::String(_)) => value.clone(),
        (Each(shows), Value::Array(entries)) => entries.iter().map(|entry| shown(entry, shows, key)).collect(),
        (Members(known), Value::Object(members)) => Value::Object(members_shown(members, known, key)),
        _ => hidden(value, key),
    }
}

fn members_shown(members: &Map<String, Value>, known: &[(&str, Shows)], key: &hmac::Key) -> Map<String, Value> {
    // The hash of what stands beside it is a digest that can be guessed by.
    let source = members.get("source").and_then(Value::as_str).unwrap_or_default();
    let inline = source.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let member = |(name, value): (&String, &Value)| match known.iter().find(|(known, _)| known == name) {
        Some((VERIFICATION, _)) if inline => (name.clone(), hidden(value, key)),
        Some((_, shows)) => (name.clone(), shown(value, shows, key)),
        None => (format!("redacted-{}", digest(name.as_bytes(), key)), hidden(value, key)),
    };
    members.iter().map(member).collect()
}

fn hidden(value: &Value, key: &hmac::Key) -> Value {
    let (what, bytes) = match value {
        Value::Array(entries) => return entries.iter().map(|entry| hidden(entry, key)).collect(),
        Value::String(text) => match data_url::decode(text) {
            Some(data) => ("data", data),
            None => ("text", text.clone().into_bytes()),
        },
        value => ("json", value.to_string().into_bytes()),
    };
    json!({"redacted": what, "bytes": bytes.len(), "hmac_sha256": digest(&bytes, key)})
}

fn digest(bytes: &[u8], key: &hmac::Key) -> String {
    HEXLOWER.encode(hmac::sign(key, bytes).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
