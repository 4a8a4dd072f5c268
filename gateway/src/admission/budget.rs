//! Budgets of what is spent over time: challenges, bytes of the attestation log, writes of a store.
//!
//! A source may spend what no other source wants: half of a budget is for any of them. The other half is shared in max-min fair shares over
//! time: among networks, in them among smaller networks, and in those among addresses ([`ClientSource::networks`]). The refill of each second
//! reduces the debts of all sources that ask by equal parts. The less is left, the smaller a source's debt must be to get some of it. The
//! last eighth is for sources without debt.

mod accounts;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use accounts::{RateAccount, RateLevel};
use attest::UnixTime;

use super::ClientSource;

/// Units of an account for each unit that is spent: a source's share of a second is small where thousands of sources ask.
const ONE: u64 = 1 << 20;
/// Interval of console messages about one network, in seconds.
const TELL_EVERY_SECONDS: u64 = 60;
/// Eighths of each second's refill that reduce debts. The rest belongs to no source: it is for those that ask least, and for new ones once
/// all of these have something.
const SHARED_EIGHTHS: u64 = 7;

/// Seconds by which a request's time may precede that of an earlier request before the clock counts as set back: longer than a request
/// waits.
const REORDERED_SECONDS: u64 = 60;

/// A limit up to which a budget may be spent, and the sources that may.
struct Tier {
    /// Eighths of the whole that may be spent then.
    whole: u64,
    /// The sources that may spend up to this limit.
    takers: Takers,
}

enum Takers {
    /// Any source. The spending counts for its address alone, since no other source in its networks wanted it.
    Anybody,
    /// A source that has spent at most this many eighths of its part, in networks that have spent at most this many of theirs. The rest of
    /// theirs is for members that ask less.
    Within { own: u64, networks: u64 },
    /// A source that has nothing to make up for: it is new, or asks rarely.
    Debtless { networks: u64 },
}

const TIERS: [Tier; 4] = [
    Tier {
        whole: 4,
        takers: Takers::Anybody,
    },
    Tier {
        whole: 6,
        takers: Takers::Within { own: 8, networks: 4 },
    },
    Tier {
        whole: 7,
        takers: Takers::Within { own: 2, networks: 5 },
    },
    Tier {
        whole: 8,
        takers: Takers::Debtless { networks: 6 },
    },
];

/// Budget with a maximum at once, and a refill each second.
#[derive(Debug)]
pub struct RateLimit {
    at_once: u64,
    each_second: u64,
    state: Mutex<RateLimitState>,
}

#[derive(Debug, Default)]
struct RateLimitState {
    /// The account of all sources together; its members are the accounts of networks.
    all: RateAccount,
    /// Time of the last update of `all`, in seconds since 1970.
    at: u64,
    /// Time of the last sweep of idle accounts, in seconds since 1970.
    swept: u64,
    /// Number of accounts in all.
    accounts: usize,
}

/// Result of an attempt to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spending {
    /// The amount has been spent.
    Granted,
    /// Nothing has been spent: the amount is more than the source's part.
    Over {
        /// True if a console message is due: there was none about this source's network for a while.
        tell: bool,
        /// Time until the amount is available for this source, if no source spends anything until then.
        again: Duration,
    },
}

impl RateLimit {
    /// Creates a budget of `at_once`, with a refill of `each_second`.
    #[must_use]
    pub fn new(at_once: u64, each_second: u64) -> Self {
        Self {
            at_once,
            each_second,
            state: Mutex::default(),
        }
    }

    /// Spends that much for this source, if there is so much for it.
    pub fn spend(&self, source: ClientSource, amount: u64, now: UnixTime) -> Spending {
        let now = now.as_secs();
        let amount = amount.saturating_mul(ONE);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        self.recover(state, now);
        if state.all.owed.saturating_add(amount) > self.eighths(4) {
            state.sweep(now);
        }
        let levels = state.enter(source, self.part(), self.shared_each_second(), now);
        let waits = TIERS.each_ref().map(|tier| self.wait(tier, &levels, state.all.owed, amount));
        let [anybody, others @ ..] = waits;
        if anybody == 0 {
            state.all.charge_address(source, amount);
            return Spending::Granted;
        }
        if others.contains(&0) {
            state.all.charge_all(source, amount);
            return Spending::Granted;
        }
        let soonest = others.into_iter().fold(anybody, u64::min);
        Spending::Over {
            tell: state.all.tells(source, now),
            again: Duration::from_secs(soonest),
        }
    }

    /// Spends the amount for a client that gets it in any case. Others may spend less by that, except in the last tiers: sources with
    /// little debt are served.
    pub fn take(&self, amount: u64, now: UnixTime) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.recover(&mut state, now.as_secs());
        let taken = state.all.owed.saturating_add(amount.saturating_mul(ONE)).min(self.eighths(6));
        state.all.owed = state.all.owed.max(taken);
    }

    /// Gives back what has come since the last time.
    fn recover(&self, state: &mut RateLimitState, now: u64) {
        // A clock that was set back gives nothing, and takes nothing. Nothing is owed any longer once all of it has come back.
        let all_of_it = self.at_once.div_ceil(self.each_second.max(1)).saturating_add(1);
        let seconds = now.saturating_sub(state.at).min(all_of_it);
        // A request that has waited for a processor has an earlier time than one that came after it: no second comes back twice.
        if now > state.at || state.at - now > REORDERED_SECONDS {
            state.at = now;
        }
        let came = self.each_second.saturating_mul(ONE).saturating_mul(seconds);
        state.all.owed = state.all.owed.saturating_sub(came);
        state.all.share_out(self.shared_each_second().saturating_mul(seconds));
    }

    /// Returns the seconds until this tier may spend the amount, if no source spends anything until then; 0 if it may at once.
    fn wait(&self, tier: &Tier, levels: &[RateLevel], spent: u64, amount: u64) -> u64 {
        let each_second = self.each_second.max(1).saturating_mul(ONE);
        let whole = seconds(spent.saturating_add(amount), self.eighths(tier.whole), each_second);
        let [networks @ .., own] = levels else { return whole };
        let limit = |level: &RateLevel, eighths: u64| (level.part / 8).saturating_mul(eighths);
        let within = |level: &RateLevel, limit: u64| seconds(level.owed.saturating_add(amount), limit, level.each_second);
        let networks = |limit: &dyn Fn(&RateLevel) -> u64| networks.iter().map(|level| within(level, limit(level))).fold(whole, u64::max);
        match tier.takers {
            Takers::Anybody => whole,
            Takers::Within {
                own: eighths,
                networks: of_networks,
            } => within(own, limit(own, eighths)).max(networks(&|level| limit(level, of_networks))),
            // Also where thousands ask, and a network's part is less than this amount, a network that owes nothing gets it.
            Takers::Debtless { networks: of_networks } => {
                seconds(own.owed, 0, own.each_second).max(networks(&|level| limit(level, of_networks).max(amount)))
            }
        }
    }

    /// Returns the part of the budget that is shared out among all sources.
    const fn part(&self) -> u64 {
        self.eighths(4)
    }

    const fn eighths(&self, eighths: u64) -> u64 {
        self.at_once.saturating_mul(ONE / 8).saturating_mul(eighths)
    }

    const fn shared_each_second(&self) -> u64 {
        self.each_second.saturating_mul(ONE / 8).saturating_mul(SHARED_EIGHTHS)
    }
}

/// Returns the seconds until no more than `limit` of `owed` is left.
fn seconds(owed: u64, limit: u64, each_second: u64) -> u64 {
    owed.saturating_sub(limit).div_ceil(each_second.max(1))
}
