//! Challenges that one replica gives: so many at once, and so many more each second, as `admission/budget.rs` has it for sources of which none asks
//! for more than its part.

use super::clock::{SECOND, Time};
use super::site::{CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND};

#[derive(Debug, Default)]
pub struct Budget {
    spent: u64,
    second: u64,
    pub granted: u64,
}

impl Budget {
    /// Takes a challenge from the budget. Returns `false` if none is left.
    pub fn spend(&mut self, now: Time) -> bool {
        let second = now / SECOND;
        self.spent = self.spent.saturating_sub((second - self.second) * CHALLENGES_EACH_SECOND);
        self.second = second;
        let granted = self.spent < CHALLENGES_AT_ONCE;
        self.spent += u64::from(granted);
        self.granted += u64::from(granted);
        granted
    }
}
