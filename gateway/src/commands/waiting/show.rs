use std::path::Path;

use attest_gateway::settings::Settings;

use super::shown::{describe, json};
use super::{chosen, pool_files, questions};
use crate::commands::{OutputOption, now, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway waiting show 0f3c5d92a7b1")]
pub(crate) struct Arguments {
    /// Id of the question, or its first 8 digits or more.
    id: String,
    /// Pool of the question.
    #[arg(long = "for", alias = "pool", value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let files = pool_files(&Settings::load(config)?)?;
    let row = chosen(&questions(config, arguments.pool.as_deref())?, &arguments.id)?;
    let file = files.get(&row.pool);
    let rules = file.and_then(|file| file.waiting);
    if arguments.format.is_json() {
        return output::json(&json(&row, rules.as_ref(), now()));
    }
    output::print(describe(&row, file, now()))
}
