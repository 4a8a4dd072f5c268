//! Wrong credentials: whoever shows wrong tokens, tickets or certificates again and again is told to come again. A right one is always taken,
//! whoever else is behind the same address: what is limited is what turned out wrong.
//!
//! Tokens have 256 random bits, so guessing is hopeless as it is. The limit keeps guesses from filling the attestation log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use attest::UnixTime;

use super::Source;

/// Wrong credentials that a source may show at once: a rack of machines behind one address that all have the same dead pointer.
const BURST: u64 = 20;
/// How long it takes until a source may be wrong once more, seconds.
const REFILL_SECONDS: u64 = 3;
/// Sources that are remembered. One takes about a hundred bytes.
const SOURCES_LIMIT: usize = 4096;
/// How often the console is told about one source.
const WARN_EVERY_SECONDS: u64 = 60;

/// Who has been wrong, and how often.
#[derive(Debug, Default)]
pub struct WrongCredentials {
    sources: Mutex<HashMap<Source, Account>>,
}

/// One source's account. It is kept as a time: each wrong credential moves it on, and at that time the account is full again.
#[derive(Debug, Clone, Copy)]
struct Account {
    full_at: u64,
    last: u64,
    warned: Option<u64>,
}

/// What is made of a credential that was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// A refusal, as it is.
    Refused,
    /// There were too many from there: it is told to come again.
    TooMany {
        /// Whether to tell the console: it has not been told for a while.
        tell: bool,
    },
}

impl WrongCredentials {
    /// Counts a credential from this address that was wrong.
    pub fn count(&self, peer: IpAddr, now: UnixTime) -> Wrong {
        let now = now.as_secs();
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Source::from(peer);
        if !sources.contains_key(&key) && sources.len() >= SOURCES_LIMIT {
            make_room(&mut sources, now);
        }
        let account = sources.entry(key).or_insert(Account {
            full_at: now,
            last: now,
            warned: None,
        });
        account.set_back(now);
        account.last = now;
        let moved_on = account.full_at.max(now).saturating_add(REFILL_SECONDS);
        if moved_on.saturating_sub(now) <= BURST * REFILL_SECONDS {
            account.full_at = moved_on;
            return Wrong::Refused;
        }
        let tell = account.warned.is_none_or(|warned| now.abs_diff(warned) >= WARN_EVERY_SECONDS);
        if tell {
            account.warned = Some(now);
        }
        Wrong::TooMany { tell }
    }
}

impl Account {
    /// A clock that was set back must not keep a source waiting for longer than it would have.
    fn set_back(&mut self, now: u64) {
        if now < self.last {
            self.full_at = self.full_at.saturating_sub(self.last).saturating_add(now);
            self.last = now;
        }
    }
}

/// Forgets the sources whose account is full again; if there are none, the one that was wrong the longest time ago.
fn make_room(sources: &mut HashMap<Source, Account>, now: u64) {
    sources.retain(|_, account| account.full_at > now);
    if sources.len() >= SOURCES_LIMIT {
        let oldest = sources.iter().min_by_key(|(source, account)| (account.last, **source));
        if let Some(oldest) = oldest.map(|(source, _)| *source) {
            sources.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::time::Duration;

    use super::*;

    const ATTACKER: &str = "192.0.2.66";

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    /// How many of so many wrong credentials are refused, and not told to come again.
    fn refused(wrong: &WrongCredentials, peer: &str, times: u64, now: u64) -> usize {
        let peer: IpAddr = peer.parse().unwrap();
        (0..times).filter(|_| wrong.count(peer, at(now)) == Wrong::Refused).count()
    }

    #[test]
    fn a_source_may_be_wrong_so_often_and_again_after_a_while() {
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
    fn others_are_not_affected() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 1000, 1000), 20);
        for other in ["192.0.2.65", "192.0.2.67", "::1", "2001:db8::1"] {
            assert_eq!(refused(&wrong, other, 1, 1000), 1, "{other}");
        }
        assert_eq!(refused(&wrong, "::ffff:192.0.2.66", 1, 1000), 0);
    }

    #[test]
    fn an_ipv6_source_is_a_network_of_64_bits() {
        let wrong = WrongCredentials::default();
        for host in 0..20 {
            assert_eq!(refused(&wrong, &format!("2001:db8:0:1::{host:x}"), 1, 1000), 1);
        }
        assert_eq!(refused(&wrong, "2001:db8:0:1:ffff::1", 1, 1000), 0);
        assert_eq!(refused(&wrong, "2001:db8:0:2::1", 1, 1000), 1);
        assert_eq!(refused(&wrong, "2001:db8::1", 1, 1000), 1);
    }

    #[test]
    fn the_console_is_told_once_a_minute() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 20, 1000), 20);
        let count = |now| wrong.count(ATTACKER.parse().unwrap(), at(now));
        assert_eq!(count(1000), Wrong::TooMany { tell: true });
        assert_eq!(count(1000), Wrong::TooMany { tell: false });
        assert_eq!(refused(&wrong, ATTACKER, 19, 1059), 19);
        assert_eq!(count(1059), Wrong::TooMany { tell: false });
        assert_eq!(count(1060), Wrong::Refused);
        assert_eq!(count(1060), Wrong::TooMany { tell: true });
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nobody_waiting() {
        let wrong = WrongCredentials::default();
        assert_eq!(refused(&wrong, ATTACKER, 20, 100_000), 20);
        assert_eq!(refused(&wrong, ATTACKER, 1, 1000), 0);
        assert_eq!(refused(&wrong, ATTACKER, 2, 1003), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let wrong = WrongCredentials::default();
        let address = |number: usize| IpAddr::from(Ipv6Addr::from_bits(u128::try_from(number).unwrap() << 64));
        let spend = |number: usize, now: u64| (0..20).filter(|_| wrong.count(address(number), at(now)) == Wrong::Refused).count();
        for number in 1..=SOURCES_LIMIT {
            assert_eq!(spend(number, if number == 7 { 1000 } else { 1001 }), 20);
        }
        let count = || wrong.sources.lock().unwrap().len();
        assert_eq!((spend(8, 1001), count()), (0, SOURCES_LIMIT));
        assert_eq!(spend(SOURCES_LIMIT + 1, 1002), 20);
        assert_eq!(count(), SOURCES_LIMIT);
        assert_eq!((spend(8, 1002), spend(SOURCES_LIMIT + 1, 1002)), (0, 0));
        assert!(
            !wrong.sources.lock().unwrap().contains_key(&Source::from(address(7))),
            "the oldest was forgotten"
        );
        // Those that are full again need not be remembered, and go before anybody else does.
        assert_eq!(spend(9, 1060), 19);
        assert_eq!(spend(SOURCES_LIMIT + 2, 1061), 20);
        assert_eq!(count(), 3);
    }
}
