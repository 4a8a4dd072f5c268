//! Rules for merging the lists of a config: the keys that identify their entries. The rest of the schema is that of `ignition-config`.

use std::borrow::Cow;

use serde_json::Value;

/// Rule for merging two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListRule {
    /// The entries of one after those of the other.
    Append,
    /// Entries with the same key are one. Lists of a family know each other's keys: a path is a file, a directory or a link.
    ByKey(ListKey, Family),
}

/// Key that identifies the entries of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKey {
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
    Node,
    /// Kernel arguments that should exist, and that should not.
    KernelArgument,
    Alone,
}

/// Returns the rule for the list `field`; `texts` is `true` if its entries are texts.
pub(super) fn list_rule(field: &str, texts: bool) -> ListRule {
    use Family::{Alone, KernelArgument, Node};
    use ListKey::{Field, Itself, Partition};
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

impl ListKey {
    /// Returns the entry's key. Entries without one share the empty key, like in Ignition.
    pub(super) fn key(self, entry: &Value) -> Cow<'_, str> {
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

/// Returns the rule for a list of a config.
pub(super) fn rule_of(field: &str, list: &[Value]) -> ListRule {
    list_rule(field, list.first().is_some_and(Value::is_string))
}
