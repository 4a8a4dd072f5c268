//! Debian's haproxy: a load balancer that does not terminate TLS, and sends the clients' addresses by the PROXY protocol.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

/// Source address of its connections. All of 127.0.0.0/8 belongs to this machine.
pub const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);

/// On a free port of this machine; killed when dropped.
pub struct Haproxy {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Haproxy {
    /// Starts a balancer that distributes connections to these servers in turn, and to another one if a server refuses. The options apply
    /// to each `server`.
    #[must_use]
    pub fn before(servers: &[SocketAddr], options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        // The socket is there before haproxy is, so that nobody has to wait for it.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = |(number, address)| format!(" server {number} {address} source {BALANCER} send-proxy-v2 {options}\n");
        let servers: String = servers.iter().enumerate().map(server).collect();
        let configuration = format!(
            "global\n log stdout format raw daemon\n\
             defaults\n mode tcp\n log global\n option log-health-checks\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n\
             frontend nodes\n bind fd@0\n default_backend servers\n\
             backend servers\n balance roundrobin\n option redispatch 1\n retries 5\n{servers}"
        );
        std::fs::write(&file, configuration).unwrap();
        let process = Command::new("/usr/sbin/haproxy")
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::piped())
            .spawn()
            .expect("haproxy: make deps installs it");
        Self {
            process,
            address,
            _folder: folder,
        }
    }

    /// Waits for its first line about a health check.
    pub fn health_check(&mut self) -> String {
        let lines = BufReader::new(self.process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        lines.find(|line| line.contains("Health check")).unwrap()
    }

    /// Returns the address for nodes.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
