//! Reserved ports for servers that get their address as an argument. A port that was free a moment ago may belong to another process.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port of this machine that no other process gets while this exists. Only a server that is given the port listens there; it may stop and
/// start repeatedly.
#[derive(Debug)]
pub struct ReservedPort {
    // Bound, and never listening: the system gives it to nobody, and lets servers have it, which allow addresses to be used again.
    socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves a port on 127.0.0.1.
    #[must_use]
    pub fn reserve() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { socket }
    }

    /// Returns 127.0.0.1 and the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    #[must_use]
    pub fn number(&self) -> u16 {
        self.address().port()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn reserved_port_can_be_bound_again() {
        let port = ReservedPort::reserve();
        let refused = || TcpStream::connect(port.address()).unwrap_err().kind() == std::io::ErrorKind::ConnectionRefused;
        assert!(refused(), "nobody listens");
        for _ in 0..2 {
            let listener = TcpListener::bind(port.address()).unwrap();
            let client = TcpStream::connect(port.address()).unwrap();
            // It ends first, as a server does that is killed.
            drop(listener.accept().unwrap());
            drop((listener, client));
            assert!(refused());
        }
    }

    #[test]
    fn reserved_port_is_never_assigned_to_others() {
        let reserved: Vec<ReservedPort> = (0..50).map(|_| ReservedPort::reserve()).collect();
        let reserved: BTreeSet<u16> = reserved.iter().map(ReservedPort::number).collect();
        assert_eq!(reserved.len(), 50);
        // So often that one of them would come up.
        for _ in 0..5000 {
            let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            assert!(!reserved.contains(&other.port()));
        }
    }
}
