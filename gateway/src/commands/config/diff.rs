//! The command `attest-gateway config diff`: compares the two configs of a pool.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::settings::Settings;
use attest_pool::EntryDifference;

use crate::commands::{OutputOption, list, output, pool};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway config diff --pool worker")]
pub(crate) struct Arguments {
    /// Pool whose configs are compared.
    #[arg(long)]
    pool: String,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let pool = pool(&settings, &arguments.pool)?;
    let rows: Vec<[String; 4]> = pool
        .differences()?
        .into_iter()
        .map(|difference| {
            let change = match difference.change {
                EntryDifference::Added => "only full",
                EntryDifference::Changed => "changed by full",
                EntryDifference::Missing => "removed by full",
            };
            let bytes = if difference.bytes == 0 {
                "-".to_owned()
            } else {
                difference.bytes.to_string()
            };
            [difference.kind.to_owned(), difference.name, change.to_owned(), bytes]
        })
        .collect();
    if rows.is_empty() && !arguments.format.is_json() {
        output::line(format_args!("pool {}: full and pre-approved config are the same", pool.name()))?;
    } else {
        list(arguments.format, ["KIND", "NAME", "CHANGE", "BYTES"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
