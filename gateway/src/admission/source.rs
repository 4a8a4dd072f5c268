//! Whom limits are counted for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who has one address of an IPv6 network has 2^64: the rest of the address says nothing. Of IPv4 each address counts by itself: they are
/// handed out one by one, and a shorter prefix would make a rack of good machines answer for one bad neighbour.
const IPV6_PREFIX_BITS: u32 = 64;

/// Where requests come from, as far as an address tells: an IPv4 address, or an IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl From<Ipv4Addr> for Source {
    fn from(peer: Ipv4Addr) -> Self {
        Self(peer.into())
    }
}

impl From<IpAddr> for Source {
    fn from(peer: IpAddr) -> Self {
        match peer.to_canonical() {
            IpAddr::V6(address) => {
                let host_bits = Ipv6Addr::BITS - IPV6_PREFIX_BITS;
                Self(Ipv6Addr::from_bits(address.to_bits() >> host_bits << host_bits).into())
            }
            four => Self(four),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/{IPV6_PREFIX_BITS}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_for_its_network() {
        let check = |address: &str, source: &str| assert_eq!(Source::from(address.parse::<IpAddr>().unwrap()).to_string(), source);
        check("192.0.2.66", "192.0.2.66");
        check("::ffff:192.0.2.66", "192.0.2.66");
        check("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64");
        check("::1", "::/64");
    }
}
