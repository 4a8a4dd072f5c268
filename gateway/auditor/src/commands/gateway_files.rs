//! The files of a gateway, or copies of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use attest_command_line::options::GlobalOptions;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use serde::Deserialize;

/// Paths of the gateway's files.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayFiles {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    /// Folder with attestation.jsonl and evidence/, or a copy of it; for a copy without log.key, pass --log-key [default: as in the gateway's settings].
    #[arg(long, global = true, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Folder of the pools [default: as in the gateway's settings].
    #[arg(long, global = true, value_name = "FOLDER")]
    pools: Option<PathBuf>,
}

/// Settings of gateway.toml that are read.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct GatewaySettingsFile {
    state: PathBuf,
    pools: PathBuf,
}

impl Default for GatewaySettingsFile {
    fn default() -> Self {
        Self {
            state: "state".into(),
            pools: "pools".into(),
        }
    }
}

impl GatewayFiles {
    /// Returns whether the gateway's state folder is given.
    pub(crate) fn has_state(&self) -> bool {
        self.state.is_some() || self.global.config().exists()
    }

    fn folder(&self, given: Option<&PathBuf>, of: impl FnOnce(GatewaySettingsFile) -> PathBuf, option: &str) -> anyhow::Result<PathBuf> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let config = self.global.config();
        let text = files::read_text(&config, SMALL_FILE_LIMIT_BYTES).map_err(|error| {
            let config = config.display();
            anyhow!("{config}: {error}; this file names the gateway's files: pass it with --config, or pass {option}")
        })?;
        let settings: GatewaySettingsFile = toml::from_str(&text).with_context(|| config.display().to_string())?;
        Ok(config.parent().unwrap_or(Path::new("")).join(of(settings)))
    }

    fn state(&self) -> anyhow::Result<PathBuf> {
        let option = "--state FOLDER, with attestation.jsonl and evidence/";
        self.folder(self.state.as_ref(), |settings| settings.state, option)
    }

    /// The folder of the pools.
    ///
    /// # Errors
    /// If neither an option nor gateway.toml names it.
    pub(crate) fn pools(&self) -> anyhow::Result<PathBuf> {
        self.folder(
            self.pools.as_ref(),
            |settings| settings.pools,
            "--pools FOLDER, with a folder for each pool",
        )
    }

    /// The folder of a pool that is there.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn pool(&self, pool: &str) -> anyhow::Result<PathBuf> {
        let pools = self.pools()?;
        let folders = attest_pool::folders(&pools)?.pools;
        let Some(folder) = folders.get(pool) else {
            let known: Vec<&str> = folders.keys().map(String::as_str).collect();
            bail!("no pool {pool:?} in {}; pools: {}", pools.display(), known.join(", "));
        };
        Ok(folder.clone())
    }

    /// The attestation log that is written.
    ///
    /// # Errors
    /// If neither an option nor gateway.toml names the state.
    pub(crate) fn attestation_log(&self) -> anyhow::Result<PathBuf> {
        Ok(self.state()?.join("attestation.jsonl"))
    }

    /// The attestation log that is read where none of these is named.
    ///
    /// # Errors
    /// The list is empty, and neither an option nor gateway.toml names the state.
    pub(crate) fn own_log(&self, logs: &[PathBuf]) -> anyhow::Result<PathBuf> {
        match logs {
            [] => self.attestation_log(),
            [first, ..] => Ok(first.clone()),
        }
    }

    /// The log's large parts: of the state, or next to the first of these logs where nothing says where the state is.
    ///
    /// # Errors
    /// If neither an option nor gateway.toml names the state, and there are no logs.
    pub(crate) fn evidence(&self, logs: &[PathBuf]) -> anyhow::Result<PathBuf> {
        match logs.first().filter(|_| !self.has_state()) {
            Some(log) if log.is_dir() => Ok(log.join("evidence")),
            Some(log) => Ok(log.with_file_name("evidence")),
            None => Ok(self.state()?.join("evidence")),
        }
    }

    /// The key that signs the log's checkpoints.
    ///
    /// # Errors
    /// If neither an option nor gateway.toml names the state.
    pub(crate) fn log_key(&self) -> anyhow::Result<PathBuf> {
        Ok(self.state()?.join("log.key"))
    }
}
