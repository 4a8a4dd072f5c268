//! The file's shape: every key optional, none unknown.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use attest::SpkiSha256;
use attest_store::section::StoreSection;
use serde::Deserialize;

use super::approval::KubeletApprovalSection;
use super::cloud::{AwsSection, AzureSection, GcpSection, OutgoingSection};
use super::cluster::ClusterSection;
use super::lifetimes::{ChallengeSection, TicketSection};
use super::limits::LimitsSection;
use super::log::{ConsoleSection, LogSection};

/// The headings of the file.
pub(super) const SECTIONS: &[&str] = &[
    "store",
    "tls",
    "challenge",
    "ticket",
    "limits",
    "log",
    "attestation_log",
    "metrics",
    "outgoing",
    "gcp",
    "aws",
    "azure",
    "cluster",
    "approval",
];

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SettingsFile {
    pub listen: SocketAddr,
    pub pointer_url: Option<String>,
    pub proxy_protocol_from: Vec<String>,
    pub state: PathBuf,
    pub pools: PathBuf,
    pub ek_roots: PathBuf,
    pub reports: Switch,
    pub store: StoreSection,
    pub tls: Tls,
    pub challenge: ChallengeSection,
    pub ticket: TicketSection,
    pub limits: LimitsSection,
    pub log: ConsoleSection,
    pub attestation_log: LogSection,
    pub metrics: MetricsSection,
    pub outgoing: OutgoingSection,
    pub gcp: GcpSection,
    pub aws: AwsSection,
    pub azure: AzureSection,
    pub cluster: ClusterSection,
    pub approval: KubeletApprovalSection,
}

impl Default for SettingsFile {
    fn default() -> Self {
        Self {
            // The Machine Config Server's port, on every address, IPv4 and IPv6.
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 22623)),
            pointer_url: None,
            proxy_protocol_from: Vec::new(),
            state: "state".into(),
            pools: "pools".into(),
            ek_roots: "ek-roots".into(),
            reports: Switch::On,
            store: StoreSection::default(),
            tls: Tls::default(),
            challenge: ChallengeSection::default(),
            ticket: TicketSection::default(),
            limits: LimitsSection::default(),
            log: ConsoleSection::default(),
            attestation_log: LogSection::default(),
            metrics: MetricsSection::default(),
            outgoing: OutgoingSection::default(),
            gcp: GcpSection::default(),
            aws: AwsSection::default(),
            azure: AzureSection::default(),
            cluster: ClusterSection::default(),
            approval: KubeletApprovalSection::default(),
        }
    }
}

/// A setting that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Switch {
    On,
    Off,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub previous_keys: Vec<SpkiSha256>,
    pub client_ca: Option<PathBuf>,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            ca: "tls/mcs-ca.crt".into(),
            certificate: "tls/mcs.crt".into(),
            key: "tls/mcs.key".into(),
            previous_keys: Vec::new(),
            client_ca: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MetricsSection {
    pub listen: Option<SocketAddr>,
}
