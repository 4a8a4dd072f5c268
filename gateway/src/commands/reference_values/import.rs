use std::path::PathBuf;

use anyhow::{Context, bail};
use attest::reference_sets::{ValueOrigin, from_corim};

use super::{bytes, now, read, read_or_new, who, write};
use crate::commands::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway reference-values import vendor.json --to pools/worker/reference-values/vendor.json\n\nThe command adds each generation that has not expired; its expiry stays. The new file names you, the time and the imported file as\nits origin.\n\nA file *.corim or *.cbor is an unsigned CoRIM. If it was signed, verify the signature yourself before the import."
)]
pub(crate) struct Arguments {
    /// File to import.
    from: PathBuf,
    /// File to add the generations to; it is created if it does not exist.
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
        bail!(
            "{}: all generations in it have expired; nothing was imported",
            arguments.from.display()
        );
    }
    for mut generation in imported {
        generation.from = ValueOrigin::Imported { file: file.clone() };
        (generation.added, generation.by) = (now(), who());
        generations.push(generation);
    }
    write(&arguments.to, generations)?;
    output::done(format_args!("{}: added {count} generations", arguments.to.display()))
}
