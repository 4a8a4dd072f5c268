//! Records of evidence in the gateway's log, found again.

use anyhow::bail;
use attest::Claims;
use attest::tpm::measured_boot::MeasuredBoot;
use attest_gateway::audit::WouldRefuse;
use attest_gateway::audit::reading::{Found, Listed, files_beside};
use attest_gateway::settings::Settings;
use serde::Deserialize;

/// What is looked at in a line.
#[derive(Debug, Deserialize)]
struct Fields {
    id: String,
    decision: String,
    #[serde(default)]
    verdict: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    instance: Option<String>,
}

/// The line of a decision.
pub fn by_id(settings: &Settings, id: &str) -> anyhow::Result<String> {
    match last(settings, |fields| fields.id == id)? {
        Some(line) => Ok(line.1),
        None => bail!("{}: no decision has the id {id:?}", settings.attestation_log().display()),
    }
}

/// The last decision by which a node was trusted: its id, and its line. A node is known by its name, its identity, or its instance.
pub fn of_node(settings: &Settings, node: &str) -> anyhow::Result<(String, String)> {
    let is_it = |known: &Option<String>| known.as_deref() == Some(node);
    let trusted = |fields: &Fields| {
        let named = is_it(&fields.name) || is_it(&fields.identity) || is_it(&fields.instance);
        named && fields.decision == "evidence" && fields.verdict == "trusted"
    };
    match last(settings, trusted)? {
        Some(found) => Ok(found),
        None => bail!("{}: no evidence of {node:?} was trusted", settings.attestation_log().display()),
    }
}

/// What a pool that observes would have refused in this line, in words.
pub fn would_refuse(line: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Observed {
        #[serde(default)]
        would_refuse: Vec<WouldRefuse>,
    }
    let observed = serde_json::from_str::<Observed>(line).map(|observed| observed.would_refuse);
    let words = |one: WouldRefuse| format!("{}: {}", one.code, one.reason);
    observed.unwrap_or_default().into_iter().map(words).collect()
}

fn last(settings: &Settings, wanted: impl Fn(&Fields) -> bool) -> anyhow::Result<Option<(String, String)>> {
    let Listed { files, unreadable } = files_beside(&settings.attestation_log())?;
    if let Some(error) = unreadable.into_iter().next() {
        return Err(error.into());
    }
    let mut found = None;
    for file in files {
        let mut lines = file.lines(0)?;
        while let Some(read) = lines.read()? {
            let Found::Line(line) = read else { continue };
            let Ok(fields) = serde_json::from_slice::<Fields>(line) else {
                continue;
            };
            if wanted(&fields) {
                found = Some((fields.id, String::from_utf8_lossy(line).into_owned()));
            }
        }
    }
    Ok(found)
}

/// What was booted, as far as a TPM's quote or that of Azure's vTPM prove it with an event log.
pub fn booted(claims: &Claims) -> Option<&MeasuredBoot> {
    let of_azure = || claims.azure_vtpm()?.event_log()?.boot.as_deref();
    claims.measured_boot().or_else(of_azure)
}
