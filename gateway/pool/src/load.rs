//! Loading of a pool from its folder or from an upstream server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::AppraisalPolicy;
use attest_ignition::lint::{self, SecretFinding};
use attest_ignition::machine_config::appended::{Appended, CONTENT};
use attest_ignition::machine_config::render::{self, Rendered, RenderedPool};
use attest_ignition::machine_config::second_stage::{self, OBJECT_LIMIT_BYTES, SecondStageError};
use attest_ignition::{Config, Invalid};
use attest_log::{ConfigSet, Earns, Grants};

use super::folder::{FileReader, PoolFolder};
use super::needed_before_approval::NeededState;
use super::outline::Outlines;
use super::packed::{Packed, PackedPositions, Packing};
use super::upstream::{FetchedConfig, UpstreamSettings};
use super::versions::{Conversion, Versions};
use super::{Pool, PoolError, PoolFile, PoolInventory, file};

/// Contents of the folder of pools.
#[derive(Debug)]
pub struct PoolFolders {
    /// The pools' folders, by the pools' names; at least one.
    pub pools: BTreeMap<String, PathBuf>,
    /// Folders that are not pools, because their names cannot be a pool's.
    pub misnamed: Vec<PoolError>,
}

/// Returns the folders of all pools.
///
/// # Errors
/// [`PoolError`], if it finds no pool.
pub fn folders(folder: &Path) -> Result<PoolFolders, PoolError> {
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
        return Ok(PoolFolders { pools: folders, misnamed });
    }
    Err(misnamed.pop().unwrap_or_else(|| PoolError::None(folder.to_owned())))
}

/// Returns what a pool's proofs earn, by its `pool.toml` alone.
///
/// # Errors
/// [`PoolError`].
pub fn grants(folder: &Path) -> Result<Grants, PoolError> {
    FileReader::default().settings(folder).map(|file| file.grants)
}

/// Returns the contents of a pool's `pool.toml`, without the files that it names.
///
/// # Errors
/// [`PoolError`].
pub fn pool_file(folder: &Path) -> Result<PoolFile, PoolError> {
    FileReader::default().settings(folder)
}

/// Returns the files of the pool's sets of reference values.
///
/// # Errors
/// [`PoolError`].
pub fn reference_set_files(folder: &Path) -> Result<Vec<PathBuf>, PoolError> {
    let mut reader = FileReader::default();
    let file = reader.settings(folder)?;
    reader.reference_set_paths(&file)
}

/// Returns the rules of a pool, by its `pool.toml` alone: without reference values.
///
/// # Errors
/// [`PoolError`].
pub fn rules(folder: &Path) -> Result<AppraisalPolicy, PoolError> {
    FileReader::default().settings(folder).map(|file| file.policy)
}

/// Returns the policy that a pool would have with this file instead of its `pool.toml`, with its reference values and those of more files.
///
/// # Errors
/// [`PoolError`].
pub fn policy(folder: &Path, file: &Path, more: &[PathBuf]) -> Result<AppraisalPolicy, PoolError> {
    FileReader::default().policy(folder, file, more)
}

/// Returns the policy that a pool would have if its file at `path` had this text, with its reference values and more of them.
///
/// # Errors
/// [`PoolError`].
pub fn policy_of(folder: &Path, path: &Path, text: &str, more: Vec<String>) -> Result<AppraisalPolicy, PoolError> {
    FileReader::default().policy_of(folder, path, text, more)
}

impl Pool {
    /// Builds a pool whose configs are in its folder.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn from_folder(name: &str, folder: PoolFolder) -> Result<Self, PoolError> {
        let PoolFolder {
            file,
            manifests,
            kubeconfig,
            inventory,
            pre_approved: plain_pre_approved,
            full: plain_full,
            size,
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
        let second_stage = file.takes_over();
        let wrong = |source| PoolError::SecondStage {
            pool: name.to_owned(),
            source,
        };
        let rendered = match rendered {
            None if second_stage => return Err(wrong(SecondStageError::NoMachineConfigs)),
            Some(_) if second_stage && !(plain_pre_approved.is_empty() && plain_full.is_empty()) => {
                return Err(wrong(SecondStageError::PlainConfigs));
            }
            Some(RenderedPool { pre_approved, full }) if second_stage => Some(RenderedPool {
                pre_approved: second_stage::taken_over(pre_approved, name, &full.spec),
                full,
            }),
            rendered => rendered,
        };
        let controller = manifests.controller.unwrap_or_default();
        let made = |set, mut rendered: Option<Rendered>, plain: Vec<Config>| {
            let of_rendered = rendered.as_mut().and_then(|rendered| rendered.spec.config.take());
            // What was rendered is validated already.
            let is_validated = rendered.is_some() && plain.is_empty();
            let own = of_rendered.as_ref().filter(|_| !plain.is_empty()).cloned();
            let mut config = of_rendered.unwrap_or_else(Config::empty);
            for over in plain {
                config = render::over(config, over);
            }
            if !is_validated {
                config = config.validated().map_err(|source| PoolError::Merged {
                    pool: name.to_owned(),
                    set,
                    source,
                })?;
            }
            let kind = rendered.map_or(Conversion::Plain, |mut machine_config| {
                // It would be there twice.
                machine_config.spec.config = own.filter(|own| *own != config);
                Conversion::Operator(Box::new(Appended {
                    machine_config,
                    controller: controller.clone(),
                    kubeconfig: kubeconfig.clone(),
                    annotations: set == ConfigSet::Full || second_stage,
                    for_any_release: set == ConfigSet::PreApproved && second_stage,
                }))
            });
            Ok::<_, PoolError>((config, kind))
        };
        let (rendered_pre_approved, rendered_full) = rendered.map(|rendered| (rendered.pre_approved, rendered.full)).unzip();
        let pre_approved = made(ConfigSet::PreApproved, rendered_pre_approved, plain_pre_approved.clone())?;
        let plain = plain_pre_approved.into_iter().chain(plain_full).collect();
        let full = made(ConfigSet::Full, rendered_full, plain)?;
        Self::new(name, file, inventory, pre_approved, full, size)
    }

    /// Builds a pool whose full config was fetched from the upstream server of these settings.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn from_upstream(
        name: &str,
        folder: PoolFolder,
        settings: &UpstreamSettings,
        fetched: &FetchedConfig,
        needed: &NeededState,
    ) -> Result<Self, PoolError> {
        let include = |source| PoolError::Include {
            pool: name.to_owned(),
            source,
        };
        let full = fetched.newest();
        let list = &settings.include;
        let pre_approved = if list.is_empty() && !folder.file.grants.earn(Earns::PreApproved) {
            Config::empty()
        } else {
            let needed = list
                .needed()
                .then(|| needed.for_pool(settings.pool.as_deref().unwrap_or(name), full))
                .transpose();
            let needed = needed.map_err(|source| PoolError::Needed {
                pool: name.to_owned(),
                source: Box::new(source),
            })?;
            match needed {
                Some(needed) if list.names_nothing() => needed,
                Some(needed) => render::over(needed, list.choose(full).map_err(include)?),
                None => list.choose(full).map_err(include)?,
            }
        };
        let pre_approved = if folder.file.takes_over() {
            let made = second_stage::from_chosen_parts(pre_approved, name).map_err(|source| PoolError::SecondStage {
                pool: name.to_owned(),
                source,
            });
            made.map(|(config, appended)| (config, Conversion::Operator(Box::new(appended))))?
        } else {
            (pre_approved, Conversion::Plain)
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
            pre_approved,
            (full.clone(), Conversion::Given(given)),
            folder.size,
        )
    }

    /// Builds a pool from its parts. `size` is the approximate size of its source, in bytes.
    fn new(
        name: &str,
        file: file::PoolFile,
        inventory: Option<PoolInventory>,
        pre_approved: (Config, Conversion),
        full: (Config, Conversion),
        size: usize,
    ) -> Result<Self, PoolError> {
        let mut packing = Packing::for_about(size);
        let mut places = |set, (config, kind): &(Config, Conversion)| {
            let own = kind.own().map(|own| packing.add(own)).transpose();
            let both = packing.add(config).and_then(|config| Ok((config, own?)));
            both.map_err(|problem| unusable(name, set, &problem))
        };
        let of_pre_approved = places(ConfigSet::PreApproved, &pre_approved)?;
        let of_full = places(ConfigSet::Full, &full)?;
        let texts = packing.texts();
        let ((pre_approved, kind), (full, kind_of_full)) = (pre_approved, full);
        let second_stage = |source| PoolError::SecondStage {
            pool: name.to_owned(),
            source,
        };
        if file.takes_over() {
            second_stage::check_readable(&pre_approved).map_err(second_stage)?;
        }
        let sizes = [&of_pre_approved, &of_full].map(|(config, _)| config.size());
        let outlines = Outlines::new((pre_approved, &kind), (full, &kind_of_full), sizes);
        let outlines = outlines.map_err(|problem| unusable(name, ConfigSet::Full, &problem))?;
        if let Some(missing) = outlines.missing() {
            return Err(PoolError::NoSubset {
                pool: name.to_owned(),
                kind: missing.kind,
                name: missing.name,
            });
        }
        if file.takes_over()
            && let Some(found) = outlines.object_size().filter(|size| *size > OBJECT_LIMIT_BYTES)
        {
            return Err(second_stage(SecondStageError::TooLarge { found }));
        }
        // Where the gateway has added it itself, it is known what it repeats. Another server's says what is in the full config.
        let repeating = match kind {
            Conversion::Operator(_) => &[CONTENT][..],
            Conversion::Plain | Conversion::Given(_) => &[],
        };
        let found = lint::lint(&outlines.pre_approved, repeating);
        let names: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        let bootstrap_credential = outlines.has_bootstrap_credential(&found);
        let findings: Vec<SecretFinding> = found
            .into_iter()
            .filter(|finding| !file.acknowledged.contains(&finding.to_string()))
            .collect();
        if !findings.is_empty() {
            return Err(PoolError::Secrets {
                pool: name.to_owned(),
                findings,
            });
        }
        let known = outlines.compute(kind.spec().filter(|_| file.takes_over()));
        let [digest, digest_of_full] = outlines.digests();
        let versions = |(config, own): (PackedPositions, Option<PackedPositions>), kind: Conversion, digest| {
            let packed = |places| Packed::new(Arc::clone(&texts), places);
            Versions::new(packed(config), kind.without_own(), own.map(packed), digest)
        };
        let pre_approved = versions(of_pre_approved, kind, digest);
        let full = versions(of_full, kind_of_full, digest_of_full);
        Ok(Self {
            name: name.to_owned(),
            second_stage: file.takes_over(),
            machine_config_pool: file
                .upstream
                .as_ref()
                .and_then(|upstream| upstream.pool.clone())
                .unwrap_or_else(|| name.to_owned()),
            second_stage_of_nobody: file.second_stage && !file.takes_over(),
            grants: file.grants,
            endorsement: file.endorsement.unwrap_or_default(),
            endorsement_unsaid: file.endorsement.is_none(),
            policy: file.policy,
            reference_sets: file.reference_sets,
            inventory,
            machines: file.machines,
            history: file.history,
            waiting: file.waiting,
            hold_seconds: file.hold_seconds,
            kubelet_names: file.kubelet_names,
            needless: file.acknowledged.difference(&names).cloned().collect(),
            unpinned: file
                .upstream
                .is_some_and(|upstream| upstream.address.is_none() && upstream.keys_sha256.is_empty()),
            pre_approved,
            full,
            outline: known,
            bootstrap_credential,
        })
    }
}

fn unusable(pool: &str, set: ConfigSet, problem: &dyn std::fmt::Display) -> PoolError {
    PoolError::Merged {
        pool: pool.to_owned(),
        set,
        source: Invalid {
            place: "$".to_owned(),
            problem: problem.to_string(),
        },
    }
}
