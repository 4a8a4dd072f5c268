//! The loop of the task that commits, round by round.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::queue::{Apart, QueuedJob, gather};

/// A task that commits what is asked of a store.
pub(crate) trait CommitLoop: Send {
    type Asked: Send;
    /// The engine's name in messages.
    const KEEPER: &'static str;

    /// Returns the background works that have failed.
    fn apart(&mut self) -> &mut Apart<Self::Asked>;

    /// Returns the time at which the next task is due that no request asks for.
    fn due(&self) -> Option<Instant>;

    /// Makes a commit, or answers an error to those who wait.
    fn round(&mut self, waiting: &mut VecDeque<QueuedJob<Self::Asked>>) -> impl Future<Output = ()> + Send;

    /// Does what else is due after a round.
    fn after_round(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Runs until no more jobs can come; then finishes the background works.
    fn run(&mut self, mut jobs: mpsc::Receiver<QueuedJob<Self::Asked>>) -> impl Future<Output = ()> + Send {
        async move {
            let mut waiting = VecDeque::new();
            while gather(&mut waiting, &mut jobs, self.due()).await {
                self.apart().join(&mut waiting);
                self.round(&mut waiting).await;
                let mut due = self.apart().due();
                self.round(&mut due).await;
                self.apart().go_on_with(due);
                self.after_round().await;
            }
            waiting.extend(self.apart().all());
            while !waiting.is_empty() {
                let before = waiting.len();
                self.round(&mut waiting).await;
                waiting.extend(self.apart().all());
                if waiting.len() == before {
                    tracing::warn!(
                        "gave up {before} background store transactions at the end: {} does not answer",
                        Self::KEEPER
                    );
                    break;
                }
            }
        }
    }
}
