//! The loop of the task that commits, round by round.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::queue::{Apart, Job, gather};

/// A task that commits what is asked of a store.
pub(crate) trait CommitLoop: Send {
    type Asked: Send;
    /// The engine's name in messages.
    const KEEPER: &'static str;

    /// The works that nobody waits for, and that could not be done.
    fn apart(&mut self) -> &mut Apart<Self::Asked>;

    /// Returns when something is due that nobody asks for.
    fn due(&self) -> Option<Instant>;

    /// Makes one commit, or answers an error to those who wait.
    fn round(&mut self, waiting: &mut VecDeque<Job<Self::Asked>>) -> impl Future<Output = ()> + Send;

    /// Does what else is due after a round.
    fn after_round(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Runs until nobody can ask any more; what nobody waits for is done then.
    fn run(&mut self, mut jobs: mpsc::Receiver<Job<Self::Asked>>) -> impl Future<Output = ()> + Send {
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
                        "{before} works that nobody waits for were not done: {} does not answer",
                        Self::KEEPER
                    );
                    break;
                }
            }
        }
    }
}
