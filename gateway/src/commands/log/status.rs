//! The command `attest-gateway log status`: lists the checkpoints of the store.

use std::path::Path;
use std::process::ExitCode;

use attest_log::{GivenUp, LastCheckpoint, standing};
use attest_recording::kept;
use attest_system::clock::rfc3339;

use super::super::{table, with_store};
use super::output;

pub(crate) fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let mut all = with_store(config, async |store| Ok(kept(&store).await?))?;
    all.sort_by_key(|kept| kept.line.at);
    let rows: Vec<[String; 6]> = all.iter().map(|kept| row(kept, &all)).collect();
    output::print(table(["CHAIN", "GATEWAY", "SIGNED UP TO", "AT", "KEY", "STATE"], &rows))?;
    Ok(ExitCode::SUCCESS)
}

fn row(kept: &LastCheckpoint, all: &[LastCheckpoint]) -> [String; 6] {
    let is_required = standing(all).any(|one| one.line.chain.id == kept.line.chain.id && one.key() == kept.key());
    let state = match &kept.given_up {
        Some(GivenUp { at, by }) => format!("given up on {} by {by}", rfc3339(*at)),
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
