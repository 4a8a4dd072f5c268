use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::Kind;
use attest::azure::vtpm::AzureVtpmRules;
use attest::reference_sets::{Generation, ReferenceSet, Time, ValueOrigin};
use attest::tpm::reference_values::ReferenceValues;
use attest::tpm::rules::{Check, RecordedValues, UnknownEvent};
use attest_audit::replay::verify;
use attest_command_line::recorded::{self, Outline};
use attest_command_line::reference_set_file::{now, read_or_new, time, who, write};
use attest_command_line::{clean, output};
use attest_log::{Blobs, WouldRefuse};
use attest_pool::PoolError;
use attest_system::files;

use super::GatewayFiles;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: after the first node was updated\n  attest-audit reference-values record worker-0 --name 'kernel 6.12.43' --to pools/worker/reference-values/recorded.json\n\nVerifies the node's last trusted evidence again, and writes the values that its event log proves. Review the file: it accepts this boot.\nNames of events come from the node, unverified.\n\nPrints checks that these values cannot satisfy as \"left out\". If one of them is a rule of the node's pool, writes nothing, with exit code 1."
)]
pub(crate) struct Arguments {
    /// The node: its name, its identity or its instance, as the log has it.
    node: String,
    /// Name of the generation.
    #[arg(long)]
    name: String,
    /// Output file; created with its folder if it does not exist.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Expiry time of the generation, such as 2026-06-03T10:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires: Option<Time>,
    /// Also record whole PCRs, not only the events in them.
    #[arg(long)]
    pcrs: bool,
    /// Also record unknown events of PCR 7, each by its digest: Secure Boot is then proven only together with exactly these. Inspect each
    /// first.
    #[arg(long)]
    pcr_7_events: bool,
    /// Write the values even if a rule of the node's pool gets none of them.
    #[arg(long)]
    partial: bool,
    /// Evidence whose quote is used, if two kinds of evidence quote different PCRs: tpm or azure-vtpm.
    #[arg(long, value_name = "KIND", value_parser = recorded::kind)]
    by: Option<Kind>,
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (
        Outline {
            id, pool, would_refuse, ..
        },
        line,
    ) = recorded::last_trusted_decision(&files.attestation_log()?, &arguments.node)?;
    for WouldRefuse { code, reason } in would_refuse {
        output::print_note(format_args!(
            "the pool observed, and would have refused this machine's boot: {}",
            clean(&format!("{code}: {reason}"))
        ));
    }
    let again = verify(&line, &Blobs::at(&files.evidence(&[])?)).with_context(|| format!("decision {id}"))?;
    let booted = recorded::booted(&again.claims, arguments.by).with_context(|| format!("decision {id}"))?;
    let nothing = BTreeMap::new();
    let pcrs = if arguments.pcrs { booted.quoted.pcrs } else { &nothing };
    let recording = RecordedValues::from_boot(booted.boot, pcrs, arguments.pcr_7_events);
    report_omitted(&recording, arguments.pcr_7_events);
    report_changing(&recording);
    let set = ReferenceSet::new(vec![Generation {
        name: arguments.name.clone(),
        added: now(),
        by: who(),
        from: ValueOrigin::Recorded {
            node: arguments.node.clone(),
            record: id,
        },
        expires: arguments.expires,
        values: recording.values.clone(),
    }])?;
    if !arguments.partial
        && let Some(problem) = without_value(files, &pool, booted.kind, &recording, &set)?
    {
        bail!(
            "nothing was written: with these values, pool {pool} would refuse this machine: {problem}; to write them anyway, pass --partial"
        );
    }
    let count = recording.values.count();
    let mut generations = read_or_new(&arguments.to)?.generations;
    if generations.iter().any(|generation| generation.name == arguments.name) {
        bail!(
            "{}: nothing was written: a generation {:?} exists already; pass another --name",
            arguments.to.display(),
            arguments.name
        );
    }
    let folder = files::folder(&arguments.to);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    generations.extend(set.generations);
    write(&arguments.to, generations)?;
    output::done(format_args!("{}: {:?} has {count} values", arguments.to.display(), arguments.name))?;
    Ok(ExitCode::SUCCESS)
}

/// Reports which checks would refuse this very boot by these values, and why; and which events are not among them.
fn report_omitted(recording: &RecordedValues, lists_unknown: bool) {
    for (check, why) in &recording.left_out {
        output::print_note(format_args!(
            "left out: no values for {:?}: {}",
            check.label(),
            clean(&why.to_string())
        ));
    }
    for event in &recording.unknown_pcr_7_events {
        let UnknownEvent { event, digest, summary } = event;
        let what = format!("event {event} of PCR 7 has an unknown meaning: {digest} ({})", clean(summary));
        match lists_unknown {
            true => output::print_note(format_args!("listed as pcr_7_events: {what}")),
            false => output::print_note(format_args!("left out: {what}; --pcr-7-events lists it")),
        }
    }
}

/// Says which of the values are contents that change while a machine runs.
fn report_changing(recording: &RecordedValues) {
    for event in &recording.grub_environments {
        output::print_note(format_args!(
            "files: the node names event {event} as GRUB's environment block (grubenv), which GRUB and the system write: \"files\" accepts only its current content"
        ));
    }
}

/// Returns the reason why a rule of the pool would have no value, neither of this recording nor in the pool's files.
fn without_value(
    files: &GatewayFiles,
    pool: &str,
    kind: Kind,
    recording: &RecordedValues,
    set: &ReferenceSet,
) -> anyhow::Result<Option<String>> {
    let Some(folder) = attest_pool::folders(&files.pools()?)?.pools.remove(pool) else {
        output::print_note(format_args!("pool {pool:?} no longer exists: not checking its rules"));
        return Ok(None);
    };
    let rules = attest_pool::rules(&folder)?;
    if !rules.wants_reference_sets() {
        return Ok(None);
    }
    let of_kind = match kind {
        Kind::AzureVtpm => rules.azure_vtpm().map(AzureVtpmRules::reference_values),
        _ => rules.reference_values(),
    };
    let checks = of_kind.map(ReferenceValues::boot).unwrap_or_default();
    let needs_values = |check: &&Check| check.wanted().is_some();
    if let Some(why) = checks.iter().filter(needs_values).find_map(|check| recording.left_out.get(check)) {
        return Ok(Some(clean(&why.to_string())));
    }
    let file = folder.join("pool.toml");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    match attest_pool::policy_of(&folder, &file, &text, vec![set.to_json()?]) {
        Ok(policy) => Ok(policy.without_values().into_iter().next()),
        Err(PoolError::ReferenceValues { problem, .. }) => Ok(Some(problem)),
        Err(error) => Err(error.into()),
    }
}
