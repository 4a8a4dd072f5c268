//! A pool's folder: MachineConfigs and plain Ignition configs, read whole or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::reference_sets::ReferenceSets;
use attest::{AppraisalPolicy, UnixTime};
use attest_ignition::Config;
use attest_ignition::machine_config::Manifests;
use attest_ignition::machine_config::appended::BootstrapKubeconfig;
use attest_system::files;

use super::PoolError;
use super::file::{self, PoolFile};
use super::file_stamps::{FileStamps, Stamp};
use super::inventory::PoolInventory;

/// Largest file, in bytes: ten times what a MachineConfig may be in a cluster, so that whole dumps fit.
pub const FILE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum size of all files of a pool, in bytes. Memory use while reading is a small multiple of it.
const POOL_LIMIT_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of files in a folder. A cluster has some hundred MachineConfigs.
const FOLDER_LIMIT_FILES: usize = 10_000;
/// Maximum number of sets of reference values of a pool: each is a blob that its records name.
const SETS_LIMIT: usize = 16;
/// Attempts to read a file that changes while it is read.
const READ_ATTEMPTS: usize = 3;

/// Contents of a pool's folder.
pub struct PoolFolder {
    pub file: PoolFile,
    pub manifests: Manifests,
    pub kubeconfig: Option<BootstrapKubeconfig>,
    pub inventory: Option<PoolInventory>,
    /// Configs from `pre-approved/*.ign`, by file name.
    pub pre_approved: Vec<Config>,
    /// Configs from `full/*.ign`, by file name.
    pub full: Vec<Config>,
    /// Size of all files, in bytes.
    pub size: usize,
}

/// Reads files, and remembers their folders and state, to watch them for changes.
#[derive(Debug, Default)]
pub struct FileReader {
    /// Folders of the files that were read, or that do not exist yet.
    pub watched: BTreeSet<PathBuf>,
    /// State of all files and folders that were read.
    pub stamps: FileStamps,
    bytes: u64,
}

impl FileReader {
    /// Creates a reader; `now` is the current time.
    pub fn at(now: UnixTime) -> Self {
        Self {
            stamps: FileStamps::from(now),
            ..Self::default()
        }
    }

    /// Reads a pool's folder.
    pub fn pool(&mut self, folder: &Path) -> Result<PoolFolder, PoolError> {
        let mut file = self.settings(folder)?;
        self.reference_sets(&mut file, Vec::new())?;
        if file.upstream.is_some() {
            for other in [folder.join("full"), folder.join("pre-approved"), file.machine_configs.clone()] {
                if other.exists() {
                    return Err(PoolError::TwoSources { path: other });
                }
            }
        }
        let manifests = Manifests {
            extensions: file.extensions.clone(),
            ..self.manifests(&file.machine_configs)?
        };
        let kubeconfig = file
            .kubeconfig
            .as_deref()
            .map(|path| self.bytes(path).map(BootstrapKubeconfig))
            .transpose()?;
        let inventory = file.inventory.as_deref().map(|path| self.inventory(path)).transpose()?;
        Ok(PoolFolder {
            manifests,
            kubeconfig,
            inventory,
            pre_approved: self.plain(&folder.join("pre-approved"))?,
            full: self.plain(&folder.join("full"))?,
            size: usize::try_from(self.bytes).unwrap_or(usize::MAX),
            file,
        })
    }

    pub fn settings(&mut self, folder: &Path) -> Result<PoolFile, PoolError> {
        let path = folder.join("pool.toml");
        file::parse(&self.text(&path)?, &path, folder)
    }

    /// Returns the policy that a pool would have with this file and these additional files of reference values.
    pub fn policy(&mut self, folder: &Path, path: &Path, more: &[PathBuf]) -> Result<AppraisalPolicy, PoolError> {
        let text = self.text(path)?;
        let more = more.iter().map(|path| self.text(path)).collect::<Result<_, _>>()?;
        self.policy_of(folder, path, &text, more)
    }

    /// Returns the same policy for a file that is not written yet.
    pub fn policy_of(&mut self, folder: &Path, path: &Path, text: &str, more: Vec<String>) -> Result<AppraisalPolicy, PoolError> {
        let mut file = file::parse(text, path, folder)?;
        self.reference_sets(&mut file, more)?;
        Ok(file.policy)
    }

    /// Returns the files of the pool's sets of reference values.
    pub fn reference_set_paths(&mut self, file: &PoolFile) -> Result<Vec<PathBuf>, PoolError> {
        let Some(folder) = &file.reference_values else {
            return Ok(Vec::new());
        };
        let paths = self.files(folder)?;
        match paths.iter().find(|path| extension(path) != "json") {
            None => Ok(paths),
            Some(path) => Err(PoolError::Unexpected {
                path: path.clone(),
                expected: "*.json is read here",
            }),
        }
    }

    /// Adds the pool's sets of reference values, and `more`, to the policy.
    fn reference_sets(&mut self, file: &mut PoolFile, more: Vec<String>) -> Result<(), PoolError> {
        let folder = file.reference_values.clone();
        let paths = self.reference_set_paths(file)?;
        let mut texts = paths.iter().map(|path| self.text(path)).collect::<Result<Vec<_>, _>>()?;
        texts.extend(more);
        if texts.len() > SETS_LIMIT {
            return Err(PoolError::TooMany {
                path: folder.unwrap_or_default(),
                limit: SETS_LIMIT,
            });
        }
        let wrong = |path: Option<PathBuf>, problem: String| PoolError::ReferenceValues {
            path: path.or_else(|| folder.clone()),
            problem,
        };
        let sets = ReferenceSets::parse(texts.iter().map(String::as_str));
        let sets = sets.map_err(|(place, error)| wrong(paths.get(place).cloned(), error.to_string()))?;
        file.policy = file
            .policy
            .clone()
            .with_reference_sets(&Arc::new(sets))
            .map_err(|problem| wrong(None, problem))?;
        file.reference_sets = texts.into_iter().map(|text| text.into_bytes().into()).collect();
        Ok(())
    }

    /// Reads the list of machines that may join.
    fn inventory(&mut self, path: &Path) -> Result<PoolInventory, PoolError> {
        PoolInventory::parse(self.text(path)?).map_err(|source| PoolError::Inventory {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads the objects in a folder; returns an empty set if the folder does not exist.
    fn manifests(&mut self, folder: &Path) -> Result<Manifests, PoolError> {
        let mut manifests = Manifests::default();
        for path in self.files(folder)? {
            match extension(&path) {
                "yaml" | "yml" | "json" => {
                    let text = self.text(&path)?;
                    manifests.read(&path, &text)?;
                }
                _ => {
                    return Err(PoolError::Unexpected {
                        path,
                        expected: "*.yaml, *.yml and *.json are read here",
                    });
                }
            }
        }
        Ok(manifests)
    }

    /// Reads the plain Ignition configs in a folder, by name.
    fn plain(&mut self, folder: &Path) -> Result<Vec<Config>, PoolError> {
        let mut configs = Vec::new();
        for path in self.files(folder)? {
            if extension(&path) != "ign" {
                return Err(PoolError::Unexpected {
                    path,
                    expected: "*.ign is read here",
                });
            }
            let text = self.bytes(&path)?;
            configs.push(Config::parse(&text).map_err(|source| PoolError::Config { path, source })?);
        }
        Ok(configs)
    }

    /// Returns the files of a folder, by name. Skips names that begin with a dot: they are editors' files, and those of Kubernetes volumes.
    fn files(&mut self, folder: &Path) -> Result<Vec<PathBuf>, PoolError> {
        self.stamps.note(folder);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // Watch for its coming.
                self.watched
                    .extend(folder.parent().filter(|parent| parent.is_dir()).map(Path::to_owned));
                return Ok(Vec::new());
            }
            Err(source) => {
                return Err(PoolError::Io {
                    path: folder.to_owned(),
                    source,
                });
            }
        };
        self.watched.insert(folder.to_owned());
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| PoolError::Io {
                path: folder.to_owned(),
                source,
            })?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with('.') || name.ends_with('~') {
                continue;
            }
            if files.len() >= FOLDER_LIMIT_FILES {
                return Err(PoolError::TooMany {
                    path: folder.to_owned(),
                    limit: FOLDER_LIMIT_FILES,
                });
            }
            files.push(entry.path());
        }
        files.sort();
        Ok(files)
    }

    fn text(&mut self, path: &Path) -> Result<String, PoolError> {
        String::from_utf8(self.bytes(path)?).map_err(|_| PoolError::NotText { path: path.to_owned() })
    }

    /// Reads a whole file, consistently.
    pub fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, PoolError> {
        if let Some(folder) = path.parent().filter(|folder| folder.is_dir()) {
            self.watched.insert(folder.to_owned());
            self.stamps.note(folder);
        }
        // Where a link leads, the file changes too.
        if let Ok(target) = fs::canonicalize(path) {
            self.watched.extend(target.parent().map(Path::to_owned));
            if target != path {
                self.stamps.leads(path, &target);
            }
        }
        let io = |source| PoolError::Io {
            path: path.to_owned(),
            source,
        };
        for _ in 0..READ_ATTEMPTS {
            let before = stamp(path)?;
            // One more, so that it need not grow to find that there is no more.
            let mut bytes = Vec::with_capacity(usize::try_from(before.length).unwrap_or_default() + 1);
            let file = files::open(path).map_err(io)?;
            file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
            if stamp(path)? != before || u64::try_from(bytes.len()).ok() != Some(before.length) {
                continue;
            }
            self.bytes = self.bytes.saturating_add(before.length);
            if self.bytes > POOL_LIMIT_BYTES {
                return Err(PoolError::TooLarge {
                    path: path.to_owned(),
                    found: self.bytes,
                    limit: POOL_LIMIT_BYTES,
                });
            }
            self.stamps.put(path, Some(before));
            return Ok(bytes);
        }
        Err(PoolError::Changing { path: path.to_owned() })
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Returns the stamp of a file; an error if it is not a regular file, or too large.
fn stamp(path: &Path) -> Result<Stamp, PoolError> {
    let metadata = fs::metadata(path).map_err(|source| PoolError::Io {
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(PoolError::Unexpected {
            path: path.to_owned(),
            expected: "only files are read, and only from the folder itself",
        });
    }
    let length = metadata.len();
    if length > FILE_LIMIT_BYTES {
        return Err(PoolError::TooLarge {
            path: path.to_owned(),
            found: length,
            limit: FILE_LIMIT_BYTES,
        });
    }
    Ok(Stamp::from_metadata(&metadata))
}
