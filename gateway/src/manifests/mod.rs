//! What a cluster needs so that the gateway takes its Machine Config Server's place on the control-plane hosts: the server keeps its ports, strangers
//! do not reach them.
//!
//! What comes from outside to 22623 is led to the gateway on the same host, so that every pointer stays as it is: by name, virtual IP or balancer. The
//! host itself goes on reaching the server, and by that the gateway gets its configs.

mod door;
mod in_cluster;
mod machine_config;
mod part;
mod settings;
mod values;

use std::net::IpAddr;

pub use self::door::table;
pub use self::in_cluster::{InCluster, documents};
pub use self::machine_config::machine_config;
pub use self::part::Part;
pub use self::settings::InitialSettings;
pub use self::values::{BadValue, Host, Image, Namespace, PoolName};

/// Whom the gateway runs as in a pod: a user that no host has, and no other image, as a host's programs are told apart by it.
pub const USER: u32 = 22_625;

/// What the gateway's objects are called, and its namespace if nothing else is said.
pub const NAME: &str = "attest-gateway";

/// Where the gateway listens on a control-plane host: the next free port beside those of the Machine Config Server.
pub const GATEWAY_PORT: u16 = 22625;

/// Where the cluster's control plane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lowercase")]
pub enum Platform {
    /// A virtual IP of keepalived.
    BareMetal,
    /// A virtual IP of keepalived.
    VSphere,
    /// A virtual IP of keepalived.
    OpenStack,
    /// Whatever its administrator has put before it.
    None,
    /// A network load balancer, which sends on to the host's own address.
    Aws,
    /// An internal passthrough balancer, which leaves its own address in the packets.
    Gcp,
    /// An internal balancer, which sends on to the host's own address.
    Azure,
}

/// What is closed, and for which addresses it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Door {
    /// Balancers' addresses that packets come with, and that are on none of the host's interfaces.
    balancers: Vec<IpAddr>,
    /// Whom the gateway runs as on the host: who may reach the server past a network plugin.
    user: u32,
}

/// A door that would not be one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDoor {
    /// Google Cloud's packets would be taken for somebody else's.
    #[error(
        "--platform gcp needs --balancer-address: packets come with the address of the internal balancer, which is on no interface of the host (`gcloud compute forwarding-rules list` shows it; the name api-int leads to it)"
    )]
    NoBalancer,
    /// No balancer has it.
    #[error("--balancer-address {0} is no address that a balancer could have")]
    Address(IpAddr),
}

impl Door {
    /// Of a control-plane host of this platform, whose gateway runs as this user.
    ///
    /// # Errors
    /// [`BadDoor`].
    pub fn new(platform: Platform, balancers: &[IpAddr], user: u32) -> Result<Self, BadDoor> {
        if platform == Platform::Gcp && balancers.is_empty() {
            return Err(BadDoor::NoBalancer);
        }
        let nobodys = |address: &&IpAddr| address.is_loopback() || address.is_unspecified() || address.is_multicast();
        if let Some(address) = balancers.iter().find(nobodys) {
            return Err(BadDoor::Address(*address));
        }
        let mut balancers = balancers.to_vec();
        balancers.sort();
        balancers.dedup();
        Ok(Self { balancers, user })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn google_s_packets_come_with_an_address_that_has_to_be_told() {
        let vip: IpAddr = "192.0.2.5".parse().unwrap();
        assert_eq!(Door::new(Platform::Gcp, &[], USER), Err(BadDoor::NoBalancer));
        for platform in [Platform::BareMetal, Platform::Aws, Platform::Azure, Platform::None] {
            assert!(Door::new(platform, &[], USER).is_ok(), "{platform:?}");
        }
        assert_eq!(Door::new(Platform::Gcp, &[vip, vip], USER).unwrap().balancers, [vip]);
        for text in ["127.0.0.1", "0.0.0.0", "::", "::1", "224.0.0.1"] {
            let address = text.parse().unwrap();
            assert_eq!(Door::new(Platform::None, &[vip, address], USER), Err(BadDoor::Address(address)));
        }
    }
}
