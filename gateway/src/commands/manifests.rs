//! `attest-gateway manifests`.

use std::net::IpAddr;
use std::process::ExitCode;

use attest_gateway::manifests::{Door, Platform, machine_config, table};

use super::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  attest-gateway manifests --platform baremetal | oc apply -f -\n  attest-gateway manifests --platform gcp --balancer-address 10.0.0.2\n  attest-gateway manifests --platform none --only nft > door.nft && nft --check -f door.nft\n\nEach control-plane host must run a gateway on port 22625 before this is applied: from then on strangers get what that one gives, and nothing where there is none.\ndocs/control-plane-hosts.md says in which order, and what a booting node gets at each step."
)]
pub struct Arguments {
    /// Where the cluster's control plane runs.
    #[arg(long, value_enum)]
    platform: Platform,
    /// An address of a balancer that packets come with, and that is on no interface of the hosts (repeatable). Google Cloud's internal balancer has one.
    #[arg(long, value_name = "ADDRESS")]
    balancer_address: Vec<IpAddr>,
    /// Which part.
    #[arg(long, value_enum, default_value = "machine-config")]
    only: Part,
}

/// A part of what the cluster gets.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Part {
    /// The MachineConfig that puts the table on every control-plane host.
    MachineConfig,
    /// The table of nftables alone, for a host that is no OpenShift's, or to look at.
    Nft,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let door = Door::new(arguments.platform, &arguments.balancer_address)?;
    output::print(match arguments.only {
        Part::MachineConfig => machine_config(&door),
        Part::Nft => table(&door),
    })?;
    Ok(ExitCode::SUCCESS)
}
