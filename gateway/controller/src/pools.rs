//! The rules of approval that each `pool.toml` sets: the names of its nodes, and whether it gives a credential away.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest_log::Earns;
use attest_pool::folder::Reader;
use attest_pool::{Folders, PoolError, folders};

use crate::approval::PoolRules;

/// Interval at which the files are read again.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Reads the rules of all pools in a folder, from each `pool.toml` alone.
///
/// # Errors
/// [`PoolError`].
pub fn read(folder: &Path) -> Result<PoolRules, PoolError> {
    let Folders { pools, .. } = folders(folder)?;
    let mut rules = PoolRules::default();
    for (name, folder) in pools {
        let file = Reader::default().settings(&folder)?;
        if file.grants.nothing != Earns::Refuse {
            rules.gives_credential.get_or_insert_with(|| name.clone());
        }
        rules.names.insert(name, file.kubelet_names);
    }
    Ok(rules)
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
    /// [`PoolError`].
    pub(crate) fn open(folder: &Path) -> Result<Self, PoolError> {
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
    use std::fs;

    use super::*;

    /// A folder with pools of this text.
    fn folder(pools: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in pools {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("pool.toml"), text).unwrap();
        }
        folder
    }

    /// A `pool.toml` with this key of `[grants]`, and more.
    fn pool(nothing: &str, more: &str) -> String {
        format!("[grants]\n{nothing}\n[tpm.pcrs]\n\"0-7\" = \"not checked\"\n{more}")
    }

    #[test]
    fn reads_the_names_of_each_pool() {
        let text = pool(
            "nothing = \"refuse\"",
            "[kubelet]\nnames = [\"worker-*\"]\n[source]\nmachine_configs = \"none\"",
        );
        let folder = folder(&[("worker", &text), ("infra", &pool("nothing = \"refuse\"", "")), ("..data", "")]);
        let rules = read(folder.path()).unwrap();
        assert_eq!(rules.names.keys().collect::<Vec<_>>(), ["infra", "worker"]);
        assert_eq!(rules.names["worker"].as_slice(), ["worker-*"]);
        assert_eq!(rules.gives_credential, None);
    }

    #[test]
    fn attack_49_a_pool_that_refuses_nobody_may_give_the_credential() {
        for (nothing, gives) in [
            ("", true),
            ("nothing = \"pre-approved\"", true),
            ("nothing = \"full\"", true),
            ("nothing = \"refuse\"", false),
        ] {
            let rules = read(folder(&[("worker", &pool(nothing, ""))]).path()).unwrap();
            assert_eq!(rules.gives_credential.is_some(), gives, "{nothing:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_pool() {
        let check = |pools: &[(&str, &str)], expected: &str| {
            let error = read(folder(pools).path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "no pool");
        check(&[("A", "")], "A");
        check(&[("worker", &pool("", "[kubelet]\nnames = [\"A\"]"))], "kubelet");
        check(&[("worker", "[grants]\nnothing = 7")], "pool.toml: ");
        check(&[("worker", &pool("", "[kubelets]"))], "pool.toml: ");
    }
}
