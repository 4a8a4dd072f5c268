//! Wrong credentials: a source that repeatedly shows wrong tokens, tickets or certificates gets 503. A right one is always accepted,
//! whatever other clients share the address: only wrong ones are limited.
//!
//! Tokens have 256 random bits, so guessing is hopeless as it is. The limit keeps guesses from filling the attestation log.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use attest::UnixTime;

use super::ClientSource;
use super::source::Network;

/// Wrong credentials that an address may show at once: a rack of machines behind one address that all have the same dead pointer.
const BURST: u64 = 20;
/// Time until an address may be wrong one more time, in milliseconds.
const REFILL_MILLIS: u64 = 3000;
/// Times that an IPv6 network of 64 bits may be wrong for each time that an address may. It allows for that many machines with a dead
/// pointer, not for each of the network's addresses.
const MACHINES_FACTOR: u64 = 8;
/// The same of a network of 48 bits.
const SITE_FACTOR: u64 = 64;
/// Accounts that are remembered, of addresses and networks. One takes about a hundred bytes.
const ACCOUNTS_LIMIT: usize = 4096;
/// Interval of console messages about one network, in milliseconds.
const WARN_EVERY_MILLIS: u64 = 60_000;

/// Counts of wrong credentials by address and network.
#[derive(Debug, Default)]
pub struct WrongCredentials {
    accounts: Mutex<HashMap<Network, FailureAccount>>,
}

/// An account. It is kept as a time, in milliseconds: each wrong credential moves it on, and at that time the account is full again.
#[derive(Debug, Clone, Copy)]
struct FailureAccount {
    full_at: u64,
    last: u64,
    warned: Option<u64>,
}

/// Consequence of a wrong credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureOutcome {
    /// A refusal, as it is.
    Refused,
    /// Too many came from this source: the answer is 503.
    TooMany {
        /// Set if a console message is due: there was none for a while.
        tell: bool,
    },
}

impl WrongCredentials {
    /// Counts a credential of this source that was wrong, for its address and for each of its networks.
    pub fn count(&self, source: ClientSource, now: UnixTime) -> FailureOutcome {
        let now = now.as_secs().saturating_mul(1000);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // The largest network first: where that has been wrong too often, its addresses need no accounts.
        for network in source.networks() {
            let account = account(&mut accounts, network, now);
            if account.may_not(step(network), now) {
                let tell = account.warned.is_none_or(|warned| now.abs_diff(warned) >= WARN_EVERY_MILLIS);
                if tell {
                    account.warned = Some(now);
                }
                return FailureOutcome::TooMany { tell };
            }
        }
        for network in source.networks() {
            if let Some(account) = accounts.get_mut(&network) {
                account.full_at = account.full_at.max(now).saturating_add(step(network));
            }
        }
        FailureOutcome::Refused
    }
}

/// Returns the milliseconds by which one wrong credential moves the account of this network. All accounts take the same time until they are
/// full again.
const fn step(network: Network) -> u64 {
    match network.bits() {
        48 => REFILL_MILLIS / SITE_FACTOR,
        64 => REFILL_MILLIS / MACHINES_FACTOR,
        _ => REFILL_MILLIS,
    }
}

fn account(accounts: &mut HashMap<Network, FailureAccount>, network: Network, now: u64) -> &mut FailureAccount {
    if !accounts.contains_key(&network) && accounts.len() >= ACCOUNTS_LIMIT {
        make_room(accounts, now);
    }
    let account = accounts.entry(network).or_insert(FailureAccount {
        full_at: now,
        last: now,
        warned: None,
    });
    account.set_back(now);
    account.last = now;
    account
}

impl FailureAccount {
    /// Returns whether one more wrong credential would be too many.
    const fn may_not(&self, step: u64, now: u64) -> bool {
        self.full_at.saturating_sub(now).saturating_add(step) > BURST * REFILL_MILLIS
    }

    /// Adjusts the account to a clock that was set back, which must not keep a source waiting for longer.
    const fn set_back(&mut self, now: u64) {
        if now < self.last {
            self.full_at = self.full_at.saturating_sub(self.last).saturating_add(now);
            self.last = now;
        }
    }
}

/// Forgets the accounts that are full again, or else the one whose last wrong credential is oldest.
fn make_room(accounts: &mut HashMap<Network, FailureAccount>, now: u64) {
    accounts.retain(|_, account| account.full_at > now);
    if accounts.len() >= ACCOUNTS_LIMIT {
        let oldest = accounts.iter().min_by_key(|(network, account)| (account.last, **network));
        if let Some(oldest) = oldest.map(|(network, _)| *network) {
            accounts.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;

    const ATTACKER: &str = "192.0.2.66";

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    /// Returns how many of `times` wrong credentials are refused, and not answered by 503.
    fn refused(wrong: &WrongCredentials, peer: &str, times: u64, now: u64) -> usize {
        let peer: IpAddr = peer.parse().unwrap();
        (0..times)
            .filter(|_| wrong.count(peer.into(), at(now)) == FailureOutcome::Refused)
            .count()
    }

    #[test]
    fn failure_quota_of_a_source_refills() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 100, 1000), 20);
        assert_eq!(refused(&wrong, ATTACKER, 100, 1002), 0);
        assert_eq!(refused(&wrong, ATTACKER, 100, 1003), 1);
        assert_eq!(refused(&wrong, ATTACKER, 100, 1005), 0);
        assert_eq!(refused(&wrong, ATTACKER, 100, 1009), 2);
        // Full again after a minute, and not more than full after an hour.
        assert_eq!(refused(&wrong, ATTACKER, 100, 5000), 20);
    }

    #[test]
    fn failures_of_a_source_do_not_affect_others() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 1000, 1000), 20);
        for other in ["192.0.2.65", "192.0.2.67", "::1", "2001:db8::1"] {
            assert_eq!(refused(&wrong, other, 1, 1000), 1, "{other}");
        }
        assert_eq!(refused(&wrong, "::ffff:192.0.2.66", 1, 1000), 0);
    }

    #[test]
    fn attack_55_neighbours_in_64_bits_use_their_own_failures() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, "2001:db8:0:1::66", 1000, 1000), 20);
        assert_eq!(refused(&wrong, "2001:db8:0:1:ffff::1", 1000, 1000), 20);
        // Many addresses of a network are not many networks, nor is each of those as much as a site.
        let from_many = |wrong: &WrongCredentials, network: &str| {
            let of_one = |host: u32| refused(wrong, &format!("{network}::{host:x}"), 1, 1000);
            (1000..1400).map(of_one).sum::<usize>()
        };
        assert_eq!(from_many(&wrong, "2001:db8:0:1"), 8 * 20 - 2 * 20);
        assert_eq!(refused(&wrong, "2001:db8:0:2::1", 1, 1000), 1);
        assert_eq!(refused(&wrong, "2001:db8:1::1", 1, 1000), 1);
        let of_a_site: usize = (3..300).map(|number| from_many(&wrong, &format!("2001:db8:0:{number:x}"))).sum();
        assert!((900..=64 * 21).contains(&of_a_site), "{of_a_site}");
        assert_eq!(refused(&wrong, "2001:db8:1::1", 1, 1000), 1);
        let known = |address: &str| wrong.count(ClientSource::proven(address.parse().unwrap()), at(1000));
        assert_eq!(known("2001:db8:0:1::7"), FailureOutcome::Refused);
        assert!(wrong.accounts.lock().unwrap().len() < ACCOUNTS_LIMIT);
    }

    #[test]
    fn failure_quota_warning_is_printed_once_a_minute() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 20, 1000), 20);
        let count = |now| wrong.count(ATTACKER.parse::<IpAddr>().unwrap().into(), at(now));
        assert_eq!(count(1000), FailureOutcome::TooMany { tell: true });
        assert_eq!(count(1000), FailureOutcome::TooMany { tell: false });
        assert_eq!(refused(&wrong, ATTACKER, 19, 1059), 19);
        assert_eq!(count(1059), FailureOutcome::TooMany { tell: false });
        assert_eq!(count(1060), FailureOutcome::Refused);
        assert_eq!(count(1060), FailureOutcome::TooMany { tell: true });
    }

    #[test]
    fn setting_the_clock_back_delays_no_refill() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 20, 100_000), 20);
        assert_eq!(refused(&wrong, ATTACKER, 1, 1000), 0);
        assert_eq!(refused(&wrong, ATTACKER, 2, 1003), 1);
    }

    #[test]
    fn accounts_are_bounded_and_the_oldest_is_evicted() {
        let wrong = WrongCredentials::default();
        let source = |number: usize| ClientSource::from(Ipv4Addr::from_bits(u32::try_from(number).unwrap()));
        let spend = |number: usize, now: u64| {
            (0..20)
                .filter(|_| wrong.count(source(number), at(now)) == FailureOutcome::Refused)
                .count()
        };
        for number in 1..=ACCOUNTS_LIMIT {
            assert_eq!(spend(number, if number == 7 { 1000 } else { 1001 }), 20);
        }
        let count = || wrong.accounts.lock().unwrap().len();
        assert_eq!((spend(8, 1001), count()), (0, ACCOUNTS_LIMIT));
        assert_eq!(spend(ACCOUNTS_LIMIT + 1, 1002), 20);
        assert_eq!(count(), ACCOUNTS_LIMIT);
        assert_eq!((spend(8, 1002), spend(ACCOUNTS_LIMIT + 1, 1002)), (0, 0));
        assert!(
            !wrong.accounts.lock().unwrap().contains_key(&source(7).machines()),
            "the oldest was forgotten"
        );
        // Those that are full again need not be remembered, and go before anybody else does.
        assert_eq!(spend(9, 1060), 19);
        assert_eq!(spend(ACCOUNTS_LIMIT + 2, 1061), 20);
        assert_eq!(count(), 3);
    }
}
