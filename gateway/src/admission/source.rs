//! Sources of requests, for which limits are counted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use attest::NodeIdentity;
use aws_lc_rs::digest::{SHA256, digest};

/// Prefix lengths of the networks in which an IPv6 address is counted, the largest first: a site's, and a machine network's. The owner of
/// one address in a network of 64 bits has 2^64 of them. The owner of a network of 48 bits has 65,536 of those. Shares are fair among the
/// largest, in each of them among the smaller ones, and in those among addresses.
///
/// An IPv4 address is in none. They are handed out one by one, and a prefix would make a rack of good machines answer for one bad
/// neighbour.
const IPV6_NETWORKS_BITS: [u8; 2] = [48, 64];
/// The network that stands for an IPv6 address where an address says nothing.
const IPV6_MACHINES_BITS: u8 = 64;
const IPV4_BITS: u8 = 32;
const IPV6_BITS: u8 = 128;

/// The origin of a request: an address, with the networks in which it shares what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientSource {
    address: IpAddr,
    is_known: bool,
}

/// A network, or an address by itself, that has a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl From<Ipv4Addr> for ClientSource {
    fn from(peer: Ipv4Addr) -> Self {
        Self::from(IpAddr::from(peer))
    }
}

impl From<IpAddr> for ClientSource {
    fn from(peer: IpAddr) -> Self {
        Self {
            address: peer.to_canonical(),
            is_known: false,
        }
    }
}

impl ClientSource {
    /// Returns an address that has proven something lately ([`super::Known`]). It counts by itself, like an IPv4 address: neighbours that
    /// have proven nothing use up none of its share.
    #[must_use]
    pub fn proven(peer: IpAddr) -> Self {
        let address = peer.to_canonical();
        Self {
            address,
            is_known: address.is_ipv6(),
        }
    }

    /// Returns the source that stands for a machine which has proven its identity, wherever its requests come from. It counts by itself.
    #[must_use]
    pub fn of_machine(identity: &NodeIdentity) -> Self {
        let digest = digest(&SHA256, identity.as_str().as_bytes());
        let mut bits = [0; 16];
        bits.iter_mut().zip(digest.as_ref()).for_each(|(bit, byte)| *bit = *byte);
        Self {
            address: Ipv6Addr::from(bits).into(),
            is_known: true,
        }
    }

    /// Returns the networks that have a share of which this source has a part, the largest first, and the address itself last.
    pub fn networks(self) -> impl Iterator<Item = Network> {
        let counts_alone = self.is_known || self.address.is_ipv4();
        let larger = IPV6_NETWORKS_BITS.into_iter().filter(move |_| !counts_alone);
        let larger = larger.map(move |bits| Network::new(self.address, bits));
        larger.chain([Network::new(self.address, IPV6_BITS)])
    }

    /// Returns the network of its machines, for what is not worth an entry for each address; for an IPv4 address that address.
    #[must_use]
    pub fn machines(self) -> Network {
        Network::new(self.address, IPV6_MACHINES_BITS)
    }
}

impl Network {
    fn new(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(_) => Self { address, bits: IPV4_BITS },
            IpAddr::V6(six) => {
                let host_bits = u32::from(IPV6_BITS.saturating_sub(bits));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                let address = Ipv6Addr::from_bits(six.to_bits() & mask).into();
                Self { address, bits }
            }
        }
    }

    /// Returns the length of its prefix, as an IPv6 network's.
    pub(super) const fn bits(self) -> u8 {
        self.bits
    }
}

impl fmt::Display for ClientSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.bits) {
            (IpAddr::V4(address), _) => address.fmt(f),
            (IpAddr::V6(address), IPV6_BITS) => address.fmt(f),
            (IpAddr::V6(network), bits) => write!(f, "{network}/{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(source: ClientSource) -> Vec<String> {
        source.networks().map(|network| network.to_string()).collect()
    }

    #[test]
    fn counts_ipv6_addresses_also_by_48_and_64() {
        let source = |address: &str| ClientSource::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(networks(source("192.0.2.66")), ["192.0.2.66"]);
        assert_eq!(networks(source("::ffff:192.0.2.66")), ["192.0.2.66"]);
        let six = networks(source("2001:db8:1:2:ffff::1"));
        assert_eq!(six, ["2001:db8:1::/48", "2001:db8:1:2::/64", "2001:db8:1:2:ffff::1"]);
        assert_eq!(networks(source("::1")), ["::/48", "::/64", "::1"]);
    }

    #[test]
    fn counts_a_trusted_address_alone() {
        let known = |address: &str| ClientSource::proven(address.parse().unwrap());
        assert_eq!(networks(known("2001:db8:1:2:ffff::1")), ["2001:db8:1:2:ffff::1"]);
        assert_eq!(known("::ffff:192.0.2.66"), ClientSource::from(Ipv4Addr::new(192, 0, 2, 66)));
    }

    #[test]
    fn maps_an_ipv6_address_to_its_64_network() {
        let check = |address: &str, network: &str| {
            let source = ClientSource::from(address.parse::<IpAddr>().unwrap());
            assert_eq!(source.machines().to_string(), network);
        };
        check("192.0.2.66", "192.0.2.66");
        check("::ffff:192.0.2.66", "192.0.2.66");
        check("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64");
        check("::1", "::/64");
    }
}
