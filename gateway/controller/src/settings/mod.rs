//! Settings: `controller.toml`, made whole with defaults and checked.

mod approval;
mod pointers;
mod second_stage;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub use approval::{ApprovalSettings, ApprovedKeys};
use attest_store::section::{Fault, SealAccess, StoreSection, is_label};
use attest_store::settings::{ClusterAccess, ClusterApi, StoreSettings};
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
pub use pointers::PointerSettings;
pub use second_stage::SecondStageSettings;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// The sample; it holds every key at its default.
pub const SAMPLE: &str = include_str!("../../dist/controller.toml");
/// `cluster.api` of the pod's own service account.
const IN_CLUSTER: &str = "in-cluster";

/// The settings, checked and with their paths resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// The address of health and metrics.
    pub listen: SocketAddr,
    /// The controller's name in the attestation log and the lease. `None`: the host's.
    pub name: Option<String>,
    pub access: ClusterAccess,
    /// The namespace of Machine objects and machine sets, and of the Secrets with their pointers.
    pub machine_namespace: String,
    /// Name of the lease by which one of several controllers leads.
    pub lease: String,
    pub store: StoreSettings,
    /// Folder of the pools, with a folder for each.
    pub pools: PathBuf,
    /// `None`: no CSR is approved.
    pub approval: Option<ApprovalSettings>,
    /// The pointers of machine sets.
    pub pointers: PointerSettings,
    /// `None`: no MachineConfig is made.
    pub second_stage: Option<SecondStageSettings>,
    pub log_format: ControllerLogFormat,
    /// A filter of tracing.
    pub log_filter: String,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerLogFormat {
    /// Text for human readers.
    Text,
    /// JSON for log collectors.
    Json,
}

/// Reason why the settings cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ControllerSettingsError {
    /// The file cannot be read.
    #[error("{path}: {source}; --config names a controller.toml")]
    Io { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has unknown keys, or values of the wrong type.
    #[error("{path}: {}", source.to_string().trim_end())]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    /// A value out of its range.
    #[error("{path}: {key} is {found}; {allowed}")]
    Range {
        path: PathBuf,
        key: &'static str,
        found: String,
        /// Values that the key allows.
        allowed: &'static str,
    },
}

/// The file's shape: every key optional, none unknown.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ControllerSettingsFile {
    listen: SocketAddr,
    name: Option<String>,
    state: PathBuf,
    pools: PathBuf,
    cluster: ControllerClusterSection,
    store: StoreSection,
    approval: approval::ApprovalSection,
    pointers: pointers::PointerSection,
    second_stage: second_stage::SecondStageSection,
    log: ControllerLogSection,
}

impl Default for ControllerSettingsFile {
    fn default() -> Self {
        Self {
            // The next free port beside the gateway's on a control-plane host.
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 22626)),
            name: None,
            state: "state".into(),
            pools: "pools".into(),
            cluster: ControllerClusterSection::default(),
            store: StoreSection::default(),
            approval: approval::ApprovalSection::default(),
            pointers: pointers::PointerSection::default(),
            second_stage: second_stage::SecondStageSection::default(),
            log: ControllerLogSection::default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ControllerClusterSection {
    api: String,
    namespace: Option<String>,
    machine_namespace: String,
    lease: String,
}

impl Default for ControllerClusterSection {
    fn default() -> Self {
        Self {
            api: IN_CLUSTER.to_owned(),
            namespace: None,
            machine_namespace: "openshift-machine-api".to_owned(),
            lease: "attest-controller".to_owned(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ControllerLogSection {
    format: ControllerLogFormat,
    filter: String,
}

impl Default for ControllerLogSection {
    fn default() -> Self {
        Self {
            format: ControllerLogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

impl ControllerClusterSection {
    fn checked(&self, folder: &Path) -> Result<ClusterAccess, Fault> {
        let api = match self.api.as_str() {
            "" => return Err(("cluster.api", "\"\"".to_owned(), "\"in-cluster\", or the path of a kubeconfig")),
            IN_CLUSTER => ClusterApi::InCluster,
            path => ClusterApi::Kubeconfig(folder.join(path)),
        };
        let labels = [
            ("cluster.namespace", self.namespace.as_deref()),
            ("cluster.machine_namespace", Some(&*self.machine_namespace)),
            ("cluster.lease", Some(&*self.lease)),
        ];
        match labels.into_iter().find(|(_, label)| label.is_some_and(|label| !is_label(label))) {
            Some((key, label)) => {
                let allowed = "1 to 63 of a-z, 0-9 and '-', no '-' first or last";
                Err((key, format!("{:?}", label.unwrap_or_default()), allowed))
            }
            None => Ok(ClusterAccess {
                api,
                namespace: self.namespace.clone(),
            }),
        }
    }
}

impl ControllerSettings {
    /// Reads and checks the file; relative paths are relative to its folder.
    ///
    /// # Errors
    /// [`ControllerSettingsError`], which names file, line and key.
    pub fn load(file: &Path) -> Result<Self, ControllerSettingsError> {
        let text = files::read_text(file, SMALL_FILE_LIMIT_BYTES).map_err(|source| ControllerSettingsError::Io {
            path: file.to_owned(),
            source,
        })?;
        Self::parse(&text, file)
    }

    /// Like [`ControllerSettings::load`], for a text that would be in that file.
    ///
    /// # Errors
    /// [`ControllerSettingsError`], which names file, line and key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ControllerSettingsError> {
        let file: ControllerSettingsFile = toml::from_str(text).map_err(|source| ControllerSettingsError::Toml {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::from_file(file, folder).map_err(|(key, found, allowed)| ControllerSettingsError::Range {
            path: path.to_owned(),
            key,
            found,
            allowed,
        })
    }

    fn from_file(file: ControllerSettingsFile, folder: &Path) -> Result<Self, Fault> {
        let access = file.cluster.checked(folder)?;
        if EnvFilter::try_new(&file.log.filter).is_err() {
            let allowed = "a filter of tracing, such as \"info\" or \"warn,attest_controller=debug\"";
            return Err(("log.filter", format!("{:?}", file.log.filter), allowed));
        }
        Ok(Self {
            listen: file.listen,
            name: file.name,
            store: StoreSettings {
                engine: file.store.checked(folder, Some(&access), SealAccess::None)?,
                file: folder.join(file.state).join("gateway.db"),
            },
            access,
            machine_namespace: file.cluster.machine_namespace,
            lease: file.cluster.lease,
            pools: folder.join(file.pools),
            approval: approval::checked(file.approval)?,
            pointers: file.pointers.in_folder(folder),
            second_stage: second_stage::checked(file.second_stage)?,
            log_format: file.log.format,
            log_filter: file.log.filter,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ControllerSettings, String> {
        ControllerSettings::parse(text, Path::new("/etc/attest-controller/controller.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_sample_says_the_defaults() {
        assert_eq!(parse(SAMPLE), parse(""));
        let uncommented: String = SAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_ne!(uncommented, SAMPLE, "the sample shows every key behind `#: `");
        assert_eq!(parse(&uncommented), parse(""));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let settings = parse("state = \"/var/lib/attest-gateway\"\npools = \"p\"\n[cluster]\napi = \"kubeconfig\"").unwrap();
        assert_eq!(settings.store.file, Path::new("/var/lib/attest-gateway/gateway.db"));
        assert_eq!(settings.pools, Path::new("/etc/attest-controller/p"));
        assert_eq!(
            settings.access.api,
            ClusterApi::Kubeconfig("/etc/attest-controller/kubeconfig".into())
        );
        assert_eq!(parse("").unwrap().access.api, ClusterApi::InCluster);
        let pointers = parse("[pointers]\nauthorities = \"/a/ca.crt\"\ncertificate = \"b.crt\"")
            .unwrap()
            .pointers;
        assert_eq!(pointers.authorities, Path::new("/a/ca.crt"));
        assert_eq!(pointers.certificate, Path::new("/etc/attest-controller/b.crt"));
        assert!(!pointers.enabled);
    }

    #[test]
    fn controller_rejects_the_seal_key_setting() {
        let error = parse("[store]\nengine = \"kubernetes\"\nkey_file = \"store.key\"").unwrap_err();
        assert!(error.contains("store.key_file"), "{error}");
        assert!(parse("[store]\nengine = \"kubernetes\"").is_ok());
    }

    #[test]
    fn refuses_values_that_make_no_sense() {
        for (text, expected) in [
            ("[cluster]\napi = \"\"", "cluster.api is"),
            ("[cluster]\nnamespace = \"A\"", "cluster.namespace is"),
            ("[cluster]\nmachine_namespace = \"\"", "cluster.machine_namespace is"),
            ("[cluster]\nlease = \"a/b\"", "cluster.lease is"),
            ("[cluster]\nconfigs = true", "unknown field"),
            ("[log]\nfilter = \"=\"", "log.filter is"),
            ("[approval]\nenabled = true\nwithin_minutes = 0", "approval.within_minutes is 0"),
            ("[store]\nprefix = \"a/b\"\nengine = \"kubernetes\"", "store.prefix is"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
