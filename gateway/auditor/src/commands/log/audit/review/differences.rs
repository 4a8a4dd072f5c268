//! Facts of a line that are not as they must be.

/// Facts that are not as they must be, with both values.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) messages: Vec<String>,
    /// Facts that may be right, but cannot be told from a log.
    pub(super) warnings: Vec<String>,
}

impl Differences {
    pub(super) fn add(&mut self, what: impl Into<String>) {
        self.messages.push(what.into());
    }

    pub(super) fn warn(&mut self, what: impl Into<String>) {
        self.warnings.push(what.into());
    }

    pub(super) fn same<T: PartialEq + std::fmt::Debug>(&mut self, field: &str, recorded: &T, expected: &T) {
        if recorded != expected {
            self.add(format!("{field} is {recorded:?}, but must be {expected:?}"));
        }
    }

    pub(super) fn absent<T>(&mut self, field: &str, recorded: Option<&T>) {
        if recorded.is_some() {
            self.add(format!("{field} does not belong there"));
        }
    }

    pub(super) fn check_present<T>(&mut self, field: &str, recorded: Option<&T>) {
        if recorded.is_none() {
            self.add(format!("{field} is missing"));
        }
    }
}
