use std::path::PathBuf;

use super::{generation, read, write};
use crate::commands::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway reference-values remove pools/worker/reference-values/recorded.json 'kernel 6.12.41'")]
pub(crate) struct Arguments {
    /// File of the generation.
    file: PathBuf,
    /// Name of the generation.
    generation: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { file, generation: name } = arguments;
    let mut generations = read(file)?.generations;
    generation(&mut generations, file, name)?;
    generations.retain(|generation| generation.name != *name);
    write(file, generations)?;
    output::done(format_args!("{}: removed generation {name:?}", file.display()))
}
