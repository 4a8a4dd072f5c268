use std::path::PathBuf;

use attest::reference_sets::{Generation, ValueOrigin};

use super::{now, read};
use crate::commands::{OutputOption, list};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway reference-values list pools/worker/reference-values/*.json")]
pub(crate) struct Arguments {
    /// Files of reference values.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for path in &arguments.files {
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
