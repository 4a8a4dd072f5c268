//! The command `attest-gateway manifests render`: prints the objects that run gateways in a cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::manifests::{
    ApiFeature, ClusterPlatform, GatewayImage, Host, InCluster, IngressRedirect, InitialSettings, NAME, Namespace, PoolName, USER,
    documents, machine_config, table,
};

use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the objects of the cluster, or a part of them.
    Render(Box<Arguments>),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  attest-gateway manifests render --platform baremetal --only settings --host api-int.example.com --etcd https://etcd-1.example.com:2379 > settings.yaml\n  attest-gateway manifests render --platform baremetal --only gateway --image registry.example.com/attest-gateway:0.1.0 | kubectl apply -f -\n  attest-gateway manifests render --platform baremetal --only machine-config | kubectl apply -f -\n  attest-gateway manifests render --platform none --only nft > door.nft && nft --check -f door.nft\n\nIn this order: each control-plane host must have a gateway before the MachineConfig is applied. From then on strangers get what that one gives, and nothing where there is none.\ndocs/install.md says how to install, upgrade and remove it all, and what a booting node gets at each step."
)]
pub(crate) struct Arguments {
    /// Platform of the cluster's control plane.
    #[arg(long, value_enum)]
    platform: ClusterPlatform,
    /// An address of a balancer that packets come with, and that is on no interface of the hosts (repeatable). Google Cloud's internal balancer has one.
    #[arg(long, value_name = "ADDRESS")]
    balancer_address: Vec<IpAddr>,
    /// Numeric id of the gateway's user on the hosts: this user may reach the Machine Config Server where a network plugin keeps programs
    /// from it. That of the pods, if nothing else is said.
    #[arg(long, value_name = "UID", default_value_t = USER)]
    user: u32,
    /// The gateway's image, with its registry and a tag or digest.
    #[arg(long, value_name = "IMAGE")]
    image: Option<GatewayImage>,
    /// Name of the control plane in pointers: one in the Machine Config Server's certificate.
    #[arg(long, value_name = "NAME")]
    host: Option<Host>,
    /// A pool that is served (repeatable).
    #[arg(long, value_name = "POOL", default_value = "worker")]
    pool: Vec<PoolName>,
    /// A member of the etcd that keeps the store (repeatable). None, and no --with store: each host has a store of its own, which is right for one host.
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// Function for which the gateway asks the cluster's API (repeatable): it gets the rights for that, and no others.
    #[arg(long, value_enum, value_name = "PART")]
    with: Vec<ApiFeature>,
    /// Namespace of the gateway's objects.
    #[arg(long, value_name = "NAMESPACE", default_value = NAME)]
    namespace: Namespace,
    /// A part of it all.
    #[arg(long, value_enum)]
    only: Option<Only>,
}

/// A part of what the cluster gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Namespace, accounts, roles, the DaemonSet, and the controller's Deployment.
    Gateway,
    /// gateway.toml and the pools' files, to begin with.
    Settings,
    /// The MachineConfig that puts the table on every control-plane host.
    MachineConfig,
    /// The table of nftables alone, for a host that does not run OpenShift, or to look at.
    Nft,
}

impl Arguments {
    fn gateway(&self) -> anyhow::Result<Vec<String>> {
        let gateway = InCluster {
            namespace: self.namespace.clone(),
            image: self.image.clone().context("--image says which image the gateways run")?,
            pools: self.pools(),
            parts: self.parts(),
        };
        if gateway.parts.contains(&ApiFeature::SecondStage) {
            output::print_note(
                "--with second-stage: a ValidatingAdmissionPolicy holds the account to MachineConfigs of the second stage. An API before Kubernetes 1.30 (OpenShift 4.17) does not know that kind: kubectl says so and applies the role all the same, and the account can write any MachineConfig. See first that this prints the kind:\n  kubectl api-resources --api-group=admissionregistration.k8s.io | grep validatingadmissionpolicies",
            );
        }
        Ok(gateway.objects())
    }

    fn settings(&self) -> anyhow::Result<Vec<String>> {
        if self.parts().contains(&ApiFeature::Store) && !self.etcd.is_empty() {
            output::print_note("--etcd has the store: what --with store is for is not used");
        }
        let settings = InitialSettings {
            namespace: self.namespace.clone(),
            host: self
                .host
                .clone()
                .context("--host says what pointers call the control plane: api-int.…")?,
            pools: self.pools(),
            etcd: self.etcd.clone(),
            parts: self.parts(),
        };
        if settings.etcd.is_empty() && !settings.parts.contains(&ApiFeature::Store) {
            output::print_note(
                "neither --etcd nor --with store: each host has a store of its own, and a node that attests at one and fetches from another is refused",
            );
        }
        if settings.parts.contains(&ApiFeature::Tokens) {
            output::print_note(
                "--with tokens: as printed, no pool takes tokens; set token = \"full\" (or \"pre-approved\") under [grants] in those of ConfigMap attest-gateway-pools that should",
            );
        }
        let of_controller = settings.parts.iter().find(|part| part.is_of_controller());
        if let Some(part) = of_controller.filter(|_| settings.etcd.is_empty() && !settings.parts.contains(&ApiFeature::Store)) {
            anyhow::bail!(
                "--with {}: attest-controller runs in pods of its own, and cannot reach the store of one host: name --etcd, or --with store (docs/controller.md has a controller next to an embedded store)",
                part.name()
            );
        }
        if settings.parts.contains(&ApiFeature::Approval) && !settings.has_workers() {
            anyhow::bail!("--with approval: its pools are those of workers, and --pool names none; name one");
        }
        let needs_ca = [ApiFeature::Pointers, ApiFeature::SecondStage]
            .iter()
            .any(|part| settings.parts.contains(part));
        if needs_ca && settings.parts.contains(&ApiFeature::McsCertificate) {
            output::print_note(
                "--with mcs-certificate: attest-controller reads the CAs and the certificate in ConfigMap machine-config-server-ca (ca-bundle.crt) and Secret machine-config-server-tls (tls.crt) of its own namespace; for pointers and second-stage, copy the operator's there, and again when the operator replaces them",
            );
        }
        Ok(settings.config_maps()?)
    }

    fn pools(&self) -> BTreeSet<PoolName> {
        self.pool.iter().cloned().collect()
    }

    fn parts(&self) -> BTreeSet<ApiFeature> {
        self.with.iter().copied().collect()
    }

    fn ingress_redirect(&self) -> anyhow::Result<IngressRedirect> {
        Ok(IngressRedirect::new(self.platform, &self.balancer_address, self.user)?)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let objects = match arguments.only {
        Some(Only::Nft) => {
            output::print(table(&arguments.ingress_redirect()?))?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Only::Gateway) => arguments.gateway()?,
        Some(Only::Settings) => arguments.settings()?,
        Some(Only::MachineConfig) => vec![machine_config(&arguments.ingress_redirect()?)],
        None => {
            let mut all = arguments.gateway()?;
            // The namespace comes first, and nothing waits for the door.
            all.extend(arguments.settings()?);
            all.push(machine_config(&arguments.ingress_redirect()?));
            all
        }
    };
    output::print(documents(&objects))?;
    Ok(ExitCode::SUCCESS)
}
