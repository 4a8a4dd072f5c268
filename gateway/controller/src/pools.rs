//! What the controller needs of the pools' `pool.toml`: the names of their nodes, and whether they give a credential away.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest::challenge::is_pool_name;
use attest_certificates::kubelet::{NamePatterns, PatternError};
use attest_log::Earns;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use serde::Deserialize;

use crate::approval::PoolRules;

/// Interval at which the files are read again.
const READ_EVERY: Duration = Duration::from_secs(5);
/// A pool's file in its folder.
const POOL_FILE: &str = "pool.toml";

/// The keys of `pool.toml` that approval needs; all others are the gateway's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PoolFile {
    grants: Grants,
    kubelet: Kubelet,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Grants {
    nothing: Earns,
}

impl Default for Grants {
    fn default() -> Self {
        // As the gateway's default.
        Self {
            nothing: Earns::PreApproved,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kubelet {
    names: Vec<String>,
}

/// Why the pools cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PoolsError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {}", source.to_string().trim_end())]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}: kubelet.names: {source}")]
    Names { path: PathBuf, source: PatternError },
    #[error("{0} has no pool: it holds a folder with a pool.toml for each")]
    None(PathBuf),
}

/// Reads the rules of all pools in a folder.
///
/// # Errors
/// [`PoolsError`].
pub fn read(folder: &Path) -> Result<PoolRules, PoolsError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| PoolsError::Io { path, source }
    };
    let mut pools = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_dir());
        if let Some(name) = name.filter(|name| is_pool_name(name)) {
            let file = path.join(POOL_FILE);
            let text = files::read_text(&file, SMALL_FILE_LIMIT_BYTES).map_err(io(&file))?;
            let read: PoolFile = toml::from_str(&text).map_err(|source| PoolsError::Toml {
                path: file.clone(),
                source: Box::new(source),
            })?;
            let names = NamePatterns::new(read.kubelet.names).map_err(|source| PoolsError::Names { path: file, source })?;
            pools.insert(name.to_owned(), (read.grants.nothing, names));
        }
    }
    if pools.is_empty() {
        return Err(PoolsError::None(folder.to_owned()));
    }
    let gives = pools.iter().find(|(_, (nothing, _))| *nothing != Earns::Refuse);
    Ok(PoolRules {
        gives_credential: gives.map(|(name, _)| name.clone()),
        names: pools.into_iter().map(|(name, (_, names))| (name, names)).collect(),
    })
}

/// The rules of the pools, read again as their files change.
#[derive(Debug)]
pub(crate) struct Pools {
    folder: PathBuf,
    cached: Mutex<Cached>,
}

#[derive(Debug)]
struct Cached {
    rules: PoolRules,
    read: Instant,
    /// The problem that was logged last.
    problem: Option<String>,
}

impl Pools {
    /// Reads the pools.
    ///
    /// # Errors
    /// [`PoolsError`].
    pub(crate) fn open(folder: &Path) -> Result<Self, PoolsError> {
        let cached = Cached {
            rules: read(folder)?,
            read: Instant::now(),
            problem: None,
        };
        Ok(Self {
            folder: folder.to_owned(),
            cached: Mutex::new(cached),
        })
    }

    /// The rules, at most [`READ_EVERY`] old. Files that cannot be read leave the rules as they were, and are logged once.
    pub(crate) fn rules(&self) -> PoolRules {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.read.elapsed() >= READ_EVERY {
            cached.read = Instant::now();
            let problem = match read(&self.folder) {
                Ok(rules) => {
                    cached.rules = rules;
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem.as_ref().filter(|problem| cached.problem.as_ref() != Some(*problem)) {
                tracing::error!("pools not read, using the rules that were read last: {problem}");
            }
            cached.problem = problem;
        }
        cached.rules.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// A folder with pools of this text.
    fn folder(pools: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in pools {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join(POOL_FILE), text).unwrap();
        }
        folder
    }

    #[test]
    fn reads_names_and_ignores_the_keys_of_the_gateway() {
        let text = "x = 1\n[grants]\nnothing = \"refuse\"\nattested = \"full\"\n[kubelet]\nnames = [\"worker-*\"]\n[upstream]\nurl = \"x\"";
        let folder = folder(&[("worker", text), ("infra", "[grants]\nnothing = \"refuse\""), ("..data", "")]);
        let rules = read(folder.path()).unwrap();
        assert_eq!(rules.names.keys().collect::<Vec<_>>(), ["infra", "worker"]);
        assert_eq!(rules.names["worker"].as_slice(), ["worker-*"]);
        assert_eq!(rules.gives_credential, None);
    }

    #[test]
    fn attack_49_a_pool_that_refuses_nobody_may_give_the_credential() {
        for (text, gives) in [
            ("", true),
            ("[grants]\nnothing = \"pre-approved\"", true),
            ("[grants]\nnothing = \"full\"", true),
            ("[grants]\nnothing = \"refuse\"", false),
        ] {
            let rules = read(folder(&[("worker", text)]).path()).unwrap();
            assert_eq!(rules.gives_credential.is_some(), gives, "{text:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_pool() {
        let check = |pools: &[(&str, &str)], expected: &str| {
            let error = read(folder(pools).path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "has no pool");
        check(&[("A", "")], "has no pool");
        check(&[("worker", "[kubelet]\nnames = [\"A\"]")], "kubelet.names: ");
        check(&[("worker", "[grants]\nnothing = 7")], "pool.toml: ");
    }
}
