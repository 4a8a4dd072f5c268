//! Objects with which the gateway takes the place of a cluster's Machine Config Server on the control-plane hosts. The server keeps its
//! ports, but clients outside the host do not reach them.
//!
//! Connections from outside to 22623 are redirected to the gateway on the same host, so that every pointer stays as it is: by name, virtual
//! IP or balancer. The host itself still reaches the server, and so the gateway gets its configs.

mod evidence;
mod in_cluster;
mod ingress_redirect;
mod machine_config;
mod monitoring;
mod part;
mod settings;
mod values;

use std::net::IpAddr;

pub use self::evidence::{BadProject, CloudMachines, GoogleProject, PoolEvidence, PoolEvidenceError};
pub use self::in_cluster::{InCluster, documents};
pub use self::ingress_redirect::table;
pub use self::machine_config::machine_config;
pub use self::monitoring::prometheus_rule;
pub use self::part::ApiFeature;
pub use self::settings::{InitialSettings, InitialSettingsError};
pub use self::values::{BadValue, GatewayImage, Host, Namespace, PoolName};

/// User that the gateway runs as in a pod. No host and no other image has it, because a host's programs are told apart by their user.
pub const USER: u32 = 22_625;

/// Name of the gateway's objects, and default name of its namespace.
pub const NAME: &str = "attest-gateway";

/// Port that the gateway listens on on a control-plane host: the next free one after those of the Machine Config Server.
pub const GATEWAY_PORT: u16 = 22625;

/// Platform that the cluster's control plane runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lowercase")]
pub enum ClusterPlatform {
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

/// Ingress redirect of a control-plane host: which ports it closes, and for which addresses the gateway answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressRedirect {
    /// Balancers' addresses that packets come with, and that are on none of the host's interfaces.
    balancers: Vec<IpAddr>,
    /// User that the gateway runs as on the host: it may reach the server past a network plugin.
    user: u32,
}

/// Arguments with which the ingress redirect would not work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngressRedirectError {
    /// On Google Cloud without a balancer's address, the host would take packets to be for another host.
    #[error(
        "--platform gcp needs --balancer-address: packets come with the address of the internal balancer, which is on no interface of the host (`gcloud compute forwarding-rules list` shows it; the name api-int leads to it)"
    )]
    NoBalancer,
    /// No balancer has it.
    #[error("--balancer-address {0} is not an address that a balancer can have")]
    Address(IpAddr),
}

impl IngressRedirect {
    /// Creates the redirect for a control-plane host of this platform, whose gateway runs as this user.
    ///
    /// # Errors
    /// [`IngressRedirectError`].
    pub fn new(platform: ClusterPlatform, balancers: &[IpAddr], user: u32) -> Result<Self, IngressRedirectError> {
        if platform == ClusterPlatform::Gcp && balancers.is_empty() {
            return Err(IngressRedirectError::NoBalancer);
        }
        let nobodys = |address: &&IpAddr| address.is_loopback() || address.is_unspecified() || address.is_multicast();
        if let Some(address) = balancers.iter().find(nobodys) {
            return Err(IngressRedirectError::Address(*address));
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
    fn google_cloud_requires_the_load_balancer_address() {
        let vip: IpAddr = "192.0.2.5".parse().unwrap();
        assert_eq!(
            IngressRedirect::new(ClusterPlatform::Gcp, &[], USER),
            Err(IngressRedirectError::NoBalancer)
        );
        for platform in [
            ClusterPlatform::BareMetal,
            ClusterPlatform::Aws,
            ClusterPlatform::Azure,
            ClusterPlatform::None,
        ] {
            assert!(IngressRedirect::new(platform, &[], USER).is_ok(), "{platform:?}");
        }
        assert_eq!(
            IngressRedirect::new(ClusterPlatform::Gcp, &[vip, vip], USER).unwrap().balancers,
            [vip]
        );
        for text in ["127.0.0.1", "0.0.0.0", "::", "::1", "224.0.0.1"] {
            let address = text.parse().unwrap();
            assert_eq!(
                IngressRedirect::new(ClusterPlatform::None, &[vip, address], USER),
                Err(IngressRedirectError::Address(address))
            );
        }
    }
}
