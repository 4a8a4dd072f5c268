//! Inspection of the certificates and keys for cloud evidence, before any evidence comes.

use attest_pool::Endorsement;

use super::InspectionFinding;
use super::required_evidence::RequiredEvidence;
use crate::cloud::Clouds;

/// Returns the findings about the certificates and keys that were read. A kind that one of the pools accepts is left out of those that are
/// not needed.
#[must_use]
pub fn findings(clouds: &Clouds, pools: &[RequiredEvidence]) -> Vec<InspectionFinding> {
    let there = clouds.set_up().map(|(kind, has)| InspectionFinding::Good(format!("{kind}: {has}")));
    let mut findings: Vec<InspectionFinding> = there.collect();
    if let Some(count) = clouds.vtpm_certificates() {
        findings.push(InspectionFinding::Good(format!("gcp: EK certificates of Shielded VMs: {count}")));
    }
    let needless = clouds
        .not_set_up()
        .filter(|(kind, _)| !pools.iter().any(|pool| pool.kinds.contains(kind)));
    let missing: Vec<String> = needless.map(|(kind, missing)| format!("{kind} ({missing})")).collect();
    if !missing.is_empty() {
        findings.push(InspectionFinding::Good(format!(
            "not configured, and not needed unless a pool accepts it: {}",
            missing.join("; ")
        )));
    }
    let refused = clouds.refused().iter();
    findings.extend(refused.map(|refused| InspectionFinding::Warning(format!("ignored a file of the clouds' certificates: {refused}"))));
    findings
}

/// Returns a warning for each kind of evidence that a pool accepts and this gateway cannot verify: no node can attest with it.
#[must_use]
pub fn warnings(clouds: &Clouds, pool: &RequiredEvidence) -> Vec<String> {
    let missing = pool.kinds.iter().filter_map(|kind| Some((kind, clouds.missing(*kind)?)));
    let mut warnings: Vec<String> = missing
        .map(|(kind, missing)| format!("pool {} accepts {kind}, which cannot be verified: {missing}", pool.name))
        .collect();
    if pool.endorsement == Endorsement::GcpInstance && clouds.vtpm_certificates().is_none() {
        warnings.push(format!(
            "pool {} accepts TPMs that Google endorses, but {} holds no CA of Google's: add them, see docs/how-to/gcp.md",
            pool.name,
            clouds.vtpm_folder().display()
        ));
    }
    warnings
}
