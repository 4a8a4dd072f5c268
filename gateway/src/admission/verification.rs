//! Limit on work for the processor: signatures, chains, RSA. Its number is bounded, and long work never runs on the threads that wait for
//! sockets: they go on meanwhile. Short work runs in place: moving the thread's other tasks to another one, and back, would take a part of
//! its own time.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::ClientSource;
use super::slots::{AdmissionSlots, TooBusy};
use crate::metrics::LimitUsage;

/// Maximum wait for a processor. Ignition and `attest-node` wait 10 s for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Expected duration of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// About a millisecond: a few signatures, and the hashes of some ten kilobytes. Its sender cannot make it longer.
    Short,
    /// However long it takes.
    Long,
}

/// Turns of verification at the processors.
#[derive(Debug)]
pub struct Verification {
    turns: AdmissionSlots,
    /// Durations of the work, without the wait for its turn.
    durations: Histogram,
}

impl Verification {
    /// Allows as many at once as there are processors: more would only make each of them slower.
    #[must_use]
    pub fn new(durations: Histogram) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let turns = AdmissionSlots::new(processors);
        Self { turns, durations }
    }

    /// Returns the number of turns in use, of those waited for, and of all.
    #[must_use]
    pub fn usage(&self) -> LimitUsage {
        self.turns.usage()
    }

    /// Runs the work when it is this source's turn; long work runs while other threads continue to answer.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub async fn run<T>(&self, source: ClientSource, length: Length, work: impl FnOnce() -> T) -> Result<T, TooBusy> {
        let turn = self.turns.take(source, PATIENCE).await?;
        let begun = Instant::now();
        let done = if length == Length::Long && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            // The thread's other tasks move to another thread. The work borrows what it needs, as it could not on a thread of its own.
            tokio::task::block_in_place(work)
        } else {
            work()
        };
        drop(turn);
        self.durations.observe(begun.elapsed().as_secs_f64());
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

    fn one_at_a_time() -> Verification {
        Verification {
            turns: AdmissionSlots::new(1),
            durations: Histogram::new([1.0]),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_verification_is_bounded_and_blocks_no_executor() {
        let verification = Arc::new(one_at_a_time());
        let source = ClientSource::from(Ipv4Addr::LOCALHOST);
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
        assert_eq!(verification.turns.take(source, Duration::ZERO).await.unwrap_err(), TooBusy);
        go_on.send(()).unwrap();
        long.await.unwrap().unwrap();
        assert_eq!(verification.run(source, Length::Long, || 8).await, Ok(8));
        assert_eq!(verification.run(source, Length::Short, || 9).await, Ok(9));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn short_verification_stays_on_its_thread() {
        let verification = one_at_a_time();
        let source = ClientSource::from(Ipv4Addr::LOCALHOST);
        let working = tokio::spawn(async move {
            let here = thread::current().id();
            // Once is enough for a thread to be another one, but whether it is depends on which is faster.
            for _ in 0..1000 {
                verification.run(source, Length::Short, || ()).await.unwrap();
                tokio::task::yield_now().await;
                assert_eq!(thread::current().id(), here);
            }
            // And it is bounded as what is long is.
            let _turn = verification.turns.take(source, PATIENCE).await.unwrap();
            let mut waiting = Box::pin(verification.run(source, Length::Short, || ()));
            assert!(waiting.as_mut().now_or_never().is_none());
        });
        working.await.unwrap();
    }
}
