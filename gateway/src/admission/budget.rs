//! Budgets of what is spent over time: challenges, bytes of the attestation log.
//!
//! Half of a budget is for whoever comes. The other half is shared out: from it nobody takes more than an equal part, so that one source that
//! spends all it can leaves others theirs. What protects the machine when nobody misbehaves is the budget in all.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use attest::UnixTime;

use super::Source;

/// Sources that are remembered. One takes about a hundred bytes.
const SOURCES_LIMIT: usize = 4096;
/// How often the console is told about one source.
const TELL_EVERY_SECONDS: u64 = 60;

/// So much at once, and so much more each second.
#[derive(Debug)]
pub struct Budget {
    at_once: u64,
    each_second: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    all: Account,
    sources: HashMap<Source, Account>,
    /// When it was looked last who has spent nothing lately.
    swept: u64,
}

/// What was spent and is not made up for yet.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    spent: u64,
    at: u64,
    told: Option<u64>,
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spending {
    /// It is spent.
    Granted,
    /// It is not: this is more than the source's part.
    Over {
        /// Whether to tell the console: it has not been told of this source for a while.
        tell: bool,
        /// After how long there is so much for it at the earliest: if nobody spends anything until then.
        again: Duration,
    },
}

impl Budget {
    /// So much at once, and so much more each second.
    #[must_use]
    pub fn new(at_once: u64, each_second: u64) -> Self {
        Self {
            at_once,
            each_second,
            state: Mutex::default(),
        }
    }

    /// Spends that much for this source, if there is so much for it.
    pub fn spend(&self, source: Source, amount: u64, now: UnixTime) -> Spending {
        let now = now.as_secs();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if !state.sources.contains_key(&source) && state.sources.len() >= SOURCES_LIMIT {
            state.make_room(self.each_second, now);
        }
        state.all.recover(self.each_second, now);
        let in_all = state.all.spent.saturating_add(amount);
        let for_whoever_comes = self.at_once / 2;
        if in_all > for_whoever_comes && state.swept != now {
            state.sweep(self.each_second, now);
        }
        let others = state.sources.len() - usize::from(state.sources.contains_key(&source));
        let sources = u64::try_from(others).unwrap_or(u64::MAX).saturating_add(1);
        let account = state.sources.entry(source).or_default();
        account.recover(self.each_second, now);
        let own = account.spent.saturating_add(amount);
        let missing_of_all = in_all.saturating_sub(self.at_once);
        let missing_of_part = own.saturating_sub(for_whoever_comes / sources);
        let missing = in_all.saturating_sub(for_whoever_comes).min(missing_of_all.max(missing_of_part));
        if missing == 0 {
            account.spent = own;
            state.all.spent = in_all;
            return Spending::Granted;
        }
        let tell = account.told.is_none_or(|told| now.abs_diff(told) >= TELL_EVERY_SECONDS);
        if tell {
            account.told = Some(now);
        }
        let again = Duration::from_secs(missing.div_ceil(self.each_second.max(1)));
        Spending::Over { tell, again }
    }
}

impl State {
    /// Forgets who has spent nothing lately.
    fn sweep(&mut self, each_second: u64, now: u64) {
        self.swept = now;
        self.sources.retain(|_, account| {
            account.recover(each_second, now);
            account.spent > 0 || account.told.is_some_and(|told| now.abs_diff(told) < TELL_EVERY_SECONDS)
        });
    }

    fn make_room(&mut self, each_second: u64, now: u64) {
        self.sweep(each_second, now);
        if self.sources.len() >= SOURCES_LIMIT {
            // Who has spent least gains least by being forgotten.
            let least = self.sources.iter().min_by_key(|(source, account)| (account.spent, **source));
            if let Some(least) = least.map(|(source, _)| *source) {
                self.sources.remove(&least);
            }
        }
    }
}

impl Account {
    fn recover(&mut self, each_second: u64, now: u64) {
        // A clock that was set back gives nothing, and takes nothing.
        let seconds = now.saturating_sub(self.at);
        self.spent = self.spent.saturating_sub(seconds.saturating_mul(each_second));
        self.at = now;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ATTACKER: u32 = 66;

    /// How many of so many are granted to this source.
    fn granted(budget: &Budget, source: u32, times: usize, now: u64) -> usize {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let spend = || budget.spend(Ipv4Addr::from_bits(source).into(), 1, now);
        (0..times).filter(|_| spend() == Spending::Granted).count()
    }

    #[test]
    fn a_source_may_spend_what_nobody_else_wants() {
        let budget = Budget::new(100, 10);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 10);
        assert_eq!(granted(&budget, ATTACKER, 1000, 2000), 50);
    }

    #[test]
    fn one_that_spends_all_it_can_leaves_others_theirs() {
        let budget = Budget::new(100, 10);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
        // Two sources: each has half of the other half.
        assert_eq!(granted(&budget, 1, 1000, 1000), 25);
        let budget = Budget::new(100, 10);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
        for node in 1..=7 {
            assert_eq!(granted(&budget, node, 3, 1000), 3, "{node}");
        }
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
        // All together never spend more than there is.
        let budget = Budget::new(100, 10);
        let all: usize = (0..1000).map(|source| granted(&budget, source, 1000, 1000)).sum();
        assert!((50..=100).contains(&all), "{all}");
    }

    #[test]
    fn what_is_larger_than_the_whole_is_never_granted() {
        let budget = Budget::new(100, 10);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1000));
        let source = Ipv4Addr::LOCALHOST.into();
        assert!(matches!(budget.spend(source, u64::MAX, now), Spending::Over { tell: true, .. }));
        assert!(matches!(budget.spend(source, 101, now), Spending::Over { tell: false, .. }));
        assert_eq!(budget.spend(source, 50, now), Spending::Granted);
    }

    #[test]
    fn the_console_is_told_once_a_minute() {
        let budget = Budget::new(0, 0);
        let spend = |now| budget.spend(Ipv4Addr::LOCALHOST.into(), 1, UnixTime::since_unix_epoch(Duration::from_secs(now)));
        assert!(matches!(spend(1000), Spending::Over { tell: true, .. }));
        assert!(matches!(spend(1059), Spending::Over { tell: false, .. }));
        assert!(matches!(spend(1060), Spending::Over { tell: true, .. }));
    }

    /// After how many seconds the source is told to come again that wants one more.
    fn told(budget: &Budget, source: u32, now: u64) -> u64 {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let Spending::Over { again, .. } = budget.spend(Ipv4Addr::from_bits(source).into(), 1, now) else {
            panic!("there was one more");
        };
        again.as_secs()
    }

    #[test]
    fn who_is_told_when_to_come_again_finds_something_then_and_nothing_before() {
        let spent = |sources: u32| {
            let budget = Budget::new(100, 10);
            for source in (0..sources).map(|source| ATTACKER + source) {
                granted(&budget, source, 1000, 1000);
            }
            budget
        };
        // They have 50, 25 and 16; whoever asks with one other gets 25, with two 16.
        for (sources, asks, after) in [
            (1, ATTACKER, 1),
            (2, ATTACKER, 3),
            (2, ATTACKER + 1, 1),
            (3, ATTACKER, 4),
            (3, ATTACKER + 1, 1),
        ] {
            assert_eq!(told(&spent(sources), asks, 1000), after, "{sources} {asks}");
            assert_eq!(granted(&spent(sources), asks, 1, 1000 + after), 1, "{sources} {asks}");
            assert_eq!(granted(&spent(sources), asks, 1, 1000 + after - 1), 0, "{sources} {asks}");
        }
        // What never comes is far away, and no division by nothing.
        assert_eq!(told(&Budget::new(0, 0), ATTACKER, 1000), 1);
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing() {
        let budget = Budget::new(100, 10);
        assert_eq!(granted(&budget, ATTACKER, 1000, 100_000), 50);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 10);
    }

    #[test]
    fn memory_is_bounded() {
        let budget = Budget::new(1_000_000, 1);
        for source in 0..10_000 {
            granted(&budget, source, 2, 1000);
        }
        assert!(budget.state.lock().unwrap().sources.len() <= SOURCES_LIMIT);
    }
}
