//! The command `attest-gateway manifests render`: prints the objects that run gateways in a cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::manifests::{
    ApiFeature, CloudMachines, ClusterPlatform, GatewayImage, GoogleProject, Host, InCluster, IngressRedirect, InitialSettings, NAME,
    Namespace, PoolEvidence, PoolName, USER, documents, machine_config, table,
};

use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the objects that run gateways in a cluster, or some of them.
    Render(Box<Arguments>),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: on bare metal, in this order\n  attest-gateway manifests render --platform baremetal --only settings --host api-int.example.com --etcd https://etcd-1.example.com:2379 > settings.yaml\n  attest-gateway manifests render --platform baremetal --only gateway --image registry.example.com/attest-gateway:0.1.0 | kubectl apply -f -\n  attest-gateway manifests render --platform baremetal --only machine-config | kubectl apply -f -\n\nExample: the nftables rules alone\n  attest-gateway manifests render --platform none --only nft > redirect.nft && nft --check -f redirect.nft\n\nApply the MachineConfig last, when each control-plane host runs a gateway. It sends the Machine Config Server's port to the gateway: a\nhost without a gateway then serves no configs.\n\nTo install, upgrade and remove all of it: docs/how-to/install-openshift.md."
)]
pub(crate) struct Arguments {
    /// Platform of the cluster: it decides which machines the printed pools accept, and which addresses the nftables rules are for.
    #[arg(long, value_enum)]
    platform: ClusterPlatform,
    /// Address of a load balancer that no interface of the hosts has (repeatable). Needed for Google Cloud's internal balancer.
    #[arg(long, value_name = "ADDRESS")]
    balancer_address: Vec<IpAddr>,
    /// Numeric id of the gateway's user on the hosts. The rules let this user reach the Machine Config Server where a network plugin
    /// blocks other programs.
    #[arg(long, value_name = "UID", default_value_t = USER)]
    user: u32,
    /// Image of the gateway, with its registry and a tag or digest.
    #[arg(long, value_name = "IMAGE")]
    image: Option<GatewayImage>,
    /// Name of the control plane in pointers. The Machine Config Server's certificate must hold it.
    #[arg(long, value_name = "NAME")]
    host: Option<Host>,
    /// Pool to serve (repeatable).
    #[arg(long, value_name = "POOL", default_value = "worker")]
    pool: Vec<PoolName>,
    /// Member of the etcd that holds the store (repeatable). Without --etcd and --with store each host has its own store; use that for a single host only.
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// Function that uses the cluster's API (repeatable). The gateway gets only the rights for it.
    #[arg(long, value_enum, value_name = "PART")]
    with: Vec<ApiFeature>,
    /// Image of kube-rbac-proxy: it lets the cluster's Prometheus read the metrics of the gateways, with alerts.
    #[arg(long, value_name = "IMAGE")]
    metrics_proxy: Option<GatewayImage>,
    /// Namespace of the gateway's objects.
    #[arg(long, value_name = "NAMESPACE", default_value = NAME)]
    namespace: Namespace,
    /// Print only these objects.
    #[arg(long, value_enum)]
    only: Option<Only>,
    #[command(flatten)]
    machines: CloudMachineOptions,
}

/// Values that decide which machines of a cloud the printed pools accept.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Machines that the printed pools accept")]
struct CloudMachineOptions {
    /// AWS: account of the instances, 12 digits (repeatable).
    #[arg(long, value_name = "ACCOUNT")]
    account: Vec<String>,
    /// AWS: region of the instances (repeatable).
    #[arg(long, value_name = "REGION")]
    region: Vec<String>,
    /// AWS: IAM role of the instances, without its path (repeatable). Only ec2.amazonaws.com may assume it.
    #[arg(long, value_name = "ROLE")]
    role: Vec<String>,
    /// Google Cloud: project of the instances, with its number (repeatable).
    #[arg(long, value_name = "ID=NUMBER")]
    project: Vec<GoogleProject>,
    /// Azure: subscription of the machines (repeatable).
    #[arg(long, value_name = "UUID")]
    subscription: Vec<String>,
}

impl CloudMachineOptions {
    fn values(&self) -> CloudMachines {
        CloudMachines {
            accounts: self.account.clone(),
            regions: self.region.clone(),
            roles: self.role.clone(),
            projects: self.project.clone(),
            subscriptions: self.subscription.clone(),
        }
    }
}

/// A part of what the cluster gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Namespace, accounts, roles, the DaemonSet, and the controller's Deployment.
    Gateway,
    /// ConfigMaps with a first gateway.toml and the pools' files.
    Settings,
    /// The MachineConfig that puts the nftables rules on every control-plane host.
    MachineConfig,
    /// The nftables rules alone, for a host without OpenShift, or for review.
    Nft,
}

impl Arguments {
    fn gateway(&self) -> anyhow::Result<Vec<String>> {
        let gateway = InCluster {
            namespace: self.namespace.clone(),
            image: self
                .image
                .clone()
                .context("--image is missing: name the image that the gateways run")?,
            pools: self.pools(),
            parts: self.parts(),
            metrics_proxy: self.metrics_proxy.clone(),
        };
        if gateway.parts.contains(&ApiFeature::SecondStage) {
            output::print_note(
                "--with second-stage: a ValidatingAdmissionPolicy limits the account to MachineConfigs of the second stage. Before Kubernetes 1.30 (OpenShift 4.17) the API lacks that kind; kubectl reports this, still applies the role, and the account can write any MachineConfig. Check first that this command prints the kind:\n  kubectl api-resources --api-group=admissionregistration.k8s.io | grep validatingadmissionpolicies",
            );
        }
        Ok(gateway.objects())
    }

    fn settings(&self) -> anyhow::Result<Vec<String>> {
        if self.parts().contains(&ApiFeature::Store) && !self.etcd.is_empty() {
            output::print_note("--etcd is set, so etcd holds the store; --with store has no effect");
        }
        let settings = InitialSettings {
            namespace: self.namespace.clone(),
            host: self
                .host
                .clone()
                .context("--host is missing: name the control plane's host in pointers, api-int.CLUSTER.DOMAIN")?,
            pools: self.pools(),
            evidence: PoolEvidence::new(self.platform, self.machines.values())?,
            etcd: self.etcd.clone(),
            parts: self.parts(),
            metrics: self.metrics_proxy.is_some(),
        };
        if settings.evidence.uses_machine_objects() && !settings.parts.contains(&ApiFeature::Inventory) {
            anyhow::bail!(
                "--with inventory is missing: on this platform the printed pools accept only instances that the cluster's Machine objects name; add it here and for --only gateway"
            );
        }
        if settings.etcd.is_empty() && !settings.parts.contains(&ApiFeature::Store) {
            output::print_note(
                "neither --etcd nor --with store was given: each host has its own store, and a node that attests at one host and fetches from another is refused",
            );
        }
        if settings.parts.contains(&ApiFeature::Tokens) {
            output::print_note(
                "--with tokens: the printed pools accept no tokens; to accept them, set token = \"full\" (or \"pre-approved\") under [grants] of the pool in ConfigMap attest-gateway-pools",
            );
        }
        let of_controller = settings.parts.iter().find(|part| part.is_of_controller());
        if let Some(part) = of_controller.filter(|_| settings.etcd.is_empty() && !settings.parts.contains(&ApiFeature::Store)) {
            anyhow::bail!(
                "--with {}: attest-controller runs in its own pods, and cannot reach the store of one host: add --etcd or --with store. For a controller next to an embedded store: docs/how-to/run-the-controller.md",
                part.name()
            );
        }
        if settings.parts.contains(&ApiFeature::Approval) && !settings.has_workers() {
            anyhow::bail!("--with approval needs a worker pool, and --pool names none: add --pool worker");
        }
        let needs_ca = [ApiFeature::Pointers, ApiFeature::SecondStage]
            .iter()
            .any(|part| settings.parts.contains(part));
        if needs_ca && settings.parts.contains(&ApiFeature::McsCertificate) {
            output::print_note(
                "--with mcs-certificate: attest-controller reads CAs and certificate from its own namespace: ConfigMap machine-config-server-ca (ca-bundle.crt) and Secret machine-config-server-tls (tls.crt). For pointers and second-stage, copy the operator's objects there, and again each time that the operator replaces them",
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
