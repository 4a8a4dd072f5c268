//! Addresses of the servers to probe.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;
use url::Host;

/// Port of a Machine Config Server with TLS.
const TLS_PORT: u16 = 22623;
/// Port of a Machine Config Server without TLS.
const PLAIN_PORT: u16 = 22624;

/// An address, and the port to ask there if it is not the usual two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    host: Host<String>,
    port: Option<u16>,
}

/// A port, with or without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePort {
    number: u16,
    tls: bool,
}

/// Text that is not an address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address: give an IP address or a host's name, with :PORT if it is not 22623 and 22624")]
pub struct BadTarget(String);

impl ProbeTarget {
    /// Opens a connection to a port of the host, and closes it.
    pub(super) async fn connect(&self, port: u16) -> io::Result<()> {
        let connected = match &self.host {
            Host::Domain(name) => TcpStream::connect((name.as_str(), port)).await,
            Host::Ipv4(ip) => TcpStream::connect((*ip, port)).await,
            Host::Ipv6(ip) => TcpStream::connect((*ip, port)).await,
        };
        connected.map(drop)
    }

    /// Resolves a host's name.
    ///
    /// # Errors
    /// If the name has no address.
    pub async fn resolve(&self) -> io::Result<()> {
        if let Host::Domain(name) = &self.host {
            drop(tokio::net::lookup_host((name.as_str(), 0)).await?);
        }
        Ok(())
    }

    /// Parses `192.0.2.5`, `192.0.2.5:8443`, `2001:db8::5`, `[2001:db8::5]:8443`, `host`, `host:8443`.
    ///
    /// # Errors
    /// [`BadTarget`].
    pub fn parse(text: &str) -> Result<Self, BadTarget> {
        let of_ip = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => Host::Ipv4(ip),
            IpAddr::V6(ip) => Host::Ipv6(ip),
        };
        if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
            return Ok(Self {
                host: of_ip(ip),
                port: None,
            });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self {
                host: of_ip(address.ip()),
                port: Some(address.port()),
            });
        }
        let bad = || BadTarget(text.chars().take(200).collect());
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let host = Host::parse(host).map_err(|_| bad())?;
        Ok(Self { host, port })
    }

    /// Returns the ports to ask: the Machine Config Server's two, or the one that was named, both with TLS and without.
    #[must_use]
    pub fn ports(&self) -> [ProbePort; 2] {
        [
            ProbePort {
                number: self.port.unwrap_or(TLS_PORT),
                tls: true,
            },
            ProbePort {
                number: self.port.unwrap_or(PLAIN_PORT),
                tls: false,
            },
        ]
    }

    pub(super) fn url(&self, port: ProbePort, path: &str) -> String {
        let scheme = if port.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}{path}", self.host, port.number)
    }
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)
    }
}

impl ProbePort {
    pub(super) const fn number(self) -> u16 {
        self.number
    }
}

impl fmt::Display for ProbePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, if self.tls { "TLS" } else { "plain" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, tls: &str, plain: &str) {
        let target = ProbeTarget::parse(text).unwrap();
        assert_eq!(target.ports().map(|port| target.url(port, "/x")), [tls, plain], "{text}");
    }

    #[test]
    fn addresses_may_have_a_port() {
        check("192.0.2.5", "https://192.0.2.5:22623/x", "http://192.0.2.5:22624/x");
        check("192.0.2.5:8443", "https://192.0.2.5:8443/x", "http://192.0.2.5:8443/x");
        check("2001:db8::5", "https://[2001:db8::5]:22623/x", "http://[2001:db8::5]:22624/x");
        check("[2001:db8::5]", "https://[2001:db8::5]:22623/x", "http://[2001:db8::5]:22624/x");
        check("[2001:db8::5]:1", "https://[2001:db8::5]:1/x", "http://[2001:db8::5]:1/x");
        check(
            "master-0.example",
            "https://master-0.example:22623/x",
            "http://master-0.example:22624/x",
        );
        check("master-0:1", "https://master-0:1/x", "http://master-0:1/x");
        for wrong in ["", "https://a", "a:b", "a:70000", "a/b", "a b", "user@a", "a:1:2"] {
            assert!(ProbeTarget::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
