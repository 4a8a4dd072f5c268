//! How the lists of a config are merged: what tells their entries apart. The rest of the schema is ignition-config's.

use std::borrow::Cow;

use serde_json::Value;

/// What becomes of two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListRule {
    /// One after the other.
    Append,
    /// Entries with the same key are one. Lists of a family know each other's keys: a path is a file, a directory or a link.
    ByKey(Key, Family),
}

/// What tells the entries of a list apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A field of the entry.
    Field(&'static str),
    /// The partition's number, or else its label.
    Partition,
    /// The entry is text.
    Itself,
}

/// The lists that share their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Family {
    /// Files, directories, links.
    Node,
    /// Kernel arguments that should exist, and that should not.
    KernelArgument,
    /// Only this list.
    Alone,
}

/// The rule for the list `field`; `texts` is whether its entries are texts.
pub(super) fn list_rule(field: &str, texts: bool) -> ListRule {
    use Family::{Alone, KernelArgument, Node};
    use Key::{Field, Itself, Partition};
    match field {
        "append" | "options" | "mountOptions" => ListRule::Append,
        "files" | "directories" | "links" => ListRule::ByKey(Field("path"), Node),
        "shouldExist" | "shouldNotExist" => ListRule::ByKey(Itself, KernelArgument),
        "disks" | "filesystems" => ListRule::ByKey(Field("device"), Alone),
        "partitions" => ListRule::ByKey(Partition, Alone),
        "merge" | "certificateAuthorities" => ListRule::ByKey(Field("source"), Alone),
        "tang" => ListRule::ByKey(Field("url"), Alone),
        // passwd.groups are objects, a user's groups are names.
        _ if texts => ListRule::ByKey(Itself, Alone),
        _ => ListRule::ByKey(Field("name"), Alone),
    }
}

impl Key {
    /// The entry's key. Entries without one share the empty key, as in Ignition.
    pub(super) fn of(self, entry: &Value) -> Cow<'_, str> {
        match self {
            Self::Itself => entry.as_str().unwrap_or_default().into(),
            Self::Field(name) => entry.get(name).and_then(Value::as_str).unwrap_or_default().into(),
            Self::Partition => match entry.get("number").and_then(Value::as_i64) {
                Some(number) if number != 0 => format!("number:{number}").into(),
                _ => match entry.get("label").and_then(Value::as_str) {
                    Some(label) => format!("label:{label}").into(),
                    None => "".into(),
                },
            },
        }
    }
}

/// The rule of a list as it stands in a config.
pub(super) fn rule_of(field: &str, list: &[Value]) -> ListRule {
    list_rule(field, list.first().is_some_and(Value::is_string))
}
