//! The controller's part of each `pool.toml`: names of the nodes, whether the pool gives a credential away, and whether it has a second
//! stage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest_log::Earns;
use attest_pool::folder::FileReader;
use attest_pool::{PoolError, PoolFolders, folders};

use crate::approval::PoolRules;

/// Interval at which the files are read again.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Contents of the `pool.toml` files of all pools.
#[derive(Debug, Clone, Default)]
pub struct PoolFiles {
    /// The rules of approval.
    pub rules: PoolRules,
    /// The pools whose nodes machine-config-daemon takes over, with the MachineConfigPool of each.
    pub second_stage: BTreeMap<String, String>,
}

/// Reads each pool in a folder, by its `pool.toml` alone.
///
/// # Errors
/// [`PoolError`].
pub fn read(folder: &Path) -> Result<PoolFiles, PoolError> {
    let PoolFolders { pools, .. } = folders(folder)?;
    let PoolFiles {
        mut rules,
        mut second_stage,
    } = PoolFiles::default();
    for (name, folder) in pools {
        let file = FileReader::default().settings(&folder)?;
        if file.grants.nothing != Earns::Refuse {
            rules.gives_credential.get_or_insert_with(|| name.clone());
        }
        if file.takes_over() {
            let own = file.upstream.and_then(|upstream| upstream.pool);
            second_stage.insert(name.clone(), own.unwrap_or_else(|| name.clone()));
        }
        rules.names.insert(name, file.kubelet_names);
    }
    Ok(PoolFiles { rules, second_stage })
}

/// The pools, read again as their files change.
#[derive(Debug)]
pub(crate) struct Pools {
    folder: PathBuf,
    cached: Mutex<Cached>,
}

#[derive(Debug)]
struct Cached {
    files: PoolFiles,
    read: Instant,
    /// The problem that was logged last.
    problem: Option<String>,
}

impl Pools {
    /// Reads the pools of a folder.
    ///
    /// # Errors
    /// [`PoolError`].
    pub(crate) fn open(folder: &Path) -> Result<Self, PoolError> {
        let cached = Cached {
            files: read(folder)?,
            read: Instant::now(),
            problem: None,
        };
        Ok(Self {
            folder: folder.to_owned(),
            cached: Mutex::new(cached),
        })
    }

    /// Returns what the files said at most [`READ_EVERY`] ago. If they cannot be read, that is logged once, and what they said before is returned.
    pub(crate) fn files(&self) -> PoolFiles {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.read.elapsed() >= READ_EVERY {
            cached.read = Instant::now();
            let problem = match read(&self.folder) {
                Ok(files) => {
                    cached.files = files;
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem.as_ref().filter(|problem| cached.problem.as_ref() != Some(*problem)) {
                tracing::error!("cannot read the pools' files; using their last state: {problem}");
            }
            cached.problem = problem;
        }
        cached.files.clone()
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
    fn reads_kubelet_name_patterns_of_each_pool() {
        let text = pool(
            "nothing = \"refuse\"",
            "[kubelet]\nnames = [\"worker-*\"]\n[source]\nmachine_configs = \"none\"",
        );
        let folder = folder(&[("worker", &text), ("infra", &pool("nothing = \"refuse\"", "")), ("..data", "")]);
        let rules = read(folder.path()).unwrap().rules;
        assert_eq!(rules.names.keys().collect::<Vec<_>>(), ["infra", "worker"]);
        assert_eq!(rules.names["worker"].as_slice(), ["worker-*"]);
        assert_eq!(rules.gives_credential, None);
    }

    #[test]
    fn attack_49_pool_that_serves_unauthenticated_clients_gives_the_credential() {
        for (nothing, gives) in [
            ("", true),
            ("nothing = \"pre-approved\"", true),
            ("nothing = \"full\"", true),
            ("nothing = \"refuse\"", false),
        ] {
            let rules = read(folder(&[("worker", &pool(nothing, ""))]).path()).unwrap().rules;
            assert_eq!(rules.gives_credential.is_some(), gives, "{nothing:?}");
        }
    }

    #[test]
    fn second_stage_requires_setting_and_pre_approved_config() {
        let on = "[second_stage]\nmachine_config_daemon = true";
        let upstream = "[upstream]\nurl = \"https://a\"\nca = \"ca.crt\"\npool = \"own\"";
        let folder = folder(&[
            ("a", &pool("", "")),
            ("b", &pool("", on)),
            ("c", &pool("", &format!("{on}\n{upstream}"))),
            ("d", &pool("nothing = \"refuse\"", on)),
        ]);
        let found = read(folder.path()).unwrap().second_stage;
        let expected = [("b", "b"), ("c", "own")].map(|(pool, own)| (pool.to_owned(), own.to_owned()));
        assert_eq!(found, expected.into());
    }

    #[test]
    fn rejects_invalid_pools() {
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
