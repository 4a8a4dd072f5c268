//! Lines that are about no node.

use attest_log::admin::{Act, Verb};
use attest_log::{ENTRY_VERSION, EventKind, LogEvent};

use super::{Differences, ReviewStatus};

/// Judges an event by its own content; returns its kind, and how far it could be judged.
pub(super) fn review(event: &LogEvent, differences: &mut Differences) -> (&'static str, ReviewStatus) {
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
    }
}

/// Checks an act against itself: it is not repeated, it is shown.
fn done(act: &Act, reason: &str, differences: &mut Differences) {
    differences.same("admin.v", &act.v, &ENTRY_VERSION);
    differences.same("reason", &reason, &act.to_string().as_str());
    if act.refused.is_some() && !act.things.is_empty() {
        differences.add("a refused action cannot have changed anything");
    }
}
