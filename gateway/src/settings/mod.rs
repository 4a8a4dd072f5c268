//! Settings: contents of the file, completed with defaults and checked.

mod approval;
mod cloud;
mod cluster;
mod file;
mod lifetimes;
mod limits;
mod log;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use approval::KubeletApprovalSettings;
use attest::SpkiSha256;
use attest_pool::misplaced;
use attest_store::section::{Fault, SealAccess};
use attest_store::settings::StoreSettings;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
pub use cloud::{AwsSettings, AzureSettings, CloudSettings, GcpSettings, OutgoingSettings};
pub use cluster::{AttestedNodes, ClusterSettings};
use file::{SECTIONS, SettingsFile, Switch};
use ipnet::IpNet;
pub use lifetimes::TicketSettings;
pub use limits::Limits;
use log::LogSettings;
pub use log::{CheckpointSettings, KeepSettings, LogFormat, SegmentSettings};
use serde_json::Value;
use url::Url;

use crate::network::network;

/// The sample that `init` writes; it holds every key at its default.
pub const SAMPLE: &str = include_str!("../../dist/gateway.toml");

/// All settings, checked and with their paths resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Path of `gateway.toml`, which a reload reads again.
    pub file: PathBuf,
    /// Keys that the file sets, as `section.key`, with their values.
    pub set_values: BTreeMap<String, Value>,
    /// Address that it listens on.
    pub listen: SocketAddr,
    /// The URL by which nodes reach the gateway, if it is not the certificate's first name with the port of `listen`.
    pub pointer_url: Option<Url>,
    /// Networks of balancers: each connection from there begins with a PROXY protocol header that names the client.
    pub balancers: Vec<IpNet>,
    /// Private state: store, seal, attestation log.
    pub state: PathBuf,
    pub store: StoreSettings,
    /// Folder with one subfolder for each pool.
    pub pools: PathBuf,
    /// Certificates that endorse EKs.
    pub ek_roots: PathBuf,
    /// Set if the gateway takes reports of failed boots.
    pub reports: bool,
    /// Key that replicas share, by which the seal's keys are encrypted in the store. `None`: the seal's keys are this gateway's alone, in a
    /// file.
    pub store_key_file: Option<PathBuf>,
    /// MCS CA, certificate and key.
    pub tls: TlsSettings,
    /// Time in which a challenge can be answered.
    pub challenge_lifetime: Duration,
    pub ticket: TicketSettings,
    pub limits: Limits,
    /// Format of the console's lines.
    pub log_format: LogFormat,
    /// Filter of the console's lines, as `tracing` takes it.
    pub log_filter: String,
    pub checkpoints: CheckpointSettings,
    pub segments: SegmentSettings,
    pub keep: KeepSettings,
    /// Address of the metrics, if they are served.
    pub metrics_listen: Option<SocketAddr>,
    /// Settings for the verification of cloud evidence.
    pub clouds: CloudSettings,
    /// Settings for the work of `attest-controller`.
    pub approval: KubeletApprovalSettings,
    /// The cluster that the gateway is a part of, if it asks one.
    pub cluster: Option<ClusterSettings>,
}

/// The MCS certificate and its surroundings.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsSettings {
    /// Certificate of the MCS CA, which pointers carry.
    pub ca: PathBuf,
    /// The serving certificate and whatever chain it has.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Earlier keys of this gateway: evidence made for them is still accepted.
    pub previous_keys: Vec<SpkiSha256>,
    /// CAs that sign the client certificates of kubelets, if they are accepted.
    pub client_ca: Option<PathBuf>,
    /// Set if that file is a copy of the cluster's CAs: then it may not exist yet.
    pub client_ca_of_cluster: bool,
    /// Set if CA, certificate and key are copies of the cluster's, all in one file.
    pub serving_of_cluster: bool,
}

/// Checks a URL that pointers can begin with.
fn pointer_url(text: String) -> Result<Url, Fault> {
    let is_base = |url: &Url| {
        let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        url.scheme() == "https" && url.has_host() && url.password().is_none() && plain
    };
    match Url::parse(&text) {
        Ok(url) if is_base(&url) => Ok(url),
        _ => Err(("pointer_url", format!("{text:?}"), "https://HOST or https://HOST:PORT")),
    }
}

/// Returns the values that a file sets, by `section.key`.
fn set_values(text: &str) -> BTreeMap<String, Value> {
    let sections = toml::from_str::<BTreeMap<String, Value>>(text).unwrap_or_default();
    let keys = sections.into_iter().flat_map(|(name, value)| match value {
        Value::Object(keys) => keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect(),
        value => vec![(name, value)],
    });
    keys.collect()
}

/// Error in loading the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("{path}: {source}; name the right gateway.toml with --config, or create a gateway's folder: `attest-gateway init FOLDER`")]
    Io { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has unknown keys, or values of the wrong type.
    #[error("{path}: {}{hint}", source.to_string().trim_end())]
    Toml {
        path: PathBuf,
        /// Error of the parser, with the line.
        source: Box<toml::de::Error>,
        /// Hint about the section of a misplaced key.
        hint: String,
    },
    /// A value out of its range.
    #[error("{path}: {key} is {found}; {allowed}")]
    Range {
        path: PathBuf,
        key: &'static str,
        found: String,
        /// Range or form of allowed values.
        allowed: &'static str,
    },
}

impl Settings {
    /// Reads and checks the file; its folder is what relative paths are relative to.
    ///
    /// # Errors
    /// [`SettingsError`], which names file, line and key.
    pub fn load(file: &Path) -> Result<Self, SettingsError> {
        let text = files::read_text(file, SMALL_FILE_LIMIT_BYTES).map_err(|source| SettingsError::Io {
            path: file.to_owned(),
            source,
        })?;
        Self::parse(&text, file)
    }

    /// Returns the embedded defaults, for a gateway whose folder is `folder`.
    ///
    /// # Errors
    /// None: the defaults are valid.
    pub fn defaults(folder: &Path) -> Result<Self, SettingsError> {
        Self::parse("", &folder.join("gateway.toml"))
    }

    /// Like [`Settings::load`], but parses a text as if it were in that file.
    ///
    /// # Errors
    /// [`SettingsError`], which names file, line and key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let file: SettingsFile = toml::from_str(text).map_err(|source| SettingsError::Toml {
            path: path.to_owned(),
            hint: misplaced::hint::<SettingsFile>(&source, SECTIONS),
            source: Box::new(source),
        })?;
        Self::from_file(file, path, set_values(text)).map_err(|(key, found, allowed)| SettingsError::Range {
            path: path.to_owned(),
            key,
            found,
            allowed,
        })
    }

    fn from_file(file: SettingsFile, path: &Path, said: BTreeMap<String, Value>) -> Result<Self, Fault> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let limits = limits::checked(&file.limits)?;
        let cluster = cluster::checked(file.cluster, folder)?;
        let (log_format, log_filter) = log::console_settings(file.log)?;
        let LogSettings {
            checkpoints,
            segments,
            keep,
        } = log::checked(file.attestation_log)?;
        let state = folder.join(file.state);
        let copies = state.join("cluster");
        let file_of_store = state.join("gateway.db");
        let client_ca = match &cluster {
            Some(ClusterSettings { client_ca: true, .. }) if file.tls.client_ca.is_some() => {
                let allowed = "tls.client_ca is set, too: remove one of both";
                return Err(("cluster.client_ca", "true".to_owned(), allowed));
            }
            Some(ClusterSettings { client_ca: true, .. }) => Some(copies.join("kubelet-client-ca.crt")),
            _ => None,
        };
        let serving = match &cluster {
            Some(ClusterSettings { mcs_certificate: true, .. })
                if ["tls.ca", "tls.certificate", "tls.key"].iter().any(|key| said.contains_key(*key)) =>
            {
                let allowed = "tls.ca, tls.certificate or tls.key is set, too: remove cluster.mcs_certificate, or these keys";
                return Err(("cluster.mcs_certificate", "true".to_owned(), allowed));
            }
            Some(ClusterSettings { mcs_certificate: true, .. }) => Some(copies.join("machine-config-server.yaml")),
            _ => None,
        };
        let served = |path: PathBuf| serving.clone().unwrap_or_else(|| folder.join(path));
        Ok(Self {
            file: path.to_owned(),
            set_values: said,
            listen: file.listen,
            pointer_url: file.pointer_url.map(pointer_url).transpose()?,
            balancers: balancers(&file.proxy_protocol_from)?,
            state,
            store_key_file: file.store.key_file.as_ref().map(|path| folder.join(path)),
            store: StoreSettings {
                engine: file
                    .store
                    .checked(folder, cluster.as_ref().map(|cluster| &cluster.access), SealAccess::Held)?,
                file: file_of_store,
            },
            pools: folder.join(file.pools),
            ek_roots: folder.join(file.ek_roots),
            reports: file.reports == Switch::On,
            tls: TlsSettings {
                ca: served(file.tls.ca),
                certificate: served(file.tls.certificate),
                key: served(file.tls.key),
                serving_of_cluster: serving.is_some(),
                previous_keys: file.tls.previous_keys,
                client_ca_of_cluster: client_ca.is_some(),
                client_ca: client_ca.or(file.tls.client_ca.map(|path| folder.join(path))),
            },
            challenge_lifetime: lifetimes::challenge_lifetime(&file.challenge)?,
            ticket: lifetimes::ticket_settings(&file.ticket)?,
            approval: approval::checked(file.approval)?,
            cluster,
            clouds: cloud::checked((file.outgoing, file.gcp, file.aws, file.azure), folder, limits.request)?,
            limits,
            log_format,
            log_filter,
            checkpoints,
            segments,
            keep,
            metrics_listen: file.metrics.listen,
        })
    }

    #[must_use]
    pub fn attestation_log(&self) -> PathBuf {
        self.state.join("attestation.jsonl")
    }

    /// Returns the path of the kubelets' bootstrap kubeconfig as the cluster has it, for pools that name it.
    #[must_use]
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.state.join("cluster/bootstrap-kubeconfig")
    }

    /// Returns the path of the key that signs the attestation log's checkpoints.
    #[must_use]
    pub fn log_key(&self) -> PathBuf {
        self.state.join("log.key")
    }

    /// Returns the path of the file with the log position up to which the machines' objects in the cluster are complete.
    #[must_use]
    pub fn attested_nodes_note(&self) -> PathBuf {
        self.state.join("cluster/attested-nodes")
    }

    /// Returns the folder of the attestation log's large parts.
    #[must_use]
    pub fn evidence(&self) -> PathBuf {
        self.state.join("evidence")
    }

    /// Returns the time for which an old key of the seal still opens: as long as anything that it sealed last is valid. It is also longer
    /// than a running gateway takes to notice the newer key.
    #[must_use]
    pub fn seal_keep(&self) -> Duration {
        const NOTICED: Duration = Duration::from_secs(3600);
        self.challenge_lifetime.max(self.ticket.longest()).saturating_add(NOTICED)
    }

    #[must_use]
    pub fn seal_key(&self) -> PathBuf {
        self.state.join("seal.key")
    }
}

/// Parses the networks of balancers; none of them may include all addresses.
fn balancers(texts: &[String]) -> Result<Vec<IpNet>, Fault> {
    const ALLOWED: &str = "addresses and networks of balancers, such as \"192.0.2.10\" or \"2001:db8::/64\", and never 0.0.0.0/0 or ::/0: clients at these addresses can claim any source address";
    let balancers = texts.iter().map(|text| match network(text) {
        Ok(network) if network.prefix_len() > 0 => Ok(network),
        _ => Err(("proxy_protocol_from", format!("{text:?}"), ALLOWED)),
    });
    balancers.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;
