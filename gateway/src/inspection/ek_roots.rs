//! Inspection of the CAs that endorse TPMs.

use attest::{Kind, UnixTime};
use attest_certificates::ek_roots::{self, EkCa, EkCaRole, EkRootsFolder};
use attest_pool::Endorsement;
use attest_system::clock::rfc3339;

use super::InspectionFinding;
use super::required_evidence::RequiredEvidence;
use crate::pki::EXPIRY_WARNING_SECONDS;
use crate::settings::Settings;

/// Maximum number of expiring CAs that are named; more are counted.
const EXPIRING_LIMIT: usize = 20;

/// Reads the folder of EK roots. `None` if it cannot be read.
pub(super) fn inspect(
    settings: &Settings,
    pools: &[RequiredEvidence],
    now: UnixTime,
    findings: &mut Vec<InspectionFinding>,
) -> Option<EkRootsFolder> {
    let folder = match ek_roots::load(&settings.ek_roots) {
        Ok(folder) => folder,
        Err(error) => {
            findings.push(InspectionFinding::Error(error.to_string()));
            return None;
        }
    };
    let makers: Vec<String> = folder
        .roots
        .makers()
        .iter()
        .map(|(maker, count)| format!("{maker} ({count})"))
        .collect();
    let whose = match makers.is_empty() {
        true => String::new(),
        false => format!(", which endorse TPMs of {}", makers.join(", ")),
    };
    findings.push(InspectionFinding::Good(format!(
        "{}: {} certificates{whose}",
        settings.ek_roots.display(),
        folder.certificates.len()
    )));
    let refused = folder.refused.iter();
    findings.extend(refused.map(|refused| InspectionFinding::Warning(format!("ignored a file of the EK roots: {refused}"))));
    inspect_expiry(&folder, now, findings);
    let uses_roots = |pool: &RequiredEvidence| pool.kinds.contains(&Kind::Tpm) && pool.endorsement == Endorsement::AnyTpmOfATrustedMaker;
    if folder.roots.is_empty() && pools.iter().any(uses_roots) {
        findings.push(InspectionFinding::Warning(
            "no EK roots: only TPMs on the allowlist are endorsed (`attest-gateway ek add`)".to_owned(),
        ));
    }
    Some(folder)
}

/// Warns of CAs that have expired, or expire soon.
fn inspect_expiry(folder: &EkRootsFolder, now: UnixTime, findings: &mut Vec<InspectionFinding>) {
    let is_expiring = |ca: &EkCa<'_>| {
        let warned_from = ca.certificate.not_after.saturating_sub(EXPIRY_WARNING_SECONDS);
        ca.role != EkCaRole::Unusable && now.as_secs() > warned_from
    };
    let mut expiring: Vec<EkCa<'_>> = folder.authorities().filter(is_expiring).collect();
    expiring.sort_by_key(|ca| ca.certificate.not_after);
    findings.extend(expiring.iter().take(EXPIRING_LIMIT).map(|ca| {
        let (until, file) = (ca.certificate.not_after, ca.file.display());
        let expires = if now.as_secs() > until { "expired on" } else { "expires on" };
        InspectionFinding::Warning(format!(
            "{file}: EK {} of {} {expires} {}: {} (SHA-256 {}); TPMs below it are then endorsed only by the allowlist",
            ca.role.label(),
            ca.maker,
            rfc3339(until),
            ca.certificate.subject,
            ca.certificate.fingerprint,
        ))
    }));
    if let Some(more @ 1..) = expiring.len().checked_sub(EXPIRING_LIMIT) {
        findings.push(InspectionFinding::Warning(format!(
            "{more} more EK roots have expired or expire soon; to list them: `attest-gateway ek-roots list`"
        )));
    }
}
