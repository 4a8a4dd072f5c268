//! The table of nftables on a control-plane host.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Door, GATEWAY_PORT};

/// Its name in the kernel.
pub(super) const TABLE: &str = "attest-gateway";

/// What `nft -f` takes. Loading it again replaces the table in one step, so that the door is open at no moment.
///
/// It is a table of its own, of family inet, and comes before those of network plugins and of Google's routes: whose address translation is first is the one
/// that counts. It says nothing of this release: hosts are restarted when it changes. What another one has led to the server's ports all the same is refused on its way in.
#[must_use]
pub fn table(door: &Door) -> String {
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
}}
"
    )
}
