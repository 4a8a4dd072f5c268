//! Networks, as an administrator writes them.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Text that does not name a network.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a network: use an address, or an address with a prefix length, such as 192.0.2.0/24 or 2001:db8::/48")]
pub struct NetworkError(String);

/// Reads a network, or a single address. An IPv4 network that is written as IPv6 becomes what it is, as addresses of nodes do.
///
/// # Errors
/// [`NetworkError`].
pub fn network(text: &str) -> Result<IpNet, NetworkError> {
    let refused = || NetworkError(text.to_owned());
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().map_err(|_| refused())?,
    };
    let IpNet::V6(six) = network.trunc() else {
        return Ok(network.trunc());
    };
    match (six.addr().to_ipv4_mapped(), six.prefix_len().checked_sub(96)) {
        (Some(address), Some(prefix)) => Ok(Ipv4Net::new(address, prefix).map_err(|_| refused())?.into()),
        _ => Ok(six.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_networks_and_unmaps_ipv4_in_ipv6() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(network(text).ok().map(|network| network.to_string()).as_deref(), expected, "{text}");
        };
        check("192.0.2.0/24", Some("192.0.2.0/24"));
        check("192.0.2.7/24", Some("192.0.2.0/24"));
        check("192.0.2.7", Some("192.0.2.7/32"));
        check("2001:db8::/32", Some("2001:db8::/32"));
        check("2001:db8::1", Some("2001:db8::1/128"));
        check("::ffff:192.0.2.7", Some("192.0.2.7/32"));
        check("::ffff:192.0.2.0/120", Some("192.0.2.0/24"));
        check("::/0", Some("::/0"));
        check("0.0.0.0/0", Some("0.0.0.0/0"));
        for bad in [
            "",
            "192.0.2.0/33",
            "192.0.2",
            "host",
            "2001:db8::/129",
            "192.0.2.0/24 ",
            "192.0.2.0/",
        ] {
            check(bad, None);
        }
    }
}
