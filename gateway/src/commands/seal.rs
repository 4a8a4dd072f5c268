//! `attest-gateway seal`.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::credentials::seal::Seal;
use attest_gateway::settings::Settings;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Give the seal of challenges and tickets a new key now; a gateway does so by itself each month.
    #[command(
        after_help = "Example:\n  attest-gateway seal rotate\n\nA running gateway seals with it within a minute. The key before opens until the longest-lived challenge and ticket that it\nsealed have expired, so no node notices. If a key was stolen, that is too long: stop the gateway, remove state/seal.key, start it."
    )]
    Rotate,
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::Rotate => Seal::rotate(&settings.seal_key(), super::now(), settings.seal_keep())?,
    }
    println!("the seal has a new key; what the one before has sealed is good until it expires");
    Ok(ExitCode::SUCCESS)
}
