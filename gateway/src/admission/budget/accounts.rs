//! Accounts of networks and addresses: what each has spent and has not made up for yet.

use std::collections::HashMap;

use super::super::source::Network;
use super::{ClientSource, RateLimitState, TELL_EVERY_SECONDS};

/// A source that has asked within this time asks: what comes back is shared out among those. As long as the longest regular pause of a node.
const ASKS_SECONDS: u64 = 15;
/// Accounts in all. One takes some 150 bytes.
const ACCOUNTS_LIMIT: usize = 16 * 1024;
/// Maximum number of accounts for the members of one network: one with 2^64 addresses leaves room for others.
const MEMBERS_LIMIT: usize = 1024;
/// Divisor of the number of accounts that are forgotten at once when all are in use. Looking at each account for each new source would cost
/// more than what the budget is for.
const FORGOTTEN_PART: usize = 16;

/// The account of a network or an address.
#[derive(Debug, Default)]
pub(super) struct RateAccount {
    /// The amount spent and not made up for, in parts of [`super::ONE`].
    pub(super) owed: u64,
    /// The amount that each member could have made up for since the first member was added.
    earned: u64,
    /// The parent network's `earned` at the last update of `owed`.
    reckoned: u64,
    /// Time of the last request, in seconds since 1970.
    asked: u64,
    told: Option<u64>,
    members: HashMap<Network, RateAccount>,
}

/// The debt and the limits of a network or an address.
#[derive(Debug)]
pub(super) struct RateLevel {
    pub(super) owed: u64,
    /// Its part of what is shared out at once.
    pub(super) part: u64,
    /// The part of its debt that it makes up for each second.
    pub(super) each_second: u64,
}

impl RateLimitState {
    /// Returns the accounts of this source and of its networks, the largest network first; makes missing ones.
    pub(super) fn enter(&mut self, source: ClientSource, mut part: u64, mut each_second: u64, now: u64) -> Vec<RateLevel> {
        let most = self.all.owed;
        let mut levels = Vec::new();
        let mut account = &mut self.all;
        for network in source.networks() {
            if !account.members.contains_key(&network) {
                let limit = if levels.is_empty() { ACCOUNTS_LIMIT } else { MEMBERS_LIMIT };
                if account.members.len() >= limit || self.accounts >= ACCOUNTS_LIMIT {
                    self.accounts = self.accounts.saturating_sub(account.forget_some());
                }
                self.accounts = self.accounts.saturating_add(1);
            }
            let earned = account.earned;
            let new = || RateAccount {
                reckoned: earned,
                ..RateAccount::default()
            };
            account.members.entry(network).or_insert_with(new);
            let members = account.members();
            let Some(member) = account.members.get_mut(&network) else { break };
            member.reckon(earned, most);
            member.asked = now;
            (part, each_second) = (part / members, each_second / members);
            levels.push(RateLevel {
                owed: member.owed,
                part,
                each_second,
            });
            account = member;
        }
        levels
    }

    /// Forgets sources that have no debt and do not ask; at most once a second.
    pub(super) fn sweep(&mut self, now: u64) {
        if self.swept != now {
            self.swept = now;
            let most = self.all.owed;
            self.accounts = self.all.sweep(now, most);
        }
    }
}

impl RateAccount {
    /// Shares out what has come back among the members.
    pub(super) fn share_out(&mut self, came: u64) {
        self.earned = self.earned.saturating_add(came / self.members());
    }

    /// Returns the number of members, but at least 1.
    fn members(&self) -> u64 {
        u64::try_from(self.members.len()).unwrap_or(u64::MAX).max(1)
    }

    /// Updates what is owed by now. No account owes more than all owe together.
    fn reckon(&mut self, earned: u64, most: u64) {
        let came = earned.saturating_sub(self.reckoned);
        self.reckoned = earned;
        self.owed = self.owed.saturating_sub(came).min(most);
        self.share_out(came);
    }

    /// Spends for an address, and for none of its networks.
    pub(super) fn charge_address(&mut self, source: ClientSource, amount: u64) {
        self.owed = self.owed.saturating_add(amount);
        let mut account = self;
        for network in source.networks() {
            let Some(member) = account.members.get_mut(&network) else { return };
            account = member;
        }
        account.owed = account.owed.saturating_add(amount);
    }

    /// Spends for an address and for its networks.
    pub(super) fn charge_all(&mut self, source: ClientSource, amount: u64) {
        self.owed = self.owed.saturating_add(amount);
        let mut account = self;
        for network in source.networks() {
            let Some(member) = account.members.get_mut(&network) else { return };
            member.owed = member.owed.saturating_add(amount);
            account = member;
        }
    }

    /// Returns whether a console message about this source is due. Messages count by its largest network, so that a client with many
    /// addresses does not flood the console.
    pub(super) fn tells(&mut self, source: ClientSource, now: u64) -> bool {
        let account = source.networks().next().and_then(|network| self.members.get_mut(&network));
        let tells = |account: &mut Self| {
            let tell = !account.was_told(now);
            if tell {
                account.told = Some(now);
            }
            tell
        };
        account.is_some_and(tells)
    }

    fn was_told(&self, now: u64) -> bool {
        self.told.is_some_and(|told| now.abs_diff(told) < TELL_EVERY_SECONDS)
    }

    /// Removes accounts as [`RateLimitState::sweep`] does; returns how many are left.
    fn sweep(&mut self, now: u64, most: u64) -> usize {
        let (earned, mut left) = (self.earned, 0);
        self.members.retain(|_, member| {
            member.reckon(earned, most);
            let below = member.sweep(now, most);
            let stays = below > 0 || member.owed > 0 || now.abs_diff(member.asked) < ASKS_SECONDS || member.was_told(now);
            left += below + usize::from(stays);
            stays
        });
        left
    }

    /// Forgets some members with all of theirs: those with the least debt, which gain least by that. Returns the number of forgotten
    /// accounts.
    fn forget_some(&mut self) -> usize {
        let mut owed: Vec<u64> = self.members.values().map(|member| member.owed).collect();
        let mut some = owed.len().div_ceil(FORGOTTEN_PART);
        let place = some.saturating_sub(1);
        if place >= owed.len() {
            return 0;
        }
        let (_, most, _) = owed.select_nth_unstable(place);
        let most = *most;
        let mut forgotten = 0;
        self.members.retain(|_, member| {
            let goes = some > 0 && member.owed <= most;
            if goes {
                some -= 1;
                forgotten += member.count();
            }
            !goes
        });
        forgotten
    }

    /// Returns the number of accounts from this one down.
    pub(super) fn count(&self) -> usize {
        1 + self.members.values().map(Self::count).sum::<usize>()
    }
}
