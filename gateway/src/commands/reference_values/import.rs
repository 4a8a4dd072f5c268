use std::path::PathBuf;

use anyhow::{Context, bail};
use attest::reference_sets::{ValueOrigin, from_corim};

use super::{bytes, now, read, read_or_new, who, write};
use crate::commands::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway reference-values import vendor.json --to pools/worker/reference-values/vendor.json\n\nEach generation is added that has not lapsed is added as imported from that file, by whoever runs this, now; until when it is accepted stays as it is there.\nA file *.corim or *.cbor is an unsigned CoRIM; what was signed you verify yourself."
)]
pub(crate) struct Arguments {
    /// The file whose generations are added.
    from: PathBuf,
    /// The file that they are added to; it is made if it is not there.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut generations = read_or_new(&arguments.to)?.generations;
    let file = arguments.from.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_corim = arguments
        .from
        .extension()
        .is_some_and(|extension| extension == "corim" || extension == "cbor");
    let mut imported = if is_corim {
        let named = || arguments.from.display().to_string();
        let bytes = bytes(&arguments.from)?;
        vec![from_corim(&bytes, now(), &who(), &file).with_context(named)?]
    } else {
        read(&arguments.from)?.generations
    };
    // What has lapsed was never accepted here.
    imported.retain(|generation| generation.is_accepted_at(now().at));
    let count = imported.len();
    if count == 0 {
        bail!("{}: no generation in it is accepted now", arguments.from.display());
    }
    for mut generation in imported {
        generation.from = ValueOrigin::Imported { file: file.clone() };
        (generation.added, generation.by) = (now(), who());
        generations.push(generation);
    }
    write(&arguments.to, generations)?;
    output::done(format_args!("{}: {count} generations more", arguments.to.display()))
}
