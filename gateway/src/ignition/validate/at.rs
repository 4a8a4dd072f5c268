//! A value of a config, and where it stands.

use serde_json::{Map, Value};

use super::Invalid;

/// A place of a config, whether or not something is there.
pub(super) struct At<'a> {
    value: Option<&'a Value>,
    place: String,
}

impl<'a> At<'a> {
    /// A section: `storage`.
    pub(super) fn section(config: &'a Map<String, Value>, name: &str) -> Self {
        Self {
            value: config.get(name),
            place: name.to_owned(),
        }
    }

    pub(super) fn get(&self, field: &str) -> Self {
        Self {
            value: self.value.and_then(|value| value.get(field)),
            place: format!("{}.{field}", self.place),
        }
    }

    /// The entries of a list in it.
    pub(super) fn each(&self, field: &str) -> impl Iterator<Item = Self> + use<'a> {
        let place = format!("{}.{field}", self.place);
        let list = self.value.and_then(|value| value.get(field)).and_then(Value::as_array);
        list.into_iter().flatten().enumerate().map(move |(index, entry)| Self {
            value: Some(entry),
            place: format!("{place}.{index}"),
        })
    }

    pub(super) const fn is_set(&self) -> bool {
        self.value.is_some()
    }

    pub(super) fn is(&self, flag: bool) -> bool {
        self.value.and_then(Value::as_bool) == Some(flag)
    }

    pub(super) fn number(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    /// Its text, empty or not.
    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.and_then(Value::as_str)
    }

    /// Its text, empty if there is none. Ignition takes an empty text for none nearly everywhere.
    pub(super) fn words(&self) -> &'a str {
        self.text().unwrap_or_default()
    }

    /// Whether it has a text that says something.
    pub(super) fn says(&self) -> bool {
        !self.words().is_empty()
    }

    /// An [`Invalid`] unless something holds here.
    pub(super) fn must(&self, holds: bool, problem: &str) -> Result<(), Invalid> {
        if holds { Ok(()) } else { Err(self.refuse(problem)) }
    }

    pub(super) fn refuse(&self, problem: impl Into<String>) -> Invalid {
        Invalid {
            place: self.place.clone(),
            problem: problem.into(),
        }
    }
}
