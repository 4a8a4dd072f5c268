//! Lines that are no decisions.

use attest_log::admin::{Act, Verb};
use attest_log::{Blobs, ENTRY_VERSION, EventKind, LogEvent, NodeReport};

use super::{Differences, ReviewStatus};

/// Judges an event by its own content; returns its kind, and how far it could be judged.
pub(super) fn review(event: &LogEvent, blobs: &Blobs, differences: &mut Differences) -> (&'static str, ReviewStatus) {
    match &event.what {
        EventKind::Counted { .. } => ("counted", ReviewStatus::Whole),
        EventKind::StoreAccepted { admin, .. } => {
            differences.same("admin.v", &admin.v, &ENTRY_VERSION);
            if ![Verb::StoreAccept, Verb::StoreRestore, Verb::StoreCopy].contains(&admin.verb) {
                differences.add(format!("{} accepts no store", admin.verb));
            }
            differences.warn(format!("another store was accepted here: {}", event.reason));
            ("accepted", ReviewStatus::Whole)
        }
        // Of the log's last line nothing but its signature says what it was: it holds what the signature is over, and no more.
        EventKind::Checkpoint { checkpoint } => {
            let expected = checkpoint.clone().event(event.id.clone(), event.at);
            differences.same("reason", &event.reason, &expected.reason);
            ("signed", ReviewStatus::OfLog)
        }
        EventKind::Admin { admin } => {
            done(admin, &event.reason, differences);
            ("done", ReviewStatus::Admin)
        }
        // Whether what it says is so, the chain's verification says.
        EventKind::Removed { removed } => {
            differences.same("reason", &event.reason, &removed.to_string());
            ("removed", ReviewStatus::OfLog)
        }
        EventKind::Report { source, report } => {
            differences.same("reason", &event.reason, &report.to_string());
            if report.verified && (source.identity.is_none() || report.attestation.is_none()) {
                differences.add("a verified report names no attestation");
            }
            if !report.verified && (&source.identity, &source.instance, &source.name) != (&None, &None, &None) {
                differences.add("an unverified report names a node");
            }
            journal(report, blobs, differences);
            ("reported", ReviewStatus::Whole)
        }
    }
}

/// Compares the journal of a report with its digest and length.
fn journal(report: &NodeReport, blobs: &Blobs, differences: &mut Differences) {
    let bytes = match report.journal_sha256.as_deref().map(|name| blobs.get(name)) {
        None => 0,
        Some(Ok(journal)) => u64::try_from(journal.len()).unwrap_or(u64::MAX),
        Some(Err(error)) => return differences.add(format!("the journal cannot be read: {error}")),
    };
    differences.same("report.journal_bytes", &report.journal_bytes, &bytes);
}

/// Checks an act against itself: it is not repeated, it is shown.
fn done(act: &Act, reason: &str, differences: &mut Differences) {
    differences.same("admin.v", &act.v, &ENTRY_VERSION);
    differences.same("reason", &reason, &act.to_string().as_str());
    if act.refused.is_some() && !act.things.is_empty() {
        differences.add("a refused action cannot have changed anything");
    }
}
