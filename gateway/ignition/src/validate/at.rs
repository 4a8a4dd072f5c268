//! A value of a config, and its place.

use serde_json::{Map, Value};

use super::Invalid;

/// Maximum number of steps to any place: `storage.files.0.append.0.httpHeaders.0.name` has eight.
const STEPS_LIMIT: usize = 10;

/// A place of a config, whether or not it has a value. Its name is only formatted for a problem.
pub(super) struct At<'a> {
    value: Option<&'a Value>,
    steps: [PathSegment; STEPS_LIMIT],
}

#[derive(Clone, Copy)]
enum PathSegment {
    Field(&'static str),
    Entry(usize),
    Nowhere,
}

impl<'a> At<'a> {
    /// Returns the place of a top-level section, such as `storage`.
    pub(super) fn section(config: &'a Map<String, Value>, name: &'static str) -> Self {
        let nowhere = Self {
            value: config.get(name),
            steps: [PathSegment::Nowhere; STEPS_LIMIT],
        };
        nowhere.at(PathSegment::Field(name), config.get(name))
    }

    pub(super) fn get(&self, field: &'static str) -> Self {
        self.at(PathSegment::Field(field), self.value.and_then(|value| value.get(field)))
    }

    /// Returns a place within this one.
    fn at(&self, step: PathSegment, value: Option<&'a Value>) -> Self {
        let mut steps = self.steps;
        if let Some(free) = steps.iter_mut().find(|step| matches!(step, PathSegment::Nowhere)) {
            *free = step;
        }
        Self { value, steps }
    }

    /// Returns the entries of a list in it.
    pub(super) fn each(&self, field: &'static str) -> impl Iterator<Item = Self> + use<'a> {
        let list = self.get(field);
        let entries = list.value.and_then(Value::as_array);
        entries
            .into_iter()
            .flatten()
            .enumerate()
            .map(move |(index, entry)| list.at(PathSegment::Entry(index), Some(entry)))
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

    /// Returns its text, empty if it has none. Nearly everywhere, Ignition treats an empty text like a missing one.
    pub(super) fn text_or_empty(&self) -> &'a str {
        self.text().unwrap_or_default()
    }

    /// Returns whether it has a text that is not empty.
    pub(super) fn says(&self) -> bool {
        !self.text_or_empty().is_empty()
    }

    /// Returns an [`Invalid`] unless the condition holds.
    pub(super) fn must(&self, holds: bool, problem: &str) -> Result<(), Invalid> {
        if holds { Ok(()) } else { Err(self.refuse(problem)) }
    }

    fn place(&self) -> String {
        let words = self.steps.iter().map_while(|step| match step {
            PathSegment::Field(name) => Some((*name).to_owned()),
            PathSegment::Entry(index) => Some(index.to_string()),
            PathSegment::Nowhere => None,
        });
        words.collect::<Vec<_>>().join(".")
    }

    pub(super) fn refuse(&self, problem: impl Into<String>) -> Invalid {
        Invalid {
            place: self.place(),
            problem: problem.into(),
        }
    }
}
