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

/// Default of `--config`.
pub const DEFAULT_CONFIG: &str = "/etc/attest-gateway/gateway.toml";

/// The global options of `attest-gateway` and `attest-audit`.
#[derive(Debug, clap::Args)]
pub struct GlobalOptions {
    /// The gateway's settings; paths in it are relative to it.
    #[arg(long, global = true, value_name = "FILE", env = "ATTEST_GATEWAY_CONFIG", hide_env_values = true, default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
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
        let in_environment = std::env::var_os("ATTEST_GATEWAY_CONFIG").is_some_and(|file| file == self.config.as_os_str());
        if self.config != Path::new(DEFAULT_CONFIG) && !in_environment {
            advised_commands::set_configuration(&["attest-gateway", "attest-audit"], &self.config);
        }
    }
}
