//! Measures the rate at which something is done.

use std::time::{Duration, Instant};

/// Time over which events are counted: long enough to be even, short enough to be current.
const SPAN: Duration = Duration::from_secs(2);

/// Rate of events in the last seconds.
#[derive(Debug, Default)]
pub(super) struct Rate {
    began: Option<Instant>,
    /// Number of events since `began`.
    counted: u32,
    /// Rate in the span before.
    each_second: f64,
}

impl Rate {
    /// Counts one event at `now`.
    pub(super) fn count(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began);
        if passed >= SPAN {
            self.each_second = f64::from(self.counted) / passed.as_secs_f64();
            (self.began, self.counted) = (Some(now), 0);
        }
        self.counted = self.counted.saturating_add(1);
    }

    /// Returns the time that `many` events take at the rate of the last seconds, which counts as at least one a second.
    pub(super) fn time_for(&self, many: usize, now: Instant) -> Duration {
        let passed = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        let current = f64::from(self.counted) / passed.max(SPAN).as_secs_f64();
        // Of a span that has only begun nothing is known yet; the one before may be long over.
        let before = if passed < SPAN * 2 { self.each_second } else { 0.0 };
        let many = f64::from(u32::try_from(many).unwrap_or(u32::MAX));
        Duration::from_secs_f64(many / current.max(before).max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_seconds() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        assert_eq!(rate.time_for(30, start), Duration::from_secs(30), "nothing was done yet");
        for millis in (0..4000).step_by(10) {
            rate.count(at(millis));
        }
        let told = rate.time_for(1000, at(4000)).as_secs_f64();
        assert!((9.0..11.0).contains(&told), "1,000 at 100 a second take {told} s");
        // What was done long ago says nothing.
        assert!(rate.time_for(100, at(600_000)) > Duration::from_secs(90));
    }
}
