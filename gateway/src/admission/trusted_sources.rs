//! Addresses that have proven something lately: what they come for next is nearly theirs. Of an IPv6 address nothing follows for its neighbours: the network
//! of a machine is one that strangers may be in, too.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lifetime of an entry: as long as a ticket is valid by default. A client that comes later waits with the others.
const LASTS: Duration = Duration::from_secs(600);
/// Maximum number of addresses; the oldest are forgotten first.
const MOST: usize = 65_536;

/// Addresses from which accepted evidence came.
#[derive(Debug, Default)]
pub struct TrustedSources(Mutex<Sources>);

#[derive(Debug, Default)]
struct Sources {
    since: HashMap<IpAddr, Instant>,
    /// All of them, and how each was remembered; the first one longest ago.
    order: VecDeque<(Instant, IpAddr)>,
}

impl TrustedSources {
    /// Notes that this address has proven something at `now`.
    pub fn note(&self, address: IpAddr, now: Instant) {
        let address = address.to_canonical();
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.since.insert(address, now);
        sources.order.push_back((now, address));
        while sources.order.len() > MOST || sources.order.front().is_some_and(|(since, _)| is_over(*since, now)) {
            let Some((since, address)) = sources.order.pop_front() else { break };
            // It may have done so again since.
            if sources.since.get(&address) == Some(&since) {
                sources.since.remove(&address);
            }
        }
    }

    /// Returns whether this address has proven something shortly before `now`.
    #[must_use]
    pub fn knows(&self, address: IpAddr, now: Instant) -> bool {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources
            .since
            .get(&address.to_canonical())
            .is_some_and(|since| !is_over(*since, now))
    }
}

fn is_over(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= LASTS
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn source(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(u32::try_from(number).unwrap_or_default()).into()
    }

    #[test]
    fn a_source_stays_trusted_until_idle_too_long() {
        let (known, start) = (TrustedSources::default(), Instant::now());
        assert!(!known.knows(source(1), start));
        known.note(source(1), start);
        known.note(source(2), start + LASTS / 2);
        known.note(source(1), start + LASTS / 2);
        let late = start + LASTS;
        assert!(known.knows(source(1), late) && known.knows(source(2), late) && !known.knows(source(3), late));
        known.note(source(3), late + LASTS / 2);
        assert!(!known.knows(source(1), late + LASTS / 2));
        let sources = known.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!((sources.since.len(), sources.order.len()), (1, 1));
    }

    #[test]
    fn attack_55_neighbours_of_a_trusted_address_are_not_trusted() {
        let (known, now) = (TrustedSources::default(), Instant::now());
        let address = |last: u16| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
        known.note(address(7), now);
        assert!(known.knows(address(7), now) && !known.knows(address(66), now));
    }

    #[test]
    fn number_of_trusted_sources_is_bounded() {
        let (known, start) = (TrustedSources::default(), Instant::now());
        (0..MOST + 10).for_each(|number| known.note(source(number), start));
        assert!(!known.knows(source(9), start) && known.knows(source(10), start) && known.knows(source(MOST + 9), start));
        // Whoever does so without end takes one place in the end.
        (0..MOST).for_each(|_| known.note(source(7), start));
        let sources = known.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!((sources.since.len(), sources.order.len()), (1, MOST));
    }
}
