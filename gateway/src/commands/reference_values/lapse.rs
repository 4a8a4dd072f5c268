use std::path::PathBuf;

use attest::reference_sets::Time;

use super::{generation, now, read, time, write};
use crate::commands::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: after the nodes were updated\n  attest-gateway reference-values lapse pools/worker/reference-values/recorded.json 'kernel 6.12.41' --at 2026-06-03T10:00:00Z\n\nFrom then on the pool refuses machines whose boots only this generation accepts."
)]
pub(crate) struct Arguments {
    /// File of the generation.
    file: PathBuf,
    /// Name of the generation.
    generation: String,
    /// Time at which the generation expires [default: now].
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Time>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments {
        file,
        generation: name,
        at,
    } = arguments;
    let mut generations = read(file)?.generations;
    let expires = at.unwrap_or_else(now);
    generation(&mut generations, file, name)?.expires = Some(expires);
    write(file, generations)?;
    output::done(format_args!("{}: generation {name:?} expires at {expires}", file.display()))
}
