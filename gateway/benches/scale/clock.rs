//! Clock of the simulation, and its next events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Time since the power came back, in nanoseconds.
pub type Time = u64;

pub const SECOND: Time = 1_000_000_000;

pub fn nanos(time: Duration) -> Time {
    u64::try_from(time.as_nanos()).unwrap_or(Time::MAX)
}

/// Future events in order of time; of two at the same time, the one that was scheduled first.
#[derive(Debug)]
pub struct Clock<E> {
    pub now: Time,
    said: u64,
    coming: BinaryHeap<Reverse<(Time, u64, E)>>,
}

impl<E: Ord> Clock<E> {
    pub const fn new() -> Self {
        Self {
            now: 0,
            said: 0,
            coming: BinaryHeap::new(),
        }
    }

    /// Schedules an event after this time.
    pub fn after(&mut self, time: Time, event: E) {
        self.said += 1;
        self.coming.push(Reverse((self.now + time, self.said, event)));
    }

    /// Removes and returns the next event, and advances the clock to its time.
    pub fn next(&mut self) -> Option<E> {
        let Reverse((time, _, event)) = self.coming.pop()?;
        self.now = time;
        Some(event)
    }
}
