//! The command `attest-gateway config render`: prints a config as it is served.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::settings::Settings;
use attest_ignition::SpecVersion;
use attest_log::ConfigSet;

use crate::commands::{output, pool};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the pre-approved config of pool worker\n  attest-gateway config render --pool worker --set pre-approved --spec 3.4.0\n\nThe output is compact, as nodes get it; `| jq` indents it. The full config may hold secrets."
)]
pub(crate) struct Arguments {
    /// Pool of the config.
    #[arg(long)]
    pool: String,
    /// Config of the pool to print.
    #[arg(long, value_enum)]
    set: ConfigChoice,
    /// Spec version that the node's Ignition asks for.
    #[arg(long, value_name = "VERSION", default_value_t = SpecVersion::NEWEST)]
    spec: SpecVersion,
}

/// Kind of a pool's config.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ConfigChoice {
    /// The config of attested nodes.
    Full,
    /// The config with which a node submits its CSR.
    PreApproved,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let pool = pool(&settings, &arguments.pool)?;
    let set = match arguments.set {
        ConfigChoice::Full => ConfigSet::Full,
        ConfigChoice::PreApproved => ConfigSet::PreApproved,
    };
    let rendered = pool.for_administrator(set).get(arguments.spec)?;
    output::write(&[&rendered.bytes, b"\n".as_slice()].concat())?;
    Ok(ExitCode::SUCCESS)
}
