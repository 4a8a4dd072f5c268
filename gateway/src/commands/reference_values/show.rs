use std::path::PathBuf;

use super::{generation, read};
use crate::commands::{output, visible};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway reference-values show pools/worker/reference-values/recorded.json 'kernel 6.12.43'")]
pub(crate) struct Arguments {
    /// File of the generation.
    file: PathBuf,
    /// Name of the generation.
    generation: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut set = read(&arguments.file)?;
    let generation = generation(&mut set.generations, &arguments.file, &arguments.generation)?;
    // Names may be a node's own words.
    let text = serde_json::to_string_pretty(generation)?;
    let lines: Vec<String> = text.lines().map(visible).collect();
    output::line(lines.join("\n"))
}
