//! The command `attest-gateway log list-checkpoints`: prints the checkpoints of the store.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::settings::Settings;
use attest_recording::last_checkpoints;
use attest_store::AnyStore;

use super::output;
use crate::commands::owner;

pub(crate) fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    owner::act(&settings)?;
    // None is made.
    if !AnyStore::exists(&settings.store)? {
        bail!("there is no store yet; the gateway creates it at its first start: `attest-gateway serve`");
    }
    let store = AnyStore::open(&settings.store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let kept = runtime.block_on(last_checkpoints(&store))?;
    if kept.is_empty() {
        bail!("the store has no checkpoints yet; a running gateway writes the first one within a minute of its start");
    }
    let mut text = String::new();
    for kept in kept {
        text.push_str(&kept.to_json()?);
        text.push('\n');
    }
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}
