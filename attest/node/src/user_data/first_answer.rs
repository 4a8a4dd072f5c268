//! Several sources of user data at once: the first that answers counts, also if it has none, as in Ignition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::deadline::Deadline;

use super::{UserData, UserDataError};

/// Time reserved for the answers of sources that wait until the deadline.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// A source of user data, which is asked in a thread of its own.
pub type UserDataSource = Box<dyn FnOnce(&SourceWait) -> Result<UserData, UserDataError> + Send>;

/// The time that a source has: until a deadline, or until another source answers.
#[derive(Debug, Clone)]
pub struct SourceWait {
    pub deadline: Deadline,
    answered: Arc<AtomicBool>,
}

impl SourceWait {
    /// Creates a wait until this deadline.
    #[must_use]
    pub fn until(deadline: Deadline) -> Self {
        Self {
            deadline,
            answered: Arc::default(),
        }
    }

    /// Sleeps for this time. Returns `false` instead once the wait is over.
    #[must_use]
    pub fn sleep(&self, pause: Duration) -> bool {
        let goes_on = !self.answered.load(Ordering::Relaxed) && self.deadline.remaining() > pause;
        if goes_on {
            thread::sleep(pause);
        }
        goes_on && !self.answered.load(Ordering::Relaxed)
    }
}

/// Asks all sources at once, and returns the first answer.
///
/// # Errors
/// If no source answers, an error of one of them: that of a source that is there comes before that of a missing one.
pub fn first_answer(sources: Vec<UserDataSource>, deadline: Deadline) -> Result<UserData, UserDataError> {
    let wait = SourceWait::until(deadline.before(AFTERWARDS));
    let (sender, receiver) = mpsc::channel();
    for source in sources {
        let (sender, wait) = (sender.clone(), wait.clone());
        let started = thread::Builder::new().name("user-data".to_owned()).spawn(move || {
            // Nobody waits for a second answer.
            let _ = sender.send(source(&wait));
        });
        started.map_err(|error| UserDataError::Thread(error.to_string()))?;
    }
    drop(sender);
    let mut failed = None;
    let found = loop {
        match receiver.recv_timeout(deadline.remaining()) {
            Ok(Ok(found)) => break Some(found),
            Ok(Err(error)) => {
                if matches!(failed, None | Some(UserDataError::NoDrive { .. })) {
                    failed = Some(error);
                }
            }
            // All have failed, or one does not come back.
            Err(_) => break None,
        }
    };
    wait.answered.store(true, Ordering::Relaxed);
    match (found, failed) {
        (Some(found), _) => Ok(found),
        (None, Some(error)) => Err(error),
        (None, None) => Err(UserDataError::Unanswered),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Instant;

    use zeroize::Zeroizing;

    use super::*;

    const LABEL: &str = "config-2";

    fn long() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    fn says(text: &'static str) -> UserDataSource {
        Box::new(move |_| Ok(Some(Zeroizing::new(text.as_bytes().to_vec()))))
    }

    fn fails(error: UserDataError) -> UserDataSource {
        Box::new(move |_| Err(error))
    }

    /// A drive that never appears.
    fn waits() -> UserDataSource {
        Box::new(|wait| {
            while wait.sleep(Duration::from_millis(20)) {}
            Err(UserDataError::NoDrive { label: LABEL })
        })
    }

    /// A server that never answers, or a drive that does not let go of its reader.
    fn hangs() -> UserDataSource {
        Box::new(|_| {
            loop {
                thread::park();
            }
        })
    }

    fn broken() -> UserDataError {
        UserDataError::Drive {
            label: LABEL,
            problem: "wrong fs type".to_owned(),
        }
    }

    fn check(sources: Vec<UserDataSource>, deadline: Deadline, expect: Result<Option<&str>, UserDataError>) {
        let found = first_answer(sources, deadline).map(|found| found.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()));
        assert_eq!(found, expect.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn first_answer_counts_whatever_the_others_do() {
        let before = Instant::now();
        check(vec![hangs(), waits(), says("{}")], long(), Ok(Some("{}")));
        check(vec![fails(broken()), says("{}"), waits()], long(), Ok(Some("{}")));
        // To have no user data is an answer.
        check(vec![waits(), Box::new(|_| Ok(None))], long(), Ok(None));
        assert!(before.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn sources_without_an_answer_are_an_error() {
        let short = || Deadline::after(Duration::from_secs(1));
        check(vec![waits()], short(), Err(UserDataError::NoDrive { label: LABEL }));
        // What is there and broken says more than what is missing.
        check(vec![waits(), fails(broken())], short(), Err(broken()));
        check(vec![fails(broken()), waits()], short(), Err(broken()));
        check(vec![hangs(), waits()], short(), Err(UserDataError::NoDrive { label: LABEL }));
        check(vec![hangs()], short(), Err(UserDataError::Unanswered));
    }

    #[test]
    fn other_sources_stop_after_an_answer() {
        let (sender, receiver) = mpsc::channel();
        let waiting: UserDataSource = Box::new(move |wait| {
            while wait.sleep(Duration::from_millis(20)) {}
            let _ = sender.send(());
            Ok(None)
        });
        check(vec![waiting, says("{}")], long(), Ok(Some("{}")));
        receiver.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}
