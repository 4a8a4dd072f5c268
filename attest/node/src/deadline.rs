//! The time that a boot may lose to this program.

use std::time::{Duration, Instant};

use aws_lc_rs::rand;

/// First pause between two attempts. Short: the usual cause is a network that has just come up.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause, the same as Ignition's.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause of a node after a 503 with `Retry-After`: a thousand nodes send some hundred requests a second.
const LONGEST_HELD_PAUSE: Duration = Duration::from_secs(10);

/// A point in time after which nothing is attempted any more.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So much from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        // A deadline beyond the clock's range is as good as a day.
        let now = Instant::now();
        Self(now.checked_add(time).unwrap_or(now + Duration::from_secs(86_400)))
    }

    /// Creates a deadline at this time.
    #[must_use]
    pub const fn at(time: Instant) -> Self {
        Self(time)
    }

    /// Returns the remaining time; zero once it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// This deadline, brought forward, for one of `parts` pieces of work that are still to be done.
    #[must_use]
    pub fn share(&self, parts: usize) -> Self {
        let parts = u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
        Self::after(self.remaining() / parts)
    }

    /// This deadline, or so much from now, whichever comes first.
    #[must_use]
    pub fn at_most(&self, time: Duration) -> Self {
        Self::after(self.remaining().min(time))
    }

    /// Returns this deadline, brought forward by the time that the caller needs for itself.
    #[must_use]
    pub fn before(&self, time: Duration) -> Self {
        Self::after(self.remaining().saturating_sub(time))
    }
}

/// Pauses between attempts: exponential, each anywhere between half of its length and all of it, so that a rack of nodes that was
/// switched on at once does not come back at once.
#[derive(Debug)]
pub struct Backoff {
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { longest: FIRST_PAUSE }
    }
}

impl Backoff {
    /// Pauses of which the first has this length at most.
    #[must_use]
    pub const fn starting_with(first: Duration) -> Self {
        Self { longest: first }
    }

    /// Returns the next pause; `None` if the deadline does not leave enough time for it.
    pub fn pause(&mut self, deadline: Deadline) -> Option<Duration> {
        let pause = self.endless();
        (pause < deadline.remaining()).then_some(pause)
    }

    /// Returns the next pause of a wait without end.
    pub fn endless(&mut self) -> Duration {
        let half = self.longest / 2;
        let pause = half + part_of(half);
        self.longest = (self.longest * 2).min(LONGEST_PAUSE.max(self.longest));
        pause
    }

    /// Returns the next pause after a 503; not shorter than its `Retry-After`, and up to a half longer.
    pub fn held(&mut self, not_before: Option<Duration>) -> Duration {
        let half = self.longest / 2;
        let pause = half + part_of(half);
        self.longest = (self.longest * 2).min(LONGEST_HELD_PAUSE);
        not_before.map_or(pause, |time| pause.max(time + part_of(time / 2)))
    }
}

/// Anything from nothing to all of it, by chance. Without randomness, nothing: a pause is still a pause.
fn part_of(time: Duration) -> Duration {
    let mut random = [0; 2];
    let _ = rand::fill(&mut random);
    time.mul_f64(f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_within_its_limits() {
        for _ in 0..50 {
            let deadline = Deadline::after(Duration::from_secs(3600));
            let mut backoff = Backoff::default();
            let mut longest = FIRST_PAUSE;
            for _ in 0..12 {
                let pause = backoff.pause(deadline).unwrap_or_default();
                assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
                longest = (longest * 2).min(LONGEST_PAUSE);
            }
        }
    }

    #[test]
    fn held_pause_honors_retry_after_with_jitter() {
        let mut backoff = Backoff::default();
        let mut longest = FIRST_PAUSE;
        for _ in 0..12 {
            let pause = backoff.held(None);
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
            longest = (longest * 2).min(LONGEST_HELD_PAUSE);
        }
        let told = Duration::from_secs(40);
        let pauses: Vec<Duration> = (0..50).map(|_| backoff.held(Some(told))).collect();
        assert!(pauses.iter().all(|pause| (told..=told * 3 / 2).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().min() != pauses.iter().max(), "all at once: {pauses:?}");
    }

    #[test]
    fn backoff_never_exceeds_the_deadline() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(Deadline::after(Duration::ZERO)), None);
        assert_eq!(backoff.pause(Deadline::after(Duration::from_millis(50))), None);
    }

    #[test]
    fn deadline_is_divided_and_capped() {
        let deadline = Deadline::after(Duration::from_secs(60));
        assert!(deadline.share(3).remaining() <= Duration::from_secs(20));
        assert!(deadline.share(0).remaining() > Duration::from_secs(50));
        assert!(deadline.before(Duration::from_secs(50)).remaining() <= Duration::from_secs(10));
        assert_eq!(deadline.before(Duration::from_secs(70)).remaining(), Duration::ZERO);
        assert!(deadline.at_most(Duration::from_secs(5)).remaining() <= Duration::from_secs(5));
        assert!(deadline.at_most(Duration::from_secs(90)).remaining() <= Duration::from_secs(60));
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(80_000));
    }
}
