//! Failures of a task that is tried again and again: which of them are logged.

use super::RequestCause;

/// The failure that was logged last, while it lasts.
#[derive(Debug, Default)]
pub struct FailureLog {
    logged: Option<RequestCause>,
}

impl FailureLog {
    /// Notes a failure, and returns whether it is to be logged: the first, and each with another cause.
    pub fn is_new(&mut self, cause: RequestCause) -> bool {
        self.logged.replace(cause.clone()) != Some(cause)
    }

    /// Notes that the task was done, and returns whether it had failed before.
    pub fn is_over(&mut self) -> bool {
        self.logged.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_for_each_cause() {
        let mut log = FailureLog::default();
        assert!(!log.is_over());
        assert!(log.is_new(RequestCause::Unavailable));
        assert!(!log.is_new(RequestCause::Unavailable));
        assert!(log.is_new(RequestCause::Refused(403)));
        assert!(log.is_over() && !log.is_over());
        assert!(log.is_new(RequestCause::Refused(403)));
    }
}
