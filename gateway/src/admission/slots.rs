//! Turns: a limit on concurrent work. A [`FairQueue`] determines the order.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ClientSource;
use super::fair_queue::FairQueue;
use super::rate::Rate;
use crate::metrics::LimitUsage;

/// Limit on concurrent work.
#[derive(Debug, Clone)]
pub struct AdmissionSlots(Arc<Mutex<SlotQueue>>);

#[derive(Debug)]
struct SlotQueue {
    at_once: usize,
    free: usize,
    waiting: FairQueue<AdmissionSlot>,
    done: Rate,
}

/// Turn, which is given back when this is dropped.
#[derive(Debug)]
pub struct AdmissionSlot(Option<AdmissionSlots>);

/// No turn came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooBusy;

impl AdmissionSlots {
    /// Allows `at_once` turns at a time.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(SlotQueue {
            at_once,
            free: at_once,
            waiting: FairQueue::default(),
            done: Rate::default(),
        })))
    }

    /// Waits for a turn, `patience` at most.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub async fn take(&self, source: ClientSource, patience: Duration) -> Result<AdmissionSlot, TooBusy> {
        let coming = {
            let mut queue = self.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Ok(AdmissionSlot(Some(self.clone())));
            }
            queue.waiting.wait(source)
        };
        match tokio::time::timeout(patience, coming).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(TooBusy),
        }
    }

    /// Returns the number of turns in use.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let queue = self.lock();
        queue.at_once - queue.free
    }

    /// Returns the number of turns in use, of those waited for, and of all.
    #[must_use]
    pub fn usage(&self) -> LimitUsage {
        let queue = self.lock();
        LimitUsage {
            used: queue.at_once - queue.free,
            waiting: queue.waiting.length(),
            most: queue.at_once,
        }
    }

    /// Returns the number of turns in use or waited for.
    #[must_use]
    pub fn load(&self) -> usize {
        let queue = self.lock();
        queue.at_once - queue.free + queue.waiting.length()
    }

    /// Returns the time at `now` until the present queue has had its turns, at the recent rate of returned turns. `None` if the queue is
    /// empty.
    #[must_use]
    pub fn backlog(&self, now: Instant) -> Option<Duration> {
        let queue = self.lock();
        let waiting = queue.waiting.length();
        (waiting > 0).then(|| queue.done.time_for(waiting, now))
    }

    /// Completes when all turns have been given back: it takes all of them itself.
    pub async fn rest(&self) {
        let mut all = Vec::new();
        while all.len() < self.lock().at_once {
            all.extend(self.take(ClientSource::from(Ipv4Addr::UNSPECIFIED), Duration::MAX).await);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a turn to the next client that still waits.
    fn give(&self) {
        self.lock().done.count(Instant::now());
        loop {
            let next = {
                let mut queue = self.lock();
                let next = queue.waiting.next();
                if next.is_none() {
                    queue.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(AdmissionSlot(Some(self.clone()))) {
                Ok(()) => return,
                // Whoever waited is gone.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn source(number: u32) -> ClientSource {
        Ipv4Addr::from_bits(number).into()
    }

    #[tokio::test]
    async fn a_timed_out_waiter_holds_no_slot() {
        let turns = AdmissionSlots::new(2);
        let (one, two) = (
            turns.take(source(1), LONG).await.unwrap(),
            turns.take(source(1), LONG).await.unwrap(),
        );
        for _ in 0..10 {
            assert_eq!(turns.take(source(2), Duration::ZERO).await.unwrap_err(), TooBusy);
        }
        assert_eq!(turns.under_way(), 2);
        drop((one, two));
        assert_eq!(turns.under_way(), 0);
        assert_eq!(turns.lock().waiting.length(), 0);
        assert!(turns.take(source(2), Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn rest_waits_until_all_slots_are_free() {
        let turns = AdmissionSlots::new(2);
        turns.rest().await;
        let one = turns.take(source(1), LONG).await.unwrap();
        let mut rest = Box::pin(turns.rest());
        assert!(rest.as_mut().now_or_never().is_none());
        drop(one);
        rest.await;
        assert_eq!(turns.lock().free, 2);
    }

    #[tokio::test]
    async fn a_slot_for_a_cancelled_waiter_is_released() {
        let turns = AdmissionSlots::new(1);
        let first = turns.take(source(1), LONG).await.unwrap();
        let given_up = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(source(2), LONG).await }
        });
        tokio::task::yield_now().await;
        // The turn is on its way when its receiver goes.
        drop(first);
        given_up.abort();
        drop(given_up.await);
        assert!(turns.take(source(3), LONG).await.is_ok());
        assert_eq!(turns.lock().free, 1);
    }
}
