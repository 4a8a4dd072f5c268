//! Options with one meaning in all commands.

use std::path::{Path, PathBuf};

use attest_system::advised_commands;

use super::output;

/// Format of a list, a status or a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The option `--output`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct OutputOption {
    /// Output format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,
}

impl OutputOption {
    #[must_use]
    pub fn is_json(self) -> bool {
        self.output == OutputFormat::Json
    }
}

/// Settings of the gateway, if neither `--config` nor the environment names them.
const DEFAULT_CONFIG: &str = "/etc/attest-gateway/gateway.toml";

/// The global options of `attest-gateway` and `attest-audit`.
#[derive(Debug, clap::Args)]
pub struct GlobalOptions {
    /// The gateway's settings; paths in it are relative to it [env: ATTEST_GATEWAY_CONFIG] [default: /etc/attest-gateway/gateway.toml].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print results and errors, but no notes and confirmations.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

impl GlobalOptions {
    /// Applies the options to what is printed from then on.
    pub fn apply(&self) {
        if self.quiet {
            output::be_quiet();
        }
        // The environment is the reader's own, too; an option is not.
        if let Some(config) = self.config.as_ref().filter(|config| *config != Path::new(DEFAULT_CONFIG)) {
            advised_commands::set_configuration(&["attest-gateway", "attest-audit"], config);
        }
    }

    /// Returns the path of the settings.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        config(self.config.as_deref(), "ATTEST_GATEWAY_CONFIG", DEFAULT_CONFIG)
    }
}

/// Returns the path of settings: as an option says, or a variable of the environment that is not empty, or the default.
#[must_use]
pub fn config(option: Option<&Path>, variable: &str, default: &str) -> PathBuf {
    let in_environment = || std::env::var_os(variable).filter(|file| !file.is_empty()).map(PathBuf::from);
    option.map(Path::to_owned).or_else(in_environment).unwrap_or_else(|| default.into())
}
