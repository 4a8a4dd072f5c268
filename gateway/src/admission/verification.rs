//! What takes the processor: signatures, chains, RSA. Bounded in number, and what is long never on the threads that wait for sockets: they go on meanwhile.
//! What is short is done where it comes up. Moving all else that the thread has to do to another one, and back, would take a part of what it takes itself.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::Source;
use super::turns::{TooBusy, Turns};

/// How long somebody waits for a processor. Ignition and `attest-node` wait 10 s for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long work is about to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// About a millisecond: a few signatures, and the hashes of some ten kilobytes. Whoever sends it cannot make it longer.
    Short,
    /// However long it takes.
    Long,
}

/// Who verifies at the moment, and who waits.
#[derive(Debug)]
pub struct Verification(Turns);

impl Default for Verification {
    /// As many at once as there are processors: more would only make each of them slower.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self(Turns::new(processors))
    }
}

impl Verification {
    /// Does the work when it is this source's turn, and what is long while other threads go on answering.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub async fn run<T>(&self, source: Source, length: Length, work: impl FnOnce() -> T) -> Result<T, TooBusy> {
        let turn = self.0.take(source, PATIENCE).await?;
        let done = if length == Length::Long && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            // The thread's other tasks move to another thread. The work borrows what it needs, as it could not on a thread of its own.
            tokio::task::block_in_place(work)
        } else {
            work()
        };
        drop(turn);
        Ok(done)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_keeps_nobody_from_answering_and_is_bounded() {
        let verification = Arc::new(Verification(Turns::new(1)));
        let source = Source::from(Ipv4Addr::LOCALHOST);
        let (go_on, wait) = mpsc::channel::<()>();
        let (has_begun, begun) = tokio::sync::oneshot::channel();
        let long = tokio::spawn({
            let verification = Arc::clone(&verification);
            async move {
                let work = move || {
                    has_begun.send(()).unwrap();
                    wait.recv().unwrap();
                };
                verification.run(source, Length::Long, work).await
            }
        });
        begun.await.unwrap();
        // The only thread works, and yet another task is done; but no second piece of work is begun.
        assert_eq!(tokio::spawn(async { 7 }).await.unwrap(), 7);
        assert_eq!(verification.0.take(source, Duration::ZERO).await.unwrap_err(), TooBusy);
        go_on.send(()).unwrap();
        long.await.unwrap().unwrap();
        assert_eq!(verification.run(source, Length::Long, || 8).await, Ok(8));
        assert_eq!(verification.run(source, Length::Short, || 9).await, Ok(9));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_short_moves_nothing_to_another_thread() {
        let verification = Verification(Turns::new(1));
        let source = Source::from(Ipv4Addr::LOCALHOST);
        let working = tokio::spawn(async move {
            let here = thread::current().id();
            // Once is enough for a thread to be another one, but whether it is depends on which is faster.
            for _ in 0..1000 {
                verification.run(source, Length::Short, || ()).await.unwrap();
                tokio::task::yield_now().await;
                assert_eq!(thread::current().id(), here);
            }
            // And it is bounded as what is long is.
            let _turn = verification.0.take(source, PATIENCE).await.unwrap();
            let mut waiting = Box::pin(verification.run(source, Length::Short, || ()));
            assert!(waiting.as_mut().now_or_never().is_none());
        });
        working.await.unwrap();
    }
}
