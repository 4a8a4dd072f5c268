//! Turns: how much is done at once, and who is next. Sources take turns, so that one with a thousand requests makes another wait for one of
//! them and not for all.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Source;

/// So many things at once. How many wait is bounded by who can ask: a connection asks for one thing at a time.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    at_once: usize,
    free: usize,
    waiting: HashMap<Source, VecDeque<oneshot::Sender<Turn>>>,
    /// The sources that wait, each once; the next one first.
    order: VecDeque<Source>,
}

/// One of them. It is given back when this is dropped.
#[derive(Debug)]
pub struct Turn(Option<Turns>);

/// No turn came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooBusy;

impl Turns {
    /// So many at once.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            at_once,
            free: at_once,
            waiting: HashMap::new(),
            order: VecDeque::new(),
        })))
    }

    /// Waits for a turn, `patience` at most.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub async fn take(&self, source: Source, patience: Duration) -> Result<Turn, TooBusy> {
        let coming = {
            let mut queue = self.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Ok(Turn(Some(self.clone())));
            }
            queue.wait(source)
        };
        match tokio::time::timeout(patience, coming).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(TooBusy),
        }
    }

    /// How many have one.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let queue = self.lock();
        queue.at_once - queue.free
    }

    /// Completes when nobody has a turn any longer: whoever takes all of them has waited for the others.
    pub async fn rest(&self) {
        let mut all = Vec::new();
        while all.len() < self.lock().at_once {
            all.extend(self.take(Source::from(Ipv4Addr::UNSPECIFIED), Duration::MAX).await);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a turn on to who is next and still there.
    fn give(&self) {
        loop {
            let next = {
                let mut queue = self.lock();
                let next = queue.next();
                if next.is_none() {
                    queue.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // Whoever waited is gone.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Queue {
    fn wait(&mut self, source: Source) -> oneshot::Receiver<Turn> {
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(source).or_default();
        if waiting.is_empty() {
            self.order.push_back(source);
        } else {
            // Those who have gone would only be counted.
            while waiting.back().is_some_and(oneshot::Sender::is_closed) {
                waiting.pop_back();
            }
        }
        waiting.push_back(sender);
        receiver
    }

    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let source = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&source)?;
        while waiting.front().is_some_and(oneshot::Sender::is_closed) && waiting.len() > 1 {
            waiting.pop_front();
        }
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&source);
        } else {
            self.order.push_back(source);
        }
        next
    }
}

impl Drop for Turn {
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

    fn source(number: u32) -> Source {
        Ipv4Addr::from_bits(number).into()
    }

    /// Who gets a turn, in order, when there is one and these sources have asked one after the other.
    async fn order(asked: &[u32]) -> Vec<u32> {
        let turns = Turns::new(1);
        let first = turns.take(source(0), LONG).await.unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        for number in asked.iter().copied() {
            let (turns, served) = (turns.clone(), Arc::clone(&served));
            all.push(tokio::spawn(async move {
                let turn = turns.take(source(number), LONG).await.unwrap();
                served.lock().unwrap().push(number);
                drop(turn);
            }));
            // On one thread, the task has asked when it is this one's turn again.
            tokio::task::yield_now().await;
        }
        drop(first);
        for one in all {
            one.await.unwrap();
        }
        let served = served.lock().unwrap();
        served.clone()
    }

    #[tokio::test]
    async fn sources_take_turns() {
        assert_eq!(order(&[1, 1, 1, 1, 2, 3, 3]).await, [1, 2, 3, 1, 3, 1, 1]);
    }

    #[tokio::test]
    async fn who_waits_too_long_is_told_and_holds_nothing() {
        let turns = Turns::new(2);
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
        assert!(turns.lock().waiting.is_empty() && turns.lock().order.is_empty());
        assert!(turns.take(source(2), Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn it_is_waited_for_all_turns() {
        let turns = Turns::new(2);
        turns.rest().await;
        let one = turns.take(source(1), LONG).await.unwrap();
        let mut rest = Box::pin(turns.rest());
        assert!(rest.as_mut().now_or_never().is_none());
        drop(one);
        rest.await;
        assert_eq!(turns.lock().free, 2);
    }

    #[tokio::test]
    async fn a_turn_that_nobody_fetches_goes_on() {
        let turns = Turns::new(1);
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
