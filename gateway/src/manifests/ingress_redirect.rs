//! The table of nftables on a control-plane host.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use super::{GATEWAY_PORT, IngressRedirect};

/// Name of the table in the kernel.
const TABLE: &str = "attest-gateway";
/// Address at which the gateway reaches the Machine Config Server of its own host: a loopback address and port that no other program uses.
pub(super) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 22, 62, 3), 22_626);

/// Returns the script for `nft -f`. Loading it again replaces the table in one step, so that the server's ports are reachable at no moment.
///
/// It is a table of its own, of family inet, and comes before those of network plugins and of Google's routes: only the first address
/// translation counts. It does not contain the version of this release, because hosts are restarted when it changes. Connections that
/// another table has led to the server's ports are refused on their way in.
///
/// OVN-Kubernetes refuses each connection to these ports that the host itself begins, also on its own interfaces (openshift/ovn-kubernetes,
/// `go-controller/pkg/node/OCP_HACKS.go`: a chain of type filter at the hook output). So the gateway's connections get the server's port
/// after that hook, and lose it on their way back. They go without connection tracking, which would see two connections in one. Only the
/// gateway's user can begin one. Packets that the kernel sends for a connection after its program has closed it belong to no user.
#[must_use]
pub fn table(door: &IngressRedirect) -> String {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = door.balancers.iter().partition(|address| address.is_ipv4());
    let mut led = String::new();
    for (family, addresses) in [("ip", v4), ("ip6", v6)] {
        if !addresses.is_empty() {
            let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(
                led,
                "    {family} daddr {{ {} }} tcp dport 22623 redirect to :{GATEWAY_PORT}",
                list.join(", ")
            );
        }
    }
    format!(
        "#!/usr/sbin/nft -f
# Made by attest-gateway. The gateway answers in the place of this host's Machine Config Server.
table inet {TABLE}
delete table inet {TABLE}

table inet {TABLE} {{
  chain prerouting {{
    type nat hook prerouting priority dstnat - 10; policy accept;
    # The host itself, and so the gateway, reaches the server.
    iifname \"lo\" return
    fib daddr type local tcp dport 22623 redirect to :{GATEWAY_PORT}
{led}  }}
  chain input {{
    type filter hook input priority filter - 10; policy accept;
    iifname != \"lo\" tcp dport {{ 22623, 22624 }} counter reject with tcp reset
  }}
  # The gateway reaches the server also where a network plugin keeps the host's programs from its ports; nobody else does.
  chain untracked {{
    type filter hook output priority raw; policy accept;
    oifname \"lo\" ip daddr {address} tcp dport {port} tcp flags syn / fin,syn,rst,ack meta skuid {user} notrack accept
    oifname \"lo\" ip daddr {address} tcp dport {port} tcp flags syn / fin,syn,rst,ack reject with tcp reset
    oifname \"lo\" ip daddr {address} tcp dport {port} notrack
    oifname \"lo\" ip saddr {address} tcp sport 22623 notrack
  }}
  chain path {{
    type filter hook postrouting priority srcnat; policy accept;
    oifname \"lo\" ip daddr {address} tcp dport {port} tcp dport set 22623
    oifname \"lo\" ip saddr {address} tcp sport 22623 tcp sport set {port}
  }}
}}
",
        address = SERVER.ip(),
        port = SERVER.port(),
        user = door.user,
    )
}
