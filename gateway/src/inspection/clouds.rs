//! Inspection of the certificates and keys for cloud evidence, before any evidence comes.

use std::collections::BTreeSet;

use attest::Kind;
use attest_pool::{Endorsement, Pool};

use super::InspectionFinding;
use crate::cloud::Clouds;

/// Returns the findings about the certificates and keys that were read.
#[must_use]
pub fn findings(clouds: &Clouds) -> Vec<InspectionFinding> {
    let there = clouds.set_up().map(|(kind, has)| InspectionFinding::Good(format!("{kind}: {has}")));
    let mut findings: Vec<InspectionFinding> = there.collect();
    if let Some(count) = clouds.vtpm_certificates() {
        findings.push(InspectionFinding::Good(format!("gcp: EK certificates of Shielded VMs: {count}")));
    }
    let missing: Vec<String> = clouds.not_set_up().map(|(kind, missing)| format!("{kind} ({missing})")).collect();
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
pub fn warnings(clouds: &Clouds, pool: &Pool) -> Vec<String> {
    let accepted: BTreeSet<Kind> = pool
        .policy
        .accepts()
        .iter()
        .flat_map(|kinds| kinds.kinds().iter().copied())
        .collect();
    let missing = accepted.into_iter().filter_map(|kind| Some((kind, clouds.missing(kind)?)));
    let mut warnings: Vec<String> = missing
        .map(|(kind, missing)| format!("pool {} accepts {kind}, which cannot be verified: {missing}", pool.name()))
        .collect();
    if pool.endorsement == Endorsement::GcpInstance && clouds.vtpm_certificates().is_none() {
        warnings.push(format!(
            "pool {} accepts TPMs that Google endorses, but {} holds no CA of Google's: add them, see docs/how-to/gcp.md",
            pool.name(),
            clouds.vtpm_folder().display()
        ));
    }
    warnings
}
