//! Budget of one replica's challenges: an initial number, and an increment for each second. It works like `admission/budget.rs` for sources
//! none of which asks for more than its fair share.

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
