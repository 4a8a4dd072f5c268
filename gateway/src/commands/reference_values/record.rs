use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use attest::Kind;
use attest::reference_sets::{Generation, Origin, Time};
use attest::tpm::rules::recorded as values_of;
use attest_gateway::audit::{Blobs, verify};
use attest_gateway::settings::Settings;

use super::{now, read_or_new, time, who, write};
use crate::commands::{clean, output, recorded};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: after the first node was updated\n  attest-gateway reference-values record worker-0 --name 'kernel 6.12.43' --to pools/worker/reference-values/recorded.json\n\nThe evidence by which the node was trusted last is verified again, and what its event log proves is what is written: whoever reviews the file decides\nwhether that is what should be booted. Names of events are the node's own words."
)]
pub struct Arguments {
    /// The node: its name, its identity or its instance, as the log has it.
    node: String,
    /// What the generation is called.
    #[arg(long)]
    name: String,
    /// The file; it is made if it is not there.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Until when it is accepted, such as 2026-06-03T10:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires: Option<Time>,
    /// The whole PCRs too, not only the events in them.
    #[arg(long)]
    pcrs: bool,
    /// By whose quote, where two kinds of evidence quote other PCRs: tpm or azure-vtpm.
    #[arg(long, value_name = "KIND", value_parser = recorded::kind)]
    by: Option<Kind>,
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let (id, line) = recorded::of_node(&settings, &arguments.node)?;
    for words in recorded::would_refuse(&line) {
        output::tell(format_args!(
            "the pool observed, and would have refused this machine's boot: {}",
            clean(&words)
        ));
    }
    let again = verify(&line, &Blobs::at(&settings.evidence())).with_context(|| format!("decision {id}"))?;
    let (boot, quoted) = recorded::booted(&again.claims, arguments.by).with_context(|| format!("decision {id}"))?;
    let pcrs = if arguments.pcrs { quoted.pcrs.clone() } else { BTreeMap::new() };
    let generation = Generation {
        name: arguments.name.clone(),
        added: now(),
        by: who(),
        from: Origin::Recorded {
            node: arguments.node.clone(),
            record: id,
        },
        expires: arguments.expires,
        values: values_of(boot, &pcrs),
    };
    let count = generation.values.count();
    let mut generations = read_or_new(&arguments.to)?.generations;
    generations.push(generation);
    write(&arguments.to, generations)?;
    output::done(format_args!("{}: {:?} has {count} values", arguments.to.display(), arguments.name))
}
