//! What is said of a peer on the console, once in a while: whoever goes wrong does so again and again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// How long nothing more is said of a peer, in seconds: Ignition tries again every few seconds, for ever.
const QUIET_SECONDS: u64 = 60;
/// Most peers that are remembered. Of more at once nothing is said: anybody can go wrong.
const PEER_LIMIT: usize = 1024;

/// Of whom something was said lately.
#[derive(Debug, Default)]
pub(super) struct Said {
    said: Mutex<HashMap<IpAddr, u64>>,
}

impl Said {
    /// Whether nothing was said of this peer in the minute before `now` (seconds since 1970).
    pub(super) fn is_worth_saying(&self, peer: IpAddr, now: u64) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_peer_is_named_once_a_minute_and_not_too_many() {
        let said = Said::default();
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
        assert!(said.said.lock().unwrap().len() <= PEER_LIMIT);
        assert!(!said.is_worth_saying(peer(9999), 2000));
        assert!(said.is_worth_saying(peer(9999), 2060));
    }
}
