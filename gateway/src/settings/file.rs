//! The file's shape: every key optional, none unknown.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use attest::SpkiSha256;
use serde::Deserialize;

use super::cloud::{AwsSection, AzureSection, GcpSection, OutgoingSection};
use super::forward::ForwardSection;
use super::store::StoreSection;

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
];

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub listen: SocketAddr,
    pub proxy_protocol_from: Vec<String>,
    pub state: PathBuf,
    pub pools: PathBuf,
    pub ek_roots: PathBuf,
    pub store: StoreSection,
    pub tls: Tls,
    pub challenge: Challenge,
    pub ticket: Ticket,
    pub limits: Limits,
    pub log: Log,
    pub attestation_log: AttestationLog,
    pub metrics: Metrics,
    pub outgoing: OutgoingSection,
    pub gcp: GcpSection,
    pub aws: AwsSection,
    pub azure: AzureSection,
}

impl Default for File {
    fn default() -> Self {
        Self {
            // The Machine Config Server's port, on every address, IPv4 and IPv6.
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 22623)),
            proxy_protocol_from: Vec::new(),
            state: "state".into(),
            pools: "pools".into(),
            ek_roots: "ek-roots".into(),
            store: StoreSection::default(),
            tls: Tls::default(),
            challenge: Challenge::default(),
            ticket: Ticket::default(),
            limits: Limits::default(),
            log: Log::default(),
            attestation_log: AttestationLog::default(),
            metrics: Metrics::default(),
            outgoing: OutgoingSection::default(),
            gcp: GcpSection::default(),
            aws: AwsSection::default(),
            azure: AzureSection::default(),
        }
    }
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

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Challenge {
    pub lifetime_seconds: u32,
}

impl Default for Challenge {
    fn default() -> Self {
        // The slowest TPMs take tens of seconds to activate and quote.
        Self { lifetime_seconds: 120 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Ticket {
    pub lifetime_seconds: u32,
    pub late_seconds: u32,
    pub uses: u32,
}

impl Default for Ticket {
    fn default() -> Self {
        // Ignition fetches within seconds; it may retry after a lost answer, and not for ever.
        Self {
            lifetime_seconds: 600,
            // A gateway may be away between attestation and fetch: overnight, for a power cut.
            late_seconds: 86_400,
            uses: 4,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limits {
    pub connections: usize,
    pub requests: usize,
    pub body_bytes: usize,
    pub handshake_seconds: u32,
    pub header_seconds: u32,
    pub request_seconds: u32,
    pub drain_seconds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // Ignition gives up a TLS handshake, and the wait for a response's head, after 10 s.
        Self {
            connections: 4096,
            requests: 512,
            // A thousand nodes at once, each with an event log of a hundred kilobytes.
            body_bytes: 128 * 1024 * 1024,
            handshake_seconds: 10,
            header_seconds: 10,
            request_seconds: 30,
            drain_seconds: 20,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    pub format: LogFormat,
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AttestationLog {
    pub name: Option<String>,
    pub checkpoint_records: u64,
    pub checkpoint_seconds: u32,
    pub segment_bytes: u64,
    pub segment_seconds: u32,
    pub forward: Vec<ForwardSection>,
}

impl Default for AttestationLog {
    fn default() -> Self {
        // What is not signed yet can be cut off without a trace: a minute of it, at most.
        Self {
            name: None,
            checkpoint_records: 1000,
            checkpoint_seconds: 60,
            segment_bytes: 64 * 1024 * 1024,
            // A week.
            segment_seconds: 604_800,
            forward: Vec::new(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Metrics {
    pub listen: Option<SocketAddr>,
}

/// How the console's lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For log collectors.
    Json,
}
