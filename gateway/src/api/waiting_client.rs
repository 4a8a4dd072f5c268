//! Tracks whether a client still waits for the answer to its request. A request that has started runs to its end, whatever its client does.
//! Spent credentials and decisions must not depend on when a client disconnects.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::response::Response;

use super::problem::Refusal;

/// State of a request for the code that decides it: whether the answer can still be delivered.
#[derive(Debug, Clone, Default)]
pub(super) struct Awaited(Arc<OnceLock<FirstCompleted>>);

/// Outcome of a request: the first one set is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstCompleted {
    /// The decision is given, and from then on recorded as such.
    Given,
    /// The client no longer waits: nothing is given.
    Abandoned,
}

/// The client's side of [`Awaited`]. Dropping it says that the client no longer waits.
#[derive(Debug)]
pub(super) struct WaitingClient(Awaited);

impl Awaited {
    /// Marks the decision as given: from then on it is recorded so. Must come before anything is recorded that gives something, and after
    /// everything else.
    ///
    /// # Errors
    /// `client-gone`: the client no longer waits.
    pub(super) fn give(&self) -> Result<(), Refusal> {
        match self.0.get_or_init(|| FirstCompleted::Given) {
            FirstCompleted::Given => Ok(()),
            FirstCompleted::Abandoned => Err(Refusal::client_gone()),
        }
    }
}

impl WaitingClient {
    pub(super) fn new() -> (Self, Awaited) {
        let awaited = Awaited::default();
        (Self(awaited.clone()), awaited)
    }

    /// Spawns the work and waits for its answer: until `limit`, and longer only for the record of a decision that is given. Returns `None`
    /// if the client is gone or the work failed.
    pub(super) async fn answer(self, limit: Duration, work: impl Future<Output = Response> + Send + 'static) -> Option<Response> {
        let mut work = tokio::spawn(work);
        match tokio::time::timeout(limit, &mut work).await {
            Ok(answer) => answer.ok(),
            Err(_) if self.abandon() => None,
            Err(_) => work.await.ok(),
        }
    }

    /// Marks the client as gone, unless the decision is given already; returns whether it is gone.
    fn abandon(&self) -> bool {
        *self.0.0.get_or_init(|| FirstCompleted::Abandoned) == FirstCompleted::Abandoned
    }
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use axum::response::IntoResponse;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn waits_for_the_record_of_a_committed_answer() {
        let (waiting, awaited) = WaitingClient::new();
        let (recorded, record) = oneshot::channel::<()>();
        awaited.give().unwrap();
        let mut answer = Box::pin(waiting.answer(Duration::ZERO, async move {
            record.await.unwrap();
            "given".into_response()
        }));
        assert!(answer.as_mut().now_or_never().is_none());
        recorded.send(()).unwrap();
        assert!(answer.await.is_some());
    }

    #[tokio::test]
    async fn late_answers_are_withheld_and_run_to_completion() {
        let (waiting, awaited) = WaitingClient::new();
        let (go_on, wait) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let answer = waiting.answer(Duration::ZERO, async move {
            wait.await.unwrap();
            end.send(awaited.give().is_err()).unwrap();
            "late".into_response()
        });
        assert!(answer.await.is_none());
        go_on.send(()).unwrap();
        assert!(ended.await.unwrap());
    }

    #[tokio::test]
    async fn a_disconnected_client_gets_no_new_grant() {
        for given_before in [false, true] {
            let (waiting, awaited) = WaitingClient::new();
            let (go_on, wait) = oneshot::channel::<()>();
            let (end, ended) = oneshot::channel();
            let decides = awaited.clone();
            let mut answer = Box::pin(waiting.answer(LONG, async move {
                wait.await.unwrap();
                end.send(decides.give().is_ok()).unwrap();
                "nobody hears it".into_response()
            }));
            assert!(answer.as_mut().now_or_never().is_none());
            if given_before {
                awaited.give().unwrap();
            }
            drop(answer);
            go_on.send(()).unwrap();
            assert_eq!(ended.await.unwrap(), given_before);
        }
    }
}
