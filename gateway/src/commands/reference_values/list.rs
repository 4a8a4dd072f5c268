use std::path::{Path, PathBuf};

use attest::reference_sets::{Generation, ValueOrigin};
use attest_gateway::settings::Settings;

use super::{now, read};
use crate::commands::{OutputOption, list, pool_folder};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: those of a pool\n  attest-gateway reference-values list worker\n\nExample: those of a file\n  attest-gateway reference-values list proposed/worker.json\n\nA name without / that does not end in .json is a pool's."
)]
pub(crate) struct Arguments {
    /// Pools, or files of reference values.
    #[arg(value_name = "POOL|FILE", required = true)]
    of: Vec<PathBuf>,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for of in &arguments.of {
        match pool_name(of) {
            Some(pool) => files.extend(attest_pool::reference_set_files(&pool_folder(&Settings::load(config)?, pool)?)?),
            None => files.push(of.clone()),
        }
    }
    let mut rows = Vec::new();
    for path in &files {
        for generation in read(path)?.generations {
            rows.push(row(&path.display().to_string(), &generation));
        }
    }
    list(
        arguments.format,
        ["FILE", "GENERATION", "ADDED", "BY", "FROM", "UNTIL", "VALUES"],
        &rows,
    )
}

/// Returns the name, unless it is that of a file.
fn pool_name(of: &Path) -> Option<&str> {
    let is_file = of.components().count() > 1 || of.is_absolute() || of.extension().is_some_and(|extension| extension == "json");
    of.to_str().filter(|_| !is_file)
}

fn row(file: &str, generation: &Generation) -> [String; 7] {
    let from = match &generation.from {
        ValueOrigin::Recorded { node, .. } => format!("recorded from {node}"),
        ValueOrigin::Predicted { files } => format!("predicted from {}", files.join(", ")),
        ValueOrigin::Imported { file } => format!("imported from {file}"),
        ValueOrigin::Proposed { machines, since } => format!("proposed from {machines} machines of the log since {since}"),
        ValueOrigin::ByHand => "by hand".to_owned(),
    };
    let until = match generation.expires {
        None => "-".to_owned(),
        Some(expires) if generation.is_accepted_at(now().at) => expires.to_string(),
        Some(expires) => format!("lapsed {expires}"),
    };
    [
        file.to_owned(),
        generation.name.clone(),
        generation.added.to_string(),
        generation.by.clone(),
        from,
        until,
        generation.values.count().to_string(),
    ]
}
