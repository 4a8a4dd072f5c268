//! The command `attest-gateway log status`: lists the checkpoints of the store.

use std::path::Path;
use std::process::ExitCode;

use attest_log::{Abandoned, LastCheckpoint, required_checkpoints};
use attest_recording::last_checkpoints;
use attest_system::clock::rfc3339;

use super::super::{OutputOption, list, with_store};

pub(crate) fn run(config: &Path, format: OutputOption) -> anyhow::Result<ExitCode> {
    let mut all = with_store(config, async |store| Ok(last_checkpoints(&store).await?))?;
    all.sort_by_key(|kept| kept.line.at);
    let rows: Vec<[String; 6]> = all.iter().map(|kept| row(kept, &all)).collect();
    list(format, ["CHAIN", "GATEWAY", "SIGNED UP TO", "AT", "KEY", "STATE"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

fn row(kept: &LastCheckpoint, all: &[LastCheckpoint]) -> [String; 6] {
    let is_required = required_checkpoints(all).any(|one| one.line.chain.id == kept.line.chain.id && one.key() == kept.key());
    let state = match &kept.abandoned {
        Some(Abandoned { at, by }) => format!("abandoned on {} by {by}", rfc3339(*at)),
        None if is_required => "required".to_owned(),
        None => "followed by another".to_owned(),
    };
    let LastCheckpoint { line, .. } = kept;
    [
        line.chain.id.clone(),
        line.checkpoint.replica.clone(),
        line.chain.number.to_string(),
        rfc3339(line.at),
        kept.key().to_string(),
        state,
    ]
}
