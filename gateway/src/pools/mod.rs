//! Pools: what their nodes must show, and the two configs they can get.

mod file;
pub mod upstream;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use attest::{PcrSelection, ReferenceValues};
use axum::body::Bytes;
use data_encoding::HEXLOWER;
use serde::Deserialize;

use crate::ignition::{self, NotAConfig};
use crate::policy::{ConfigSet, Earns, Grant, Grants};

/// The sample that `init` writes.
pub const SAMPLE: &str = include_str!("../../dist/pool.toml");
/// Largest config, in bytes: twice what a MachineConfig may be in etcd, and more than Ignition has been seen to take.
const CONFIG_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// Whose endorsement of a TPM a pool takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Endorsement {
    /// A maker's, by the EK certificate, or the administrator's, by the allowlist.
    #[default]
    Any,
    /// The administrator's only: whoever buys a TPM of a trusted maker is not thereby a node.
    Allowlist,
}

/// One pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// What each kind of proof earns.
    pub grants: Grants,
    /// Whose endorsement of a TPM is taken.
    pub endorsement: Endorsement,
    /// The PCR values accepted.
    pub reference_values: ReferenceValues,
    /// What a challenge asks for.
    pub selection: PcrSelection,
    name: String,
    pre_approved: RenderedConfig,
    full: RenderedConfig,
}

/// A config as it is served.
#[derive(Debug, Clone)]
pub struct RenderedConfig {
    /// The JSON.
    pub bytes: Bytes,
    /// Its SHA-256, hexadecimal: what the record says was served.
    pub sha256: String,
}

/// All pools, by name.
pub type Pools = BTreeMap<String, Pool>;

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
    #[error("{path}: {source}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// The reference values do not make sense.
    #[error("{path}: [tpm.pcrs]: {problem}")]
    Pcrs {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A folder with no config, or several.
    #[error("{path} holds {found} *.ign files, exactly one is expected")]
    Count {
        /// The folder.
        path: PathBuf,
        /// How many there are.
        found: usize,
    },
    /// A config that Ignition would not take.
    #[error("{path}: {source}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: NotAConfig,
    },
    /// A config larger than is served.
    #[error("{path} has {found} bytes, at most {CONFIG_LIMIT_BYTES} are served")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// A folder whose name no pointer could ask for.
    #[error("{0}: a pool's name has lower-case letters, digits, '-' and '.' only, at most 63")]
    Name(PathBuf),
    /// No pool at all.
    #[error("{0} holds no pools: a pool is a folder with pool.toml, full/ and pre-approved/")]
    None(PathBuf),
}

/// Reads every pool in a folder.
///
/// # Errors
/// [`PoolError`], for the first that cannot be served.
pub fn load(folder: &Path) -> Result<Pools, PoolError> {
    let io = |source| PoolError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut pools = Pools::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            let pool = Pool::load(&path)?;
            pools.insert(pool.name.clone(), pool);
        }
    }
    if pools.is_empty() {
        Err(PoolError::None(folder.to_owned()))
    } else {
        Ok(pools)
    }
}

impl Pool {
    fn load(folder: &Path) -> Result<Self, PoolError> {
        let name = folder
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| attest::challenge::is_pool_name(name))
            .ok_or_else(|| PoolError::Name(folder.to_owned()))?
            .to_owned();
        let path = folder.join("pool.toml");
        let text = fs::read_to_string(&path).map_err(|source| PoolError::Io {
            path: path.clone(),
            source,
        })?;
        let (grants, endorsement, reference_values) = file::parse(&text, &path)?;
        let selection = reference_values.selection().map_err(|error| PoolError::Pcrs {
            path,
            problem: error.to_string(),
        })?;
        let pre_approved = read_config(&folder.join("pre-approved"))?;
        let full = read_config(&folder.join("full"))?;
        Ok(Self {
            name,
            grants,
            endorsement,
            reference_values,
            selection,
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
    pub fn config(&self, grant: &Grant) -> Option<&RenderedConfig> {
        (grant.pool() == self.name).then(|| match grant.set() {
            ConfigSet::PreApproved => &self.pre_approved,
            ConfigSet::Full => &self.full,
        })
    }

    /// What an administrator should know about this pool; `roots` is whether there are EK roots.
    #[must_use]
    pub fn warnings(&self, roots: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        let any_machine = roots && self.endorsement == Endorsement::Any && self.reference_values.checks_nothing();
        if any_machine && self.grants.attested == Earns::Full {
            warnings.push(format!(
                "pool {} gives its full config to every machine with a TPM of a maker in the EK roots: check PCRs, or set tpm.endorsement = \"allowlist\"",
                self.name
            ));
        }
        if self.reference_values.checks_nothing() && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {} accepts any measured boot: an attestation proves which machine it is, not what it runs",
                self.name
            ));
        }
        if self.grants.nothing == Earns::Full {
            warnings.push(format!(
                "pool {} gives its full config to whoever asks (grants.nothing = \"full\")",
                self.name
            ));
        }
        if self.pre_approved.sha256 == self.full.sha256 {
            warnings.push(format!("pool {}: full and pre-approved config are the same", self.name));
        }
        warnings
    }
}

fn read_config(folder: &Path) -> Result<RenderedConfig, PoolError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| PoolError::Io { path, source }
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "ign") {
            files.push(path);
        }
    }
    let [path] = files.as_slice() else {
        return Err(PoolError::Count {
            path: folder.to_owned(),
            found: files.len(),
        });
    };
    let found = fs::metadata(path).map_err(io(path))?.len();
    if found > CONFIG_LIMIT_BYTES {
        return Err(PoolError::TooLarge { path: path.clone(), found });
    }
    let bytes = fs::read(path).map_err(io(path))?;
    ignition::check(&bytes).map_err(|source| PoolError::Config {
        path: path.clone(),
        source,
    })?;
    let sha256 = HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes).as_ref());
    Ok(RenderedConfig {
        bytes: Bytes::from(bytes),
        sha256,
    })
}

#[cfg(test)]
mod tests;
