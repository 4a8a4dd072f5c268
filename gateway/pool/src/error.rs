//! Reasons why a pool cannot be served.

use std::path::PathBuf;

use attest::inventory::InventoryError;
use attest_ignition::lint::SecretFinding;
use attest_ignition::machine_config::manifest::ManifestError;
use attest_ignition::machine_config::render::RenderError;
use attest_ignition::machine_config::second_stage::SecondStageError;
use attest_ignition::{Invalid, NotAConfig};
use attest_log::ConfigSet;

use super::needed_before_approval::NeededError;
use super::upstream::{IncludeError, UpstreamError};

/// Reason why a pool cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A file or folder cannot be read.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// `pool.toml` is not TOML, has unknown keys, or wrong values.
    #[error("{path}: {}{hint}", source.to_string().trim_end())]
    Toml {
        path: PathBuf,
        /// The parse error, with its line.
        source: Box<toml::de::Error>,
        /// Hint to the section of a misplaced key.
        hint: String,
    },
    /// The reference values do not make sense.
    #[error("{path}: [tpm.pcrs]: {problem}")]
    Pcrs { path: PathBuf, problem: String },
    /// Accepted kinds of evidence that contradict each other or their rules.
    #[error("{path}: [attestation]: {problem}")]
    Attestation { path: PathBuf, problem: String },
    /// A set of reference values cannot be used, or the rules look for what no set has.
    #[error("{}[reference_values]: {problem}", path.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display())))]
    ReferenceValues { path: Option<PathBuf>, problem: String },
    /// Rules for new values that cannot work.
    #[error("{path}: [waiting]: {problem}")]
    Waiting { path: PathBuf, problem: String },
    /// The nodes that belong to the pool are not named.
    #[error("{path}: [kubelet]: {problem}")]
    Kubelet { path: PathBuf, problem: String },
    /// The inventory cannot be read.
    #[error("{path}: {source}")]
    Inventory { path: PathBuf, source: InventoryError },
    /// The pool's machines of the cluster are not specified correctly.
    #[error("{path}: [inventory]: {problem}")]
    Machines { path: PathBuf, problem: String },
    /// A machine in two pools' inventories.
    #[error("pool {pool}: its inventory names {machine}, and so does that of pool {other}: name each machine in one pool only")]
    TwoInventories { pool: String, other: String, machine: String },
    /// A manifest that cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// MachineConfigs that cannot be rendered into one.
    #[error("pool {pool}: {source}")]
    Render { pool: String, source: RenderError },
    /// A config that Ignition would refuse.
    #[error("{path}: {source}")]
    Config { path: PathBuf, source: NotAConfig },
    /// Configs that are valid each by itself, but not merged.
    #[error("pool {pool}: its {set} config does not merge into a valid Ignition config: {source}")]
    Merged { pool: String, set: ConfigSet, source: Invalid },
    /// More bytes than the limit.
    #[error("{path}: {found} bytes, at most {limit} are read")]
    TooLarge {
        path: PathBuf,
        /// Its size, or that of the pool including it.
        found: u64,
        limit: u64,
    },
    /// More files than the limit.
    #[error("{path}: more than {limit} files")]
    TooMany { path: PathBuf, limit: usize },
    /// A file that changes while it is read.
    #[error("{path}: the file changes while it is read; the gateway reads it again when its writer has closed it")]
    Changing { path: PathBuf },
    /// Bytes that are not UTF-8.
    #[error("{path}: not UTF-8 text")]
    NotText { path: PathBuf },
    /// A file that is not read in this place.
    #[error("{path}: {expected}")]
    Unexpected {
        path: PathBuf,
        /// The files that are expected there.
        expected: &'static str,
    },
    /// A pool with nothing to serve.
    #[error(
        "pool {pool} has nothing to serve as its {set} config: put MachineConfigs with its role into machine-configs/{}",
        if *set == ConfigSet::PreApproved { " and mark some with neededBeforeNodeApproved, or *.ign into pre-approved/, or let grants earn \"full\" or \"refuse\" only" } else { ", or *.ign into full/" }
    )]
    Nothing { pool: String, set: ConfigSet },
    /// A pre-approved config with something that the full one does not have.
    #[error(
        "pool {pool}: its pre-approved config has the {kind} {name}, its full config has not: a node would lose it when it is approved"
    )]
    NoSubset { pool: String, kind: &'static str, name: String },
    /// Secrets in the config that unauthenticated clients get.
    #[error(
        "pool {pool}: its pre-approved config, which any client gets, seems to contain secrets: {}; mark less as needed before approval, or list intended entries in pre_approved.acknowledged of pool.toml",
        findings.iter().map(|finding| format!("{:?}", finding.to_string())).collect::<Vec<_>>().join(", ")
    )]
    Secrets { pool: String, findings: Vec<SecretFinding> },
    /// A pre-approved config that machine-config-daemon cannot take over by.
    #[error("pool {pool}: second_stage.machine_config_daemon: {source}")]
    SecondStage { pool: String, source: SecondStageError },
    /// A folder and an upstream server, where only one can be the source.
    #[error("{path}: the pool's source is [upstream], so nothing is read from here; remove one of them")]
    TwoSources { path: PathBuf },
    /// An upstream server that returns no config.
    #[error("pool {pool}: {source}")]
    Upstream { pool: String, source: UpstreamError },
    /// The parts that nodes need before approval are not known.
    #[error("pool {pool}: [upstream.include] {source}")]
    Needed { pool: String, source: Box<NeededError> },
    /// An include list that does not fit the upstream server's config.
    #[error("pool {pool}: [upstream.include]: {source}")]
    Include { pool: String, source: IncludeError },
    /// A folder whose name cannot be a pool's.
    #[error("{0}: a pool's name has lower-case letters, digits, '-' and '.' only, at most 63")]
    Name(PathBuf),
    /// A folder without any pool.
    #[error("{0} holds no pools: create a folder for each, with pool.toml and configs, see docs/reference/pool-toml.md")]
    None(PathBuf),
}

impl PoolError {
    /// Returns whether another server is the cause, not the local files. Such an error may resolve itself.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        match self {
            Self::Upstream { source, .. } => !source.is_of_settings(),
            Self::Needed { source, .. } => source.is_elsewhere(),
            _ => false,
        }
    }
}
