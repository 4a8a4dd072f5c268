//! Pools: what their nodes must show, and the two configs they can get.
//!
//! [`live`] has what is served at the moment; [`folder`] and [`upstream`] are where it comes from, [`versions`] what becomes of it.

mod again;
mod difference;
mod file;
mod folder;
mod inventory;
pub mod live;
pub mod upstream;
mod versions;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use attest::appraisal::FirstUse;
use attest::inventory::InventoryError;
use attest::{AppraisalPolicy, Kind as EvidenceKind, ReferenceValues};
pub(crate) use difference::differences;
pub use difference::{Change, Difference};
use folder::{Folder, Reader};
pub use inventory::PoolInventory;
use serde::Deserialize;
use upstream::{Fetched, IncludeError, Upstream, UpstreamError};
use versions::Kind;
pub use versions::{RenderedConfig, Versions};

use crate::ignition::lint::{self, Finding};
use crate::ignition::{Config, Inexpressible, Invalid, NotAConfig, SpecVersion};
use crate::kubelet::NamePatterns;
use crate::machine_config::appended::{Appended, REPEATING};
use crate::machine_config::manifest::ManifestError;
use crate::machine_config::render::{self, RenderError, Rendered};
use crate::policy::{ConfigSet, Earns, Grant, Grants};

/// The sample that `init` writes.
pub const SAMPLE: &str = include_str!("../../dist/pool.toml");
/// Whose endorsement of a TPM a pool takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Endorsement {
    /// The administrator's only: whoever buys a TPM of a trusted maker is not thereby a node.
    #[default]
    Allowlist,
    /// A maker's too, by the EK certificate: any TPM of that maker, in whatever it is and whoever bought it.
    AnyTpmOfATrustedMaker,
    /// Google's only, by the certificate of the vTPM of an instance that the pool's rules accept.
    GcpInstance,
}

impl TryFrom<String> for Endorsement {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        match word.as_str() {
            "allowlist" => Ok(Self::Allowlist),
            ANY_TPM => Ok(Self::AnyTpmOfATrustedMaker),
            "gcp-instance" => Ok(Self::GcpInstance),
            _ => Err(format!(
                "tpm.endorsement cannot be {word:?}: say \"allowlist\" (`ek add` for each machine), \"gcp-instance\", or, if whoever buys a TPM of a maker in ek-roots may be a node, \"{ANY_TPM}\" (earlier releases: \"any\")"
            )),
        }
    }
}

/// The words for [`Endorsement::AnyTpmOfATrustedMaker`], so long because of what they give away.
const ANY_TPM: &str = "any-tpm-of-a-trusted-maker";

/// One pool.
#[derive(Debug)]
pub struct Pool {
    /// What each kind of proof earns.
    pub grants: Grants,
    /// Whose endorsement of a TPM is taken.
    pub endorsement: Endorsement,
    /// Which evidence is accepted.
    pub policy: AppraisalPolicy,
    /// Which machines may join, if not all that the policy accepts.
    pub inventory: Option<PoolInventory>,
    /// How long a node waits when it is told to come again, seconds.
    pub hold_seconds: u64,
    /// The names of its nodes, for those that show a kubelet's certificate.
    pub kubelet_names: NamePatterns,
    name: String,
    pre_approved: Versions,
    full: Versions,
    /// Acknowledged secrets that are not there.
    needless: BTreeSet<String>,
    /// Whether `pool.toml` leaves open whose endorsement of a TPM is taken.
    endorsement_unsaid: bool,
    /// Whether its other server could be this very gateway, and nobody would notice.
    unpinned: bool,
}

/// Why a pool cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A file or folder cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// `pool.toml` is no TOML, or has unknown keys, or wrong values.
    #[error("{path}: {}{hint}", source.to_string().trim_end())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
        /// Where a misplaced key belongs.
        hint: String,
    },
    /// The reference values do not make sense.
    #[error("{path}: [tpm.pcrs]: {problem}")]
    Pcrs {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// What is accepted does not fit together.
    #[error("{path}: [attestation]: {problem}")]
    Attestation {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It is not said which nodes belong to the pool.
    #[error("{path}: [kubelet]: {problem}")]
    Kubelet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The inventory cannot be read.
    #[error("{path}: {source}")]
    Inventory {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: InventoryError,
    },
    /// A machine in two pools' inventories.
    #[error("pool {pool}: its inventory names {machine}, and so does that of pool {other}: a machine is of one pool")]
    TwoInventories {
        /// The pool.
        pool: String,
        /// The other pool.
        other: String,
        /// The machine.
        machine: String,
    },
    /// A manifest that cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// MachineConfigs that cannot be made one.
    #[error("pool {pool}: {source}")]
    Render {
        /// The pool.
        pool: String,
        /// Why not.
        source: RenderError,
    },
    /// A config that Ignition would not take.
    #[error("{path}: {source}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: NotAConfig,
    },
    /// Configs that are good each by itself, and not together.
    #[error("pool {pool}: merged, its {set} config is none that Ignition takes: {source}")]
    Merged {
        /// The pool.
        pool: String,
        /// Which config.
        set: ConfigSet,
        /// What is wrong.
        source: Invalid,
    },
    /// More bytes than are read.
    #[error("{path}: {found} bytes, at most {limit} are read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size, or the pool's with it.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// More files than are read.
    #[error("{path}: more than {limit} files")]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// A file that does not stand still.
    #[error("{path}: it changes while it is read; it is read again when it is closed")]
    Changing {
        /// The file.
        path: PathBuf,
    },
    /// Bytes that are no UTF-8.
    #[error("{path}: not UTF-8 text")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// Something that is not read in this place.
    #[error("{path}: {expected}")]
    Unexpected {
        /// What is there.
        path: PathBuf,
        /// What should be.
        expected: &'static str,
    },
    /// A pool with nothing to serve.
    #[error(
        "pool {pool} has nothing to serve as its {set} config: put MachineConfigs with its role into machine-configs/{}",
        if *set == ConfigSet::PreApproved { " and mark some with neededBeforeNodeApproved, or *.ign into pre-approved/, or let grants earn \"full\" or \"refuse\" only" } else { ", or *.ign into full/" }
    )]
    Nothing {
        /// The pool.
        pool: String,
        /// Which config.
        set: ConfigSet,
    },
    /// A pre-approved config with something that the full one has not.
    #[error(
        "pool {pool}: its pre-approved config has the {kind} {name}, its full config has not: a node would lose it when it is approved"
    )]
    NoSubset {
        /// The pool.
        pool: String,
        /// What it is.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Secrets for everybody.
    #[error(
        "pool {pool}: its pre-approved config, which anybody gets, holds what looks like secrets: {}; mark less as needed before approval, or list what is meant to be there in pre_approved.acknowledged of pool.toml",
        findings.iter().map(|finding| format!("{:?}", finding.to_string())).collect::<Vec<_>>().join(", ")
    )]
    Secrets {
        /// The pool.
        pool: String,
        /// What was found.
        findings: Vec<Finding>,
    },
    /// A folder and another server, where one must be the source.
    #[error("{path}: the pool's source is [upstream], so nothing is read from here; remove one of them")]
    TwoSources {
        /// The folder.
        path: PathBuf,
    },
    /// Another server that gives no config.
    #[error("pool {pool}: {source}")]
    Upstream {
        /// The pool.
        pool: String,
        /// Why not.
        source: UpstreamError,
    },
    /// An include list that does not fit what another server gives.
    #[error("pool {pool}: [upstream.include]: {source}")]
    Include {
        /// The pool.
        pool: String,
        /// What is wrong.
        source: IncludeError,
    },
    /// A folder whose name no pointer could ask for.
    #[error("{0}: a pool's name has lower-case letters, digits, '-' and '.' only, at most 63")]
    Name(PathBuf),
    /// No pool at all.
    #[error("{0} holds no pools: a pool is a folder with pool.toml and its configs, see docs/pools.md")]
    None(PathBuf),
}

/// What is in the folder of pools.
#[derive(Debug)]
pub struct Folders {
    /// The pools' folders, by the pools' names; at least one.
    pub pools: BTreeMap<String, PathBuf>,
    /// What is no pool, because no pointer could ask for it.
    pub misnamed: Vec<PoolError>,
}

impl PoolError {
    /// Whether another server is the cause, and not what lies here: it may be gone by itself.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Upstream { source, .. } if !source.is_of_settings())
    }
}

/// The folders of all pools.
///
/// # Errors
/// [`PoolError`], if there are none.
pub fn folders(folder: &Path) -> Result<Folders, PoolError> {
    let io = |source| PoolError::Io {
        path: folder.to_owned(),
        source,
    };
    let (mut folders, mut misnamed) = (BTreeMap::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_dir()) else {
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        if attest::challenge::is_pool_name(name) {
            folders.insert(name.to_owned(), path);
        } else {
            misnamed.push(PoolError::Name(path));
        }
    }
    if !folders.is_empty() {
        return Ok(Folders { pools: folders, misnamed });
    }
    Err(misnamed.pop().unwrap_or_else(|| PoolError::None(folder.to_owned())))
}

/// What a pool's proofs earn, by its `pool.toml` alone.
///
/// # Errors
/// [`PoolError`].
pub fn grants(folder: &Path) -> Result<Grants, PoolError> {
    Reader::default().settings(folder).map(|file| file.grants)
}

/// Reads one pool, from its folder, or by it from another server.
///
/// # Errors
/// [`PoolError`].
pub async fn load(name: &str, folder: &Path) -> Result<Pool, PoolError> {
    let read = Reader::default().pool(folder)?;
    let Some(settings) = read.file.upstream.clone() else {
        return Pool::of_folder(name, read);
    };
    let upstream = |source| PoolError::Upstream {
        pool: name.to_owned(),
        source,
    };
    let server = Upstream::new(settings, name).map_err(upstream)?;
    let fetched = server.fetch(None).await.map_err(upstream)?;
    Pool::of_upstream(name, read, &server, &fetched)
}

impl Pool {
    /// A pool whose configs lie in its folder.
    fn of_folder(name: &str, folder: Folder) -> Result<Self, PoolError> {
        let Folder {
            file,
            manifests,
            kubeconfig,
            inventory,
            pre_approved: plain_pre_approved,
            full: plain_full,
        } = folder;
        let rendered = render::render_pool(&manifests, name).map_err(|source| PoolError::Render {
            pool: name.to_owned(),
            source,
        })?;
        let nothing = |set| PoolError::Nothing {
            pool: name.to_owned(),
            set,
        };
        let marked = rendered
            .as_ref()
            .is_some_and(|rendered| rendered.pre_approved.spec.config != Some(Config::empty()));
        if !marked && plain_pre_approved.is_empty() && file.grants.earn(Earns::PreApproved) {
            return Err(nothing(ConfigSet::PreApproved));
        }
        if rendered.is_none() && plain_full.is_empty() {
            return Err(nothing(ConfigSet::Full));
        }
        let controller = manifests.controller.unwrap_or_default();
        let versions = |set, rendered: Option<&Rendered>, plain: &[&[Config]]| {
            let mut config = rendered.map_or_else(Config::empty, Rendered::config);
            for over in plain.iter().copied().flatten() {
                config = render::over(config, over.clone());
            }
            let config = config.validated().map_err(|source| PoolError::Merged {
                pool: name.to_owned(),
                set,
                source,
            })?;
            let kind = rendered.map_or(Kind::Plain, |rendered| {
                Kind::Operator(Box::new(Appended {
                    machine_config: rendered.clone(),
                    controller: controller.clone(),
                    kubeconfig: kubeconfig.clone(),
                    annotations: set == ConfigSet::Full,
                }))
            });
            Ok::<_, PoolError>(Versions::new(config, kind))
        };
        let pre_approved = versions(
            ConfigSet::PreApproved,
            rendered.as_ref().map(|r| &r.pre_approved),
            &[&plain_pre_approved],
        )?;
        let full = versions(
            ConfigSet::Full,
            rendered.as_ref().map(|r| &r.full),
            &[&plain_pre_approved, &plain_full],
        )?;
        Self::new(name, file, inventory, pre_approved, full)
    }

    /// A pool whose full config is another server's.
    fn of_upstream(name: &str, folder: Folder, server: &Upstream, fetched: &Fetched) -> Result<Self, PoolError> {
        let include = |source| PoolError::Include {
            pool: name.to_owned(),
            source,
        };
        let full = fetched.newest();
        let list = &server.settings().include;
        let pre_approved = if list.is_empty() && !folder.file.grants.earn(Earns::PreApproved) {
            Config::empty()
        } else {
            list.choose(full).map_err(include)?
        };
        let given = fetched
            .configs()
            .iter()
            .map(|(version, given)| (*version, given.bytes.clone()))
            .collect();
        Self::new(
            name,
            folder.file,
            folder.inventory,
            Versions::new(pre_approved, Kind::Plain),
            Versions::new(full.clone(), Kind::Given(given)),
        )
    }

    fn new(
        name: &str,
        file: file::PoolFile,
        inventory: Option<PoolInventory>,
        pre_approved: Versions,
        full: Versions,
    ) -> Result<Self, PoolError> {
        let complete = pre_approved.complete();
        if let Some(missing) = difference::missing(&complete, &full.complete()) {
            return Err(PoolError::NoSubset {
                pool: name.to_owned(),
                kind: missing.kind,
                name: missing.name,
            });
        }
        // Where the gateway has added them itself, it is known what they repeat. Another server's say what is in the full config.
        let repeating = pre_approved.spec().map_or(&[][..], |_| &REPEATING[..]);
        let found = lint::lint(&complete, repeating);
        let names: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        let findings: Vec<Finding> = found
            .into_iter()
            .filter(|finding| !file.acknowledged.contains(&finding.to_string()))
            .collect();
        if !findings.is_empty() {
            return Err(PoolError::Secrets {
                pool: name.to_owned(),
                findings,
            });
        }
        Ok(Self {
            name: name.to_owned(),
            grants: file.grants,
            endorsement: file.endorsement.unwrap_or_default(),
            endorsement_unsaid: file.endorsement.is_none(),
            policy: file.policy,
            inventory,
            hold_seconds: file.hold_seconds,
            kubelet_names: file.kubelet_names,
            needless: file.acknowledged.difference(&names).cloned().collect(),
            unpinned: file
                .upstream
                .is_some_and(|upstream| upstream.address.is_none() && upstream.keys_sha256.is_empty()),
            pre_approved,
            full,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The config that a grant gives the right to; `None` if the grant is for another pool.
    #[must_use]
    pub fn config(&self, grant: &Grant) -> Option<&Versions> {
        (grant.pool() == self.name).then(|| self.for_administrator(grant.set()))
    }

    /// Whether one of its configs can be said in a spec version. It is rendered for that, and not given.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn can_say(&self, set: ConfigSet, version: SpecVersion) -> Result<(), &Inexpressible> {
        self.for_administrator(set).get(version).map(|_| ())
    }

    /// One of its configs, for the administrator: `render`, `diff`, `check`.
    #[must_use]
    pub const fn for_administrator(&self, set: ConfigSet) -> &Versions {
        match set {
            ConfigSet::PreApproved => &self.pre_approved,
            ConfigSet::Full => &self.full,
        }
    }

    /// What of the full config has a node boot again within its first boot, and fetch once more, if there is anything: its kernel arguments are
    /// another than the image's, before Ignition has written anything.
    #[must_use]
    pub fn boots_again(&self) -> Option<&'static str> {
        let config = self.full.complete();
        let arguments = ["shouldExist", "shouldNotExist"].map(|list| config.list(["kernelArguments", list]));
        if arguments.iter().any(|arguments| !arguments.is_empty()) {
            return Some("kernelArguments");
        }
        self.full.spec().is_some_and(|spec| spec.fips).then_some("FIPS mode")
    }

    /// What a node gets only once it is approved, or differently.
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        let mut differences = difference::differences(&self.pre_approved.complete(), &self.full.complete());
        if let (Some(pre_approved), Some(full)) = (self.pre_approved.spec(), self.full.spec()) {
            differences.extend(difference::spec_differences(pre_approved, full));
        }
        differences.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        differences
    }

    /// How large both configs are, for the log.
    #[must_use]
    pub fn summary(&self) -> String {
        let sizes = |versions: &Versions| {
            let config = versions.complete();
            let count = |place, what: &str| match config.list(place).len() {
                1 => format!("1 {what}"),
                many => format!("{many} {what}s"),
            };
            format!("{}, {}", count(["storage", "files"], "file"), count(["systemd", "units"], "unit"))
        };
        format!("full: {}; pre-approved: {}", sizes(&self.full), sizes(&self.pre_approved))
    }

    /// Versions that a set cannot be said in, and why.
    #[must_use]
    pub fn inexpressible(&self, set: ConfigSet) -> Vec<&Inexpressible> {
        SpecVersion::ALL
            .into_iter()
            .filter_map(|version| self.for_administrator(set).get(version).err())
            .collect()
    }

    /// Whether nodes would notice no difference.
    #[must_use]
    fn same(&self, other: &Self) -> bool {
        self.grants == other.grants
            && self.endorsement == other.endorsement
            && self.policy == other.policy
            && self.inventory == other.inventory
            && self.hold_seconds == other.hold_seconds
            && self.kubelet_names == other.kubelet_names
            && self.needless == other.needless
            && self.unpinned == other.unpinned
            && self.pre_approved == other.pre_approved
            && self.full == other.full
    }

    /// What an administrator should know about this pool; `roots` is whether there are EK roots, `client_ca`
    /// whether kubelets are asked for their certificates.
    #[must_use]
    pub fn warnings(&self, roots: bool, client_ca: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        if !client_ca && self.grants.kubelet != Earns::Refuse {
            warnings.push(format!(
                "pool {}: grants.kubelet gives nothing without tls.client_ca in gateway.toml",
                self.name
            ));
        }
        let tpm_alone = self.policy.accepts().contains(&EvidenceKind::Tpm.into());
        let any_boot = tpm_alone && self.policy.reference_values().is_some_and(ReferenceValues::checks_nothing);
        // A pool that takes any TPM is not better for the PCRs that it checks: in a machine of one's own, a TPM takes any values.
        if roots
            && tpm_alone
            && self.endorsement == Endorsement::AnyTpmOfATrustedMaker
            && self.inventory.is_none()
            && self.grants.attested == Earns::Full
        {
            warnings.push(format!(
                "pool {} gives its full config to whoever buys a TPM of a maker in the EK roots, as its tpm.endorsement says; checking PCRs does not change that, tpm.endorsement = \"allowlist\" does",
                self.name
            ));
        }
        if roots && self.policy.accepts_kind(EvidenceKind::Tpm) && self.endorsement_unsaid {
            warnings.push(format!(
                "pool {} does not say tpm.endorsement, so it takes TPMs of the allowlist only, and none for its maker in the EK roots: say \"allowlist\", or \"{ANY_TPM}\"",
                self.name
            ));
        }
        if any_boot && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {} accepts any measured boot: an attestation proves which machine it is, not what it runs",
                self.name
            ));
        }
        let by_cloud = self.policy.accepts().iter().any(|kinds| {
            let kinds = kinds.kinds();
            kinds.iter().any(|kind| kind.is_of_a_cloud()) && !kinds.iter().any(|kind| kind.is_of_a_tpm())
        });
        if by_cloud && self.policy.first_use() == FirstUse::MeansNothing && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {}: any process that reaches an instance's metadata server gets what an attestation earns, at any time and as often as it likes: take attestation.first_use out of pool.toml, unless that is meant",
                self.name
            ));
        }
        let clouds = self.policy.accepts().iter().flat_map(attest::Combination::kinds);
        let of_google = self.endorsement == Endorsement::GcpInstance;
        let of_instances = of_google || clouds.into_iter().any(|kind| kind.is_of_a_cloud());
        if of_instances && self.inventory.is_none() && self.grants.attested == Earns::Full {
            warnings.push(format!(
                "pool {}: any instance of the account that fits the rules gets this pool's config: name the pool's machines in an [inventory]",
                self.name
            ));
        }
        let beside = |kinds: &attest::Combination| kinds.has(EvidenceKind::Tpm) && kinds.kinds().iter().any(|kind| kind.is_of_a_cloud());
        let by_inventory = self.endorsement == Endorsement::AnyTpmOfATrustedMaker && self.policy.accepts().iter().any(beside);
        let names_no_tpm = |inventory: &PoolInventory| inventory.machines().names_no_tpm();
        if by_inventory && self.inventory.as_ref().is_some_and(names_no_tpm) {
            warnings.push(format!(
                "pool {}: its inventory names no TPM beside any instance, so no instance with a TPM that only its maker vouches for is accepted",
                self.name
            ));
        }
        if self.grants.nothing == Earns::Full {
            warnings.push(format!(
                "pool {} gives its full config to whoever asks (grants.nothing = \"full\")",
                self.name
            ));
        }
        let (pre_approved, full) = (self.pre_approved.complete(), self.full.complete());
        if pre_approved == full {
            warnings.push(format!("pool {}: full and pre-approved config are the same", self.name));
        } else if self.grants.kubelet == Earns::Full
            && let Some(obstacle) = again::obstacle(&pre_approved, &full)
        {
            warnings.push(format!("pool {}: {obstacle}", self.name));
        }
        if self.unpinned {
            warnings.push(format!(
                "pool {}: if the name in upstream.url ever leads to this gateway, it would take its own pre-approved config for the full one: set upstream.address or upstream.keys_sha256",
                self.name
            ));
        }
        for name in &self.needless {
            warnings.push(format!(
                "pool {}: pre_approved.acknowledged lists {name:?}, which is not there",
                self.name
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
