//! Label and field selectors.

use serde_json::Value;

use super::kinds::ResourceKind;
use super::status::ApiStatus;

/// Returns whether objects of a kind can be selected by a field. Some fields exist only for certificate signing requests
/// (`pkg/apis/certificates/v1/conversion.go`, kubernetes/kubernetes at 736e3b6), and for events and Secrets
/// (`pkg/apis/core/v1/conversion.go`).
fn is_selectable(kind: ResourceKind, field: &str) -> bool {
    match (kind.kind, field) {
        (_, "metadata.name") => true,
        (_, "metadata.namespace") => kind.namespaced,
        ("CertificateSigningRequest", "spec.signerName") | ("Secret", "type") => true,
        ("Event", field) => field == "type" || field.starts_with("involvedObject."),
        _ => false,
    }
}

/// Conditions on labels and fields.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectSelector {
    labels: Vec<LabelRequirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Debug, Clone)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl ObjectSelector {
    /// Parses `labelSelector` and `fieldSelector`.
    pub(super) fn parse(kind: ResourceKind, labels: &str, fields: &str) -> Result<Self, ApiStatus> {
        let parts = |text: &str| -> Vec<String> { split(text).into_iter().filter(|part| !part.is_empty()).collect() };
        let labels = parts(labels).iter().map(|part| requirement(part)).collect::<Option<_>>();
        let field = |part: &String| {
            let (name, equal, value) = part
                .split_once("!=")
                .map(|(name, value)| (name, false, value))
                .or_else(|| part.split_once('=').map(|(name, value)| (name, true, value)))?;
            is_selectable(kind, name).then(|| (name.to_owned(), equal, value.trim_start_matches('=').to_owned()))
        };
        let fields = parts(fields).iter().map(field).collect::<Option<_>>();
        match (labels, fields) {
            (Some(labels), Some(fields)) => Ok(Self { labels, fields }),
            _ => Err(ApiStatus::bad_request(
                "unable to parse the selector, or a field of it is not supported",
            )),
        }
    }

    /// Returns whether every object is selected.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let holds = |requirement: &LabelRequirement| match requirement {
            LabelRequirement::In(name, values) => label(name).is_some_and(|label| values.iter().any(|value| value == label)),
            LabelRequirement::NotIn(name, values) => label(name).is_none_or(|label| values.iter().all(|value| value != label)),
            LabelRequirement::Exists(name) => label(name).is_some(),
            LabelRequirement::Missing(name) => label(name).is_none(),
        };
        let field = |(name, equal, value): &(String, bool, String)| {
            let pointer = format!("/{}", name.replace('.', "/"));
            let found = object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
            (found == value) == *equal
        };
        self.labels.iter().all(holds) && self.fields.iter().all(field)
    }
}

/// Splits a text at commas, but not at those in brackets.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut inside = false;
    for letter in text.chars() {
        match letter {
            ',' if !inside => parts.push(String::new()),
            _ => {
                inside = if letter == '(' { true } else { inside && letter != ')' };
                parts.last_mut().unwrap().push(letter);
            }
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

fn requirement(part: &str) -> Option<LabelRequirement> {
    let set = |values: &str| -> Option<Vec<String>> {
        let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(values.split(',').map(|value| value.trim().to_owned()).collect())
    };
    let one = |value: &str| vec![value.trim().trim_start_matches('=').to_owned()];
    if let Some((name, values)) = part.split_once(" notin ") {
        return Some(LabelRequirement::NotIn(name.trim().to_owned(), set(values)?));
    }
    if let Some((name, values)) = part.split_once(" in ") {
        return Some(LabelRequirement::In(name.trim().to_owned(), set(values)?));
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Some(LabelRequirement::NotIn(name.trim().to_owned(), one(value)));
    }
    if let Some((name, value)) = part.split_once('=') {
        return Some(LabelRequirement::In(name.trim().to_owned(), one(value)));
    }
    match part.strip_prefix('!') {
        Some(name) => Some(LabelRequirement::Missing(name.trim().to_owned())),
        None if part.contains(char::is_whitespace) => None,
        None => Some(LabelRequirement::Exists(part.to_owned())),
    }
}
