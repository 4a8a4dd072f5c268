//! Guessing: whoever shows wrong tokens or tickets again and again is not listened to for a while, and nobody else is.
//!
//! Tokens have 256 random bits, so guessing is hopeless as it is. The limit keeps guesses from filling the attestation log.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use attest::UnixTime;

/// Wrong credentials that a source may show at once: a rack of machines behind one address that all have the same dead pointer.
const BURST_GUESSES: u64 = 20;
/// How long it takes until a source may be wrong once more, seconds.
const REFILL_SECONDS: u64 = 3;
/// How far a source gets into debt by guesses that were under way together. It bounds how long a good node behind the same address waits.
const DEBT_LIMIT_GUESSES: u64 = 20;
/// Sources that are remembered. One takes about a hundred bytes.
const SOURCES_LIMIT: usize = 4096;
/// How often the console is told about one source.
const WARN_EVERY_SECONDS: u64 = 60;
/// Who has one address of an IPv6 network has 2^64: the rest of the address says nothing.
const IPV6_PREFIX_BITS: u32 = 64;

/// Who has been wrong, and how often.
#[derive(Debug, Default)]
pub struct Guesses {
    sources: Mutex<HashMap<IpAddr, Source>>,
}

/// One source. Its account is kept as a time: each wrong credential moves it on, and at that time the account is full again.
#[derive(Debug, Clone, Copy)]
struct Source {
    full_at: u64,
    last: u64,
    warned: Option<u64>,
}

/// Whether a source is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Good,
    /// It was wrong too often.
    Over {
        /// Whether to tell the console: it has not been told for a while.
        tell: bool,
    },
}

impl Guesses {
    /// Whether a credential from this address is looked at.
    pub fn standing(&self, peer: IpAddr, now: UnixTime) -> Standing {
        let now = now.as_secs();
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = sources.get_mut(&source(peer)) else {
            return Standing::Good;
        };
        source.set_back(now);
        if source.full_at.saturating_sub(now).saturating_add(REFILL_SECONDS) <= BURST_GUESSES * REFILL_SECONDS {
            return Standing::Good;
        }
        let tell = source.warned.is_none_or(|warned| now.abs_diff(warned) >= WARN_EVERY_SECONDS);
        if tell {
            source.warned = Some(now);
        }
        Standing::Over { tell }
    }

    /// Counts a credential that was wrong.
    pub fn wrong(&self, peer: IpAddr, now: UnixTime) {
        let now = now.as_secs();
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let key = source(peer);
        if !sources.contains_key(&key) && sources.len() >= SOURCES_LIMIT {
            make_room(&mut sources, now);
        }
        let source = sources.entry(key).or_insert(Source {
            full_at: now,
            last: now,
            warned: None,
        });
        source.set_back(now);
        let most = now.saturating_add((BURST_GUESSES + DEBT_LIMIT_GUESSES) * REFILL_SECONDS);
        source.full_at = source.full_at.max(now).saturating_add(REFILL_SECONDS).min(most);
        source.last = now;
    }
}

impl Source {
    /// A clock that was set back must not keep a source waiting for longer than it would have.
    fn set_back(&mut self, now: u64) {
        if now < self.last {
            self.full_at = self.full_at.saturating_sub(self.last).saturating_add(now);
            self.last = now;
        }
    }
}

/// Forgets the sources whose account is full again; if there are none, the one that was wrong the longest time ago.
fn make_room(sources: &mut HashMap<IpAddr, Source>, now: u64) {
    sources.retain(|_, source| source.full_at > now);
    if sources.len() >= SOURCES_LIMIT {
        let oldest = sources.iter().min_by_key(|(address, source)| (source.last, **address));
        if let Some(oldest) = oldest.map(|(address, _)| *address) {
            sources.remove(&oldest);
        }
    }
}

/// The source that an address stands for.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> (Ipv6Addr::BITS - IPV6_PREFIX_BITS) << (Ipv6Addr::BITS - IPV6_PREFIX_BITS);
            Ipv6Addr::from_bits(network).into()
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ATTACKER: &str = "192.0.2.66";

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn wrong(guesses: &Guesses, peer: &str, times: u64, now: u64) {
        for _ in 0..times {
            guesses.wrong(ip(peer), at(now));
        }
    }

    #[track_caller]
    fn check(guesses: &Guesses, peer: &str, now: u64, good: bool) {
        assert_eq!(guesses.standing(ip(peer), at(now)) == Standing::Good, good, "{peer} at {now}");
    }

    #[test]
    fn a_source_is_heard_until_it_was_wrong_too_often_and_again_after_a_while() {
        let guesses = Guesses::default();
        check(&guesses, ATTACKER, 1000, true);
        wrong(&guesses, ATTACKER, 19, 1000);
        check(&guesses, ATTACKER, 1000, true);
        wrong(&guesses, ATTACKER, 1, 1000);
        check(&guesses, ATTACKER, 1000, false);
        check(&guesses, ATTACKER, 1002, false);
        check(&guesses, ATTACKER, 1003, true);
        // One guess is one more refill.
        wrong(&guesses, ATTACKER, 1, 1003);
        check(&guesses, ATTACKER, 1005, false);
        check(&guesses, ATTACKER, 1006, true);
        // Full again after a minute, and not more than full after an hour.
        wrong(&guesses, ATTACKER, 19, 5000);
        check(&guesses, ATTACKER, 5000, true);
        wrong(&guesses, ATTACKER, 1, 5000);
        check(&guesses, ATTACKER, 5000, false);
    }

    #[test]
    fn others_are_not_affected() {
        let guesses = Guesses::default();
        wrong(&guesses, ATTACKER, 1000, 1000);
        check(&guesses, ATTACKER, 1000, false);
        for other in ["192.0.2.65", "192.0.2.67", "::1", "2001:db8::1"] {
            check(&guesses, other, 1000, true);
        }
        check(&guesses, "::ffff:192.0.2.66", 1000, false);
    }

    #[test]
    fn an_ipv6_source_is_a_network_of_64_bits() {
        let guesses = Guesses::default();
        for host in 0..20 {
            wrong(&guesses, &format!("2001:db8:0:1::{host:x}"), 1, 1000);
        }
        check(&guesses, "2001:db8:0:1:ffff::1", 1000, false);
        check(&guesses, "2001:db8:0:2::1", 1000, true);
        check(&guesses, "2001:db8::1", 1000, true);
    }

    #[test]
    fn guesses_under_way_together_cost_no_more_than_the_debt() {
        let guesses = Guesses::default();
        wrong(&guesses, ATTACKER, 10_000, 1000);
        check(&guesses, ATTACKER, 1000 + 62, false);
        check(&guesses, ATTACKER, 1000 + 63, true);
    }

    #[test]
    fn the_console_is_told_once_a_minute() {
        let guesses = Guesses::default();
        wrong(&guesses, ATTACKER, 1000, 1000);
        let tell = |now| guesses.standing(ip(ATTACKER), at(now));
        assert_eq!(tell(1000), Standing::Over { tell: true });
        assert_eq!(tell(1000), Standing::Over { tell: false });
        wrong(&guesses, ATTACKER, 1000, 1059);
        assert_eq!(tell(1059), Standing::Over { tell: false });
        assert_eq!(tell(1060), Standing::Over { tell: true });
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nobody_waiting() {
        let guesses = Guesses::default();
        wrong(&guesses, ATTACKER, 20, 100_000);
        check(&guesses, ATTACKER, 1000, false);
        check(&guesses, ATTACKER, 1003, true);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let guesses = Guesses::default();
        let address = |number: usize| IpAddr::from(Ipv6Addr::from_bits(u128::try_from(number).unwrap() << 64));
        let wrong = |number: usize, now: u64| (0..20).for_each(|_| guesses.wrong(address(number), at(now)));
        let over = |number: usize, now: u64| guesses.standing(address(number), at(now)) != Standing::Good;
        for number in 1..=SOURCES_LIMIT {
            wrong(number, if number == 7 { 1000 } else { 1001 });
        }
        let count = || guesses.sources.lock().unwrap().len();
        assert!(over(7, 1001) && over(8, 1001));
        wrong(SOURCES_LIMIT + 1, 1002);
        assert_eq!(count(), SOURCES_LIMIT);
        assert!(!over(7, 1002), "the oldest was forgotten");
        assert!(over(8, 1002) && over(SOURCES_LIMIT + 1, 1002));
        // Those that are full again need not be remembered, and go before anybody else does.
        wrong(9, 1060);
        wrong(SOURCES_LIMIT + 2, 1061);
        assert_eq!(count(), 3);
        assert!(over(9, 1061) && over(SOURCES_LIMIT + 2, 1061));
    }
}
