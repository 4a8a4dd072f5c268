//! Log lines about a background task that is retried: one when it fails, one when it succeeds again.

use std::fmt::Display;

/// The state of one background task, as far as it was logged.
#[derive(Debug)]
pub(super) struct TaskLog {
    task: &'static str,
    is_failing: bool,
}

impl TaskLog {
    /// Returns the log of a task, named by an infinitive: "forget expired tokens".
    pub(super) const fn new(task: &'static str) -> Self {
        Self { task, is_failing: false }
    }

    /// Logs the first failure of several, and the first success after it. Returns the value of a success.
    pub(super) fn note<T>(&mut self, result: Result<T, impl Display>) -> Option<T> {
        match result {
            Ok(value) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(task = self.task, "background task succeeded after a failure");
                }
                Some(value)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(task = self.task, %error, "background task failed, retrying; its next failures are not logged");
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_of_a_success_and_remembers_a_failure() {
        let mut log = TaskLog::new("test");
        assert_eq!(log.note(Ok::<_, String>(1)), Some(1));
        assert!(!log.is_failing);
        for _ in 0..2 {
            assert_eq!(log.note(Err::<u8, _>("away")), None);
            assert!(log.is_failing);
        }
        assert_eq!(log.note(Ok::<_, String>(2)), Some(2));
        assert!(!log.is_failing);
    }
}
