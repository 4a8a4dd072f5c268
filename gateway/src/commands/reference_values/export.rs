use std::path::PathBuf;

use anyhow::{Context, bail};
use attest::reference_sets::{ReferenceSet, to_corim};

use super::{now, read};
use crate::commands::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the accepted generations of several files, in one file\n  attest-gateway reference-values export pools/worker/reference-values/*.json > accepted.json\n\nExample: one generation as CoRIM\n  attest-gateway reference-values export recorded.json --corim 'kernel 6.12.43' > kernel.corim"
)]
pub(crate) struct Arguments {
    /// Files of reference values.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print this one generation as an unsigned CoRIM (CBOR), even if it has expired.
    #[arg(long, value_name = "GENERATION")]
    corim: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut generations = Vec::new();
    for path in &arguments.files {
        generations.extend(read(path)?.generations);
    }
    if let Some(name) = &arguments.corim {
        let mut named = generations.iter().filter(|generation| generation.name == *name);
        let generation = named
            .next()
            .with_context(|| format!("no generation is named {name:?}; to list them: `attest-gateway reference-values list FILE`"))?;
        if named.next().is_some() {
            bail!("two generations are named {name:?}: name only the file that holds the wanted one");
        }
        return output::write(&to_corim(generation)?).map(drop);
    }
    generations.retain(|generation| generation.is_accepted_at(now().at));
    output::print(ReferenceSet::new(generations)?.to_json()?)
}
