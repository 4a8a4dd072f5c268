//! The command `attest-gateway ca status`, and the safety check of the other steps.

use std::path::Path;

use anyhow::bail;
use attest_certificates::source;
use attest_gateway::pki::authority_keys;
use attest_gateway::pki::install::{self, Today};
use attest_gateway::pki::rotation::{self, RotationStage, Safety};
use attest_gateway::settings::Settings;
use attest_gateway::sightings::{self, Sighting};
use attest_system::advised_commands::runnable;
use attest_system::clock::rfc3339;

use serde_json::json;

use super::{Caution, Within};
use crate::commands::certificate::made_line;
use crate::commands::durations::seconds;
use crate::commands::{OutputOption, now, objects, output, table, with_store};

pub(super) fn stage(today: &Today) -> RotationStage {
    rotation::stage(&today.authorities, today.authority.fingerprint)
}

pub(super) fn foreign(settings: &Settings, today: &Today) -> String {
    format!(
        "{} holds {} CAs, which these commands did not create: remove the CAs that are not needed from the file, or use --force",
        settings.tls.ca.display(),
        today.authorities.len()
    )
}

const NOT_SAFE: &str = "NOT SAFE";
const CA_COLUMNS: [&str; 5] = ["CA", "SUBJECT", "UNTIL", "PRIVATE KEY", "SIGNS"];
const SIGHTING_COLUMNS: [&str; 6] = ["POOL", "POINTER CARRIES", "ACCEPTED", "FIRST SEEN", "LAST SEEN", "FROM"];
/// Hint to the pointers that no gateway has seen yet.
const MACHINE_SETS: &str = "\nmachine sets: to list the CAs in the pointers of a cluster's machine sets: `attest-controller pointer list`";

/// Returns the sightings of pointers, and whether the next step is safe.
fn sighted(config: &Path, today: &Today, within: &Within) -> anyhow::Result<(Vec<Sighting>, Safety)> {
    let all = with_store(config, |store| async move { Ok(sightings::list(&store).await?) })?;
    let newest = newest(today);
    let within = seconds(&within.within).map_err(anyhow::Error::msg)?;
    let safety = rotation::safety(stage(today), &newest, &all, now(), within);
    Ok((all, safety))
}

/// Returns the CA that the rotation leads to.
fn newest(today: &Today) -> String {
    today.authorities.last().map_or_else(String::new, |ca| ca.fingerprint.short())
}

pub(super) fn refuse_unless_safe(config: &Path, today: &Today, caution: &Caution) -> anyhow::Result<()> {
    if caution.force {
        output::print_note("--force: not checking which pointers are in use");
        return Ok(());
    }
    let (_, safety) = sighted(config, today, &caution.within)?;
    let within = &caution.within.within;
    if !safety.is_safe() {
        bail!(
            "not safe: pointers without the CA {} were used within {within}:\n{}Give their machines new pointers, or use --force (or a shorter --within).",
            newest(today),
            sightings_table(&safety.in_the_way)
        );
    }
    if !safety.any_pointer_seen {
        output::print_note(format_args!(
            "no pointer was used within {within}, so it is unknown whether pointers lack the new CA"
        ));
    }
    Ok(())
}

pub(super) fn status(config: &Path, within: &Within, format: OutputOption) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let today = install::today(&settings.tls)?;
    let stage = stage(&today);
    let authorities: Vec<[String; 5]> = today
        .authorities
        .iter()
        .map(|ca| {
            let signs = ca.fingerprint == today.authority.fingerprint;
            [
                ca.fingerprint.short(),
                ca.subject.clone(),
                rfc3339(ca.not_after),
                authority_keys::ca_key_path(&settings.tls, ca).map_or_else(|| "elsewhere".to_owned(), |path| path.display().to_string()),
                if signs { "the certificate" } else { "-" }.to_owned(),
            ]
        })
        .collect();
    let (all, safety) = sighted(config, &today, within)?;
    let next = runnable(&next_step(&settings, &today, &safety, &within.within)?).into_owned();
    // Where somebody else rotates them, pointers are not in this gateway's way.
    let in_the_way = if next.contains(NOT_SAFE) {
        safety.in_the_way.as_slice()
    } else {
        &[]
    };
    if format.is_json() {
        return output::json(&json!({
            "stage": stage.to_string(),
            "authorities": objects(CA_COLUMNS, &authorities),
            "pointers": objects(SIGHTING_COLUMNS, &sighting_rows(&all)),
            "in_the_way": objects(SIGHTING_COLUMNS, &sighting_rows(in_the_way)),
            "next": next,
        }));
    }
    output::line(format_args!("stage: {stage} ({})", meaning(stage)))?;
    output::print(format_args!("\n{}", table(CA_COLUMNS, &authorities)))?;
    output::line(format_args!("\n{}", made_line(&today.certificate, &today.authority)))?;
    if all.is_empty() {
        output::line("\npointers: none was used yet")?;
    } else {
        output::print(format_args!("\n{}", sightings_table(&all)))?;
    }
    output::line(runnable(MACHINE_SETS))?;
    output::line(format_args!("\nnext: {next}"))?;
    if !in_the_way.is_empty() {
        output::print(sightings_table(in_the_way))?;
    }
    if stage == RotationStage::Switched {
        output::line(
            "Machines that refuse the certificate are not in these lists: look for \"refuses the MCS certificate\" in the gateway's log,",
        )?;
        output::line("and at the metric attest_gateway_tls_refused_by_client_total.")?;
    }
    Ok(())
}

/// Returns the next step of the rotation, and whether it is safe.
fn next_step(settings: &Settings, today: &Today, safety: &Safety, within: &str) -> anyhow::Result<String> {
    if settings.tls.serving_of_cluster {
        return Ok("none: the cluster's operator rotates the CA, and the gateway follows (cluster.mcs_certificate)".to_owned());
    }
    if source::is_manifest(&settings.tls.ca)? {
        return Ok(format!(
            "none here: {} is a manifest; rotate the CA where the manifest is generated",
            settings.tls.ca.display()
        ));
    }
    let stage = stage(today);
    Ok(match (stage.next(), safety.is_safe(), safety.any_pointer_seen) {
        (None, ..) => foreign(settings, today),
        (Some(next), ..) if stage == RotationStage::Settled => format!("`attest-gateway {next}`, at any time: everything keeps working"),
        (Some(next), true, true) => {
            format!("`attest-gateway {next}`, safe: all pointers that were used within {within} carry the newest CA")
        }
        (Some(next), true, false) => {
            format!("`attest-gateway {next}`, unknown whether safe: no pointer was used within {within}")
        }
        (Some(next), false, _) => format!(
            "`attest-gateway {next}`, {NOT_SAFE}: pointers without the CA {} were used within {within}:",
            newest(today)
        ),
    })
}

const fn meaning(stage: RotationStage) -> &'static str {
    match stage {
        RotationStage::Settled => "one CA, which signs the certificate",
        RotationStage::Introduced => "new pointers carry a second CA; the older CA still signs",
        RotationStage::Switched => "the newer CA signs; new pointers carry both CAs",
        RotationStage::Foreign => "more than two CAs",
    }
}

fn sightings_table(sightings: &[Sighting]) -> String {
    table(SIGHTING_COLUMNS, &sighting_rows(sightings))
}

fn sighting_rows(sightings: &[Sighting]) -> Vec<[String; 6]> {
    sightings
        .iter()
        .map(|sighting| {
            let says = match sighting.authorities.as_deref() {
                None => "unknown".to_owned(),
                Some([]) => "no known CA".to_owned(),
                Some(all) => all.join(" "),
            };
            [
                sighting.pool.clone(),
                says,
                sighting.accepted.clone(),
                rfc3339(sighting.first),
                rfc3339(sighting.last),
                sighting.peer.clone(),
            ]
        })
        .collect()
}
