//! Values that machines have shown and no reference value has: while an administrator is asked about them, the machines wait.
//!
//! All that a boot shows beyond the pool's sets is one **question**, named by a digest of it, so that whoever writes it writes the same, and two gateways need no
//! agreement. Of each machine the store has one entry: which question it waits for, and since when. A machine that boots something else each time has still that one.
//!
//! In reading order: [`Rules`], `kept` (what the store has), [`ask`] (whether a machine waits), `listed` and `answers` (what an administrator sees, and says).

mod answers;
mod ask;
mod kept;
mod listed;
#[cfg(test)]
mod tests;

pub use answers::{AnswerError, accept, deny, take_back, values_of};
pub use ask::{AwaitedValues, NotAwaited, Shown, Step, Wait};
pub use kept::{Answered, Question, Said};
pub use listed::{Beside, Row, Showing, questions};

/// Most machines that a pool can want: more than boot one after the other in a first part of any roll-out.
pub const MACHINES_WANTED: std::ops::RangeInclusive<usize> = 1..=1000;
/// For how long a machine that has shown a value can count, in hours: at most a month.
pub const WINDOW_HOURS: std::ops::RangeInclusive<u64> = 1..=720;

/// What a pool does with values that are new to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How many machines have shown a value before the administrator is asked.
    pub machines: usize,
    /// How long a machine that has shown something counts, and a question stands, in seconds.
    pub window_seconds: u64,
    /// How long a machine is told to come again at most, in seconds, counted from when it showed this first.
    pub wait_seconds: u64,
}

impl Rules {
    /// After how long a machine that waits comes again, in seconds: soon where it does not wait for long, and not oftener than is worth a quote and its
    /// verification. Nodes heed no more than a minute.
    #[must_use]
    pub fn again_seconds(&self) -> u16 {
        u16::try_from((self.wait_seconds / 20).clamp(5, 60)).unwrap_or(60)
    }
}
