//! The difference that an import makes, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use attest_certificates::ek_import::{EkImportPlan, PlannedCa, RefusedCa};
use attest_system::clock::rfc3339;
use serde::Serialize;

use crate::commands::visible;

/// Heading of what is no certificate.
const NO_CERTIFICATE: &str = "no certificate";

/// Result of an import, for programs.
#[derive(Debug, Serialize)]
pub(super) struct ImportReport<'p> {
    pub(super) bundle: &'p str,
    pub(super) sha256: &'p str,
    /// File that was written, if anything was imported.
    pub(super) imported_into: Option<String>,
    added: Vec<ListedCa<'p>>,
    present: Vec<ListedCa<'p>>,
    /// In the folder from an earlier bundle of this name.
    no_longer_in_bundle: Vec<ListedCa<'p>>,
    refused: Vec<ListedRefusal<'p>>,
}

#[derive(Debug, Serialize)]
struct ListedCa<'p> {
    maker: &'p str,
    role: &'static str,
    sha256: String,
    subject: &'p str,
    expires: String,
    file: &'p str,
}

#[derive(Debug, Serialize)]
struct ListedRefusal<'p> {
    maker: Option<&'p str>,
    sha256: Option<&'p str>,
    subject: Option<&'p str>,
    file: &'p str,
    reason: &'p str,
}

impl<'p> ImportReport<'p> {
    pub(super) fn new((bundle, sha256): (&'p str, &'p str), plan: &'p EkImportPlan, imported_into: Option<String>) -> Self {
        let list = |all: &'p [PlannedCa]| all.iter().map(ListedCa::from).collect();
        Self {
            bundle,
            sha256,
            imported_into,
            added: list(&plan.added),
            present: list(&plan.present),
            no_longer_in_bundle: list(&plan.dropped),
            refused: plan.refused.iter().map(ListedRefusal::from).collect(),
        }
    }
}

impl<'p> From<&'p PlannedCa> for ListedCa<'p> {
    fn from(ca: &'p PlannedCa) -> Self {
        Self {
            maker: &ca.maker,
            role: ca.role.label(),
            sha256: ca.certificate.fingerprint.to_string(),
            subject: &ca.certificate.subject,
            expires: rfc3339(ca.certificate.not_after),
            file: &ca.file,
        }
    }
}

impl<'p> From<&'p RefusedCa> for ListedRefusal<'p> {
    fn from(refused: &'p RefusedCa) -> Self {
        Self {
            maker: refused.maker.as_deref(),
            sha256: refused.sha256.as_deref(),
            subject: refused.subject.as_deref(),
            file: &refused.file,
            reason: &refused.reason,
        }
    }
}

/// Returns the difference as text, by manufacturer.
pub(super) fn text(plan: &EkImportPlan) -> String {
    let mut makers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (sign, all) in [('+', &plan.added), ('=', &plan.present), ('-', &plan.dropped)] {
        for ca in all {
            let PlannedCa {
                maker,
                role,
                certificate,
                file,
            } = ca;
            let end = if sign == '-' {
                format!("; it stays in {file}")
            } else {
                String::new()
            };
            makers.entry(maker).or_default().push(format!(
                "{sign} {:<12} {} until {}  {}{end}",
                role.label(),
                certificate.fingerprint,
                rfc3339(certificate.not_after),
                certificate.subject,
            ));
        }
    }
    for refused in &plan.refused {
        let maker = refused.maker.as_deref().unwrap_or(NO_CERTIFICATE);
        let named = match (&refused.sha256, &refused.subject) {
            (Some(sha256), Some(subject)) => format!("{:<12} {sha256} {}  {subject}", "refused", refused.file),
            _ => format!("{:<12} {}", "refused", refused.file),
        };
        makers.entry(maker).or_default().push(format!("! {named}: {}", refused.reason));
    }
    let mut text = String::new();
    for (maker, lines) in makers {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}:", visible(maker));
        for line in lines {
            let _ = writeln!(text, "  {}", visible(&line));
        }
    }
    text
}

/// Returns the numbers of the difference.
pub(super) fn summary(plan: &EkImportPlan) -> String {
    format!(
        "{} added, {} already there, {} no longer in the bundle, {} refused",
        plan.added.len(),
        plan.present.len(),
        plan.dropped.len(),
        plan.refused.len()
    )
}
