//! Rate limit for console messages about a peer: a peer with an error repeats it again and again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Time between messages about the same peer, in seconds: Ignition tries again every few seconds, for ever.
const QUIET_SECONDS: u64 = 60;
/// Most peers that are remembered. There are no messages about further ones, because any client can cause them.
const PEER_LIMIT: usize = 1024;

/// Peers about which there were messages lately.
#[derive(Debug, Default)]
pub(super) struct RecentWarnings {
    times: Mutex<HashMap<IpAddr, u64>>,
}

impl RecentWarnings {
    /// Returns whether there was no message about this peer in the minute before `now` (seconds since 1970). Counts a message if so.
    pub(super) fn is_worth_saying(&self, peer: IpAddr, now: u64) -> bool {
        let mut said = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = |when: &u64| now.abs_diff(*when) < QUIET_SECONDS;
        if said.get(&peer).is_some_and(lately) {
            return false;
        }
        if said.len() >= PEER_LIMIT {
            said.retain(|_, when| lately(when));
        }
        if said.len() >= PEER_LIMIT {
            return false;
        }
        said.insert(peer, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn warns_once_a_minute_per_peer() {
        let said = RecentWarnings::default();
        let peer = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        assert!(said.is_worth_saying(peer(1), 1000));
        assert!(!said.is_worth_saying(peer(1), 1059));
        assert!(said.is_worth_saying(peer(2), 1059));
        assert!(said.is_worth_saying(peer(1), 1060));
        // A clock that was set back keeps nobody quiet for long.
        assert!(said.is_worth_saying(peer(1), 10));
        for number in 0..5000 {
            said.is_worth_saying(peer(number), 2000);
        }
        assert!(said.times.lock().unwrap().len() <= PEER_LIMIT);
        assert!(!said.is_worth_saying(peer(9999), 2000));
        assert!(said.is_worth_saying(peer(9999), 2060));
    }
}
