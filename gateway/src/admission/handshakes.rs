//! Limit on handshakes. A client that waits for one costs a socket. One that has begun costs a signature and memory, and has requests to
//! follow. So a handshake begins when the previous ones are nearly done, and each node's work is done once: late rather than twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::ClientSource;
use super::fair_queue::FairQueue;
use super::slots::{AdmissionSlot, AdmissionSlots, TooBusy};
use crate::metrics::LimitUsage;

/// Handshakes that may be under way regardless of requests: a flood of requests keeps no other client out, and health is answered.
const ALWAYS: usize = 2;
/// Number of turns of which the last goes to an unknown source, if one waits. Known sources go first, and do not keep others out.
const STRANGERS_TURN: u32 = 4;

/// Handshakes under way, and those that wait to begin.
#[derive(Debug, Clone)]
pub struct Handshakes {
    queue: Arc<Mutex<HandshakeQueue>>,
    requests: AdmissionSlots,
}

#[derive(Debug)]
struct HandshakeQueue {
    under_way: usize,
    /// Maximum number under way, including requests that are processed or wait for that.
    at_once: usize,
    known_sources: FairQueue<Handshake>,
    strangers: FairQueue<Handshake>,
    /// Turns of known sources since the last one of an unknown source.
    in_a_row: u32,
}

/// Permit for one handshake. When it is dropped, another may begin.
#[derive(Debug)]
pub struct Handshake(Option<Handshakes>);

/// Shared permit, for each task that can know when the next handshake may begin.
#[derive(Debug, Clone)]
pub struct Begun(Arc<Mutex<Option<Handshake>>>);

/// A request's turn, which has handshakes wait.
#[derive(Debug)]
pub struct RequestTurn {
    turn: Option<AdmissionSlot>,
    handshakes: Handshakes,
}

impl Handshakes {
    /// Creates the limit: while `at_once` are under way, requests included, none begins.
    #[must_use]
    pub fn new(at_once: usize, requests: AdmissionSlots) -> Self {
        let queue = HandshakeQueue {
            under_way: 0,
            at_once,
            known_sources: FairQueue::default(),
            strangers: FairQueue::default(),
            in_a_row: 0,
        };
        Self {
            queue: Arc::new(Mutex::new(queue)),
            requests,
        }
    }

    /// Completes when this source may begin a handshake. The caller may stop waiting at any time.
    pub async fn begin(&self, source: ClientSource, known: bool) -> Handshake {
        let waiting = {
            let load = self.requests.load();
            let mut queue = self.lock();
            if queue.nobody_waits() && queue.may_begin(load) {
                queue.under_way += 1;
                return Handshake(Some(self.clone()));
            }
            if known {
                queue.known_sources.wait(source)
            } else {
                queue.strangers.wait(source)
            }
        };
        // What was under way may have ended before this waited.
        self.let_begin();
        match waiting.await {
            Ok(handshake) => handshake,
            // Nobody forgets who waits.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits for a request's turn, `patience` at most.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub async fn request(&self, source: ClientSource, patience: Duration) -> Result<RequestTurn, TooBusy> {
        let turn = self.requests.take(source, patience).await?;
        Ok(RequestTurn {
            turn: Some(turn),
            handshakes: self.clone(),
        })
    }

    /// Returns the number of handshakes that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let queue = self.lock();
        queue.known_sources.length() + queue.strangers.length()
    }

    /// Returns the number of handshakes under way, of those that wait, and of all.
    #[must_use]
    pub fn usage(&self) -> LimitUsage {
        let waiting = self.waiting();
        let queue = self.lock();
        LimitUsage {
            used: queue.under_way,
            waiting,
            most: queue.at_once,
        }
    }

    /// Requests that are worked on, and handshakes, of which requests may come.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let requests = self.requests.under_way();
        requests + self.lock().under_way
    }

    /// Lets those begin whose turn it is.
    fn let_begin(&self) {
        loop {
            let load = self.requests.load();
            let next = {
                let mut queue = self.lock();
                if !queue.may_begin(load) {
                    return;
                }
                let Some(next) = queue.next() else { return };
                queue.under_way += 1;
                next
            };
            if let Err(mut handshake) = next.send(Handshake(Some(self.clone()))) {
                // Whoever waited is gone.
                handshake.0 = None;
                self.lock().under_way -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HandshakeQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandshakeQueue {
    const fn may_begin(&self, requests: usize) -> bool {
        self.under_way < ALWAYS || self.under_way.saturating_add(requests) < self.at_once
    }

    const fn nobody_waits(&self) -> bool {
        self.known_sources.length() == 0 && self.strangers.length() == 0
    }

    fn next(&mut self) -> Option<oneshot::Sender<Handshake>> {
        if self.in_a_row + 1 < STRANGERS_TURN
            && let Some(known) = self.known_sources.next()
        {
            self.in_a_row += 1;
            return Some(known);
        }
        self.in_a_row = 0;
        self.strangers.next().or_else(|| self.known_sources.next())
    }
}

impl From<Handshake> for Begun {
    fn from(handshake: Handshake) -> Self {
        Self(Arc::new(Mutex::new(Some(handshake))))
    }
}

impl Begun {
    /// Lets another handshake begin, unless that was done already.
    pub fn done(&self) {
        let handshake = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(handshake);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(handshakes) = self.0.take() {
            handshakes.lock().under_way -= 1;
            handshakes.let_begin();
        }
    }
}

impl Drop for RequestTurn {
    fn drop(&mut self) {
        self.turn = None;
        self.handshakes.let_begin();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const KNOWN: bool = true;
    const STRANGER: bool = false;

    fn source(number: u32) -> ClientSource {
        Ipv4Addr::from_bits(number).into()
    }

    fn handshakes(at_once: usize, requests: usize) -> Handshakes {
        Handshakes::new(at_once, AdmissionSlots::new(requests))
    }

    async fn begun(handshakes: &Handshakes, many: usize) -> Vec<Handshake> {
        let mut begun = Vec::new();
        for _ in 0..many {
            begun.push(handshakes.begin(source(1), STRANGER).await);
        }
        begun
    }

    #[tokio::test]
    async fn handshakes_wait_while_requests_use_the_limit() {
        let handshakes = handshakes(20, 100);
        let mut requests = Vec::new();
        for _ in 0..10 {
            requests.push(handshakes.request(source(1), LONG).await.unwrap());
        }
        let mut under_way = begun(&handshakes, 10).await;
        let mut next = Box::pin(handshakes.begin(source(2), STRANGER));
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!((handshakes.waiting(), handshakes.under_way()), (1, 20));
        // A request less, or a handshake.
        drop(requests.pop());
        let begun = next.now_or_never().unwrap();
        let mut next = Box::pin(handshakes.begin(source(2), STRANGER));
        assert!(next.as_mut().now_or_never().is_none());
        drop(under_way.pop());
        drop((next.now_or_never().unwrap(), begun));
        drop((requests, under_way));
        assert_eq!(handshakes.waiting(), 0);
        assert_eq!(handshakes.lock().under_way, 0);
    }

    #[tokio::test]
    async fn a_minimum_of_handshakes_begins_under_load() {
        let handshakes = handshakes(20, 30);
        let mut requests = Vec::new();
        for _ in 0..30 {
            requests.push(handshakes.request(source(1), LONG).await.unwrap());
        }
        let waiting: Vec<_> = (0..1000).map(|_| Box::pin(handshakes.request(source(1), LONG))).collect();
        let mut under_way = begun(&handshakes, ALWAYS).await;
        let mut next = Box::pin(handshakes.begin(source(2), STRANGER));
        assert!(next.as_mut().now_or_never().is_none());
        drop(under_way.pop());
        assert!(next.now_or_never().is_some());
        drop((waiting, requests));
    }

    #[tokio::test]
    async fn prefers_handshakes_of_trusted_sources_without_starving_others() {
        let handshakes = handshakes(ALWAYS, 100);
        let mut under_way = begun(&handshakes, ALWAYS).await;
        let wait = |known| {
            let mut waiting = Box::pin(handshakes.begin(source(u32::from(known)), known));
            assert!(waiting.as_mut().now_or_never().is_none());
            Some(waiting)
        };
        let mut waiting: Vec<_> = [[STRANGER; 8], [KNOWN; 8]].concat().into_iter().map(wait).collect();
        let mut order = String::new();
        while order.len() < 16 {
            under_way.remove(0);
            for (place, waiting) in waiting.iter_mut().enumerate() {
                if let Some(begun) = waiting.as_mut().and_then(|waiting| waiting.as_mut().now_or_never()) {
                    order.push(if place < 8 { 's' } else { 'k' });
                    under_way.push(begun);
                    *waiting = None;
                }
            }
        }
        assert_eq!(order, "kkkskkkskkssssss");
    }

    #[tokio::test]
    async fn finishing_a_handshake_twice_frees_one_slot() {
        let handshakes = handshakes(ALWAYS, 100);
        let mut under_way = begun(&handshakes, ALWAYS).await;
        let one = Begun::from(under_way.remove(0));
        let also = one.clone();
        let mut next: Vec<_> = (0..2).map(|_| Box::pin(handshakes.begin(source(2), STRANGER))).collect();
        assert!(next.iter_mut().all(|next| next.as_mut().now_or_never().is_none()));
        one.done();
        also.done();
        let begun: Vec<_> = next.iter_mut().filter_map(|next| next.as_mut().now_or_never()).collect();
        assert_eq!(begun.len(), 1);
    }

    #[tokio::test]
    async fn a_cancelled_handshake_frees_its_turn() {
        let handshakes = handshakes(ALWAYS, 100);
        let mut under_way = begun(&handshakes, ALWAYS).await;
        let mut gone = Box::pin(handshakes.begin(source(2), STRANGER));
        let mut stays = Box::pin(handshakes.begin(source(3), STRANGER));
        assert!(gone.as_mut().now_or_never().is_none() && stays.as_mut().now_or_never().is_none());
        drop(gone);
        drop(under_way.pop());
        drop(stays.now_or_never().unwrap());
        // One that is on its way to somebody who goes, too.
        let mut gone = Box::pin(handshakes.begin(source(2), STRANGER));
        under_way.push(gone.as_mut().now_or_never().unwrap());
        let mut gone = Box::pin(handshakes.begin(source(2), STRANGER));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(under_way);
        drop(gone);
        assert_eq!(handshakes.lock().under_way, 0);
    }
}
