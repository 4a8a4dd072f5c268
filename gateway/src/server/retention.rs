//! Background task that removes expired parts of the attestation log.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use attest_log::{Blobs, PendingDecision, RetainedSegments, Retention, RetentionError, RetentionResult, RetentionRule};
use attest_recording::PendingIn;
use attest_system::clock::rfc3339;
use tokio::time::MissedTickBehavior;

use crate::api::Gateway;
use crate::settings::Settings;

/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Creates the retention that the settings ask for.
pub(super) fn from_settings(settings: &Settings, evidence: &Blobs) -> Retention {
    let rule = RetentionRule {
        age: settings.keep.age,
        bytes: settings.keep.bytes,
    };
    Retention::new(settings.attestation_log(), rule, vec![evidence.clone()])
}

/// Removes what the rule allows, for as long as the gateway serves.
pub(super) async fn keep(gateway: Arc<Gateway>, retention: Retention) {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut said, mut failed) = (None, BTreeSet::new());
    loop {
        every.tick().await;
        let RetentionResult {
            held,
            other_errors: beside,
        } = retention.run(&gateway.journal, &PendingIn(&*gateway.store), gateway.clock).await;
        let mut errors: Vec<RetentionError> = beside;
        match held {
            Ok(held) => {
                gateway.metrics.log_segments_held(held.as_ref().map_or(0, |held| held.segments));
                report_change(&mut said, held.and_then(because));
            }
            Err(error) => errors.push(error),
        }
        let errors: BTreeSet<String> = errors.iter().map(ToString::to_string).collect();
        for error in errors.difference(&failed) {
            tracing::warn!("failed to delete some expired log segments: {error}");
        }
        failed = errors;
    }
}

/// Returns the reason for which the log is longer than its rule allows. A decision that is under way will end before long.
fn because(RetainedSegments { undecided, .. }: RetainedSegments) -> Option<String> {
    let PendingDecision { id, at } = undecided?;
    Some(format!("decision {id} of {} is not recorded yet", rfc3339(at)))
}

/// Logs once that the log is kept longer than its rule allows, and when it no longer is.
fn report_change(before: &mut Option<String>, now: Option<String>) {
    match (&before, &now) {
        (before, Some(because)) if before.as_ref() != Some(because) => {
            tracing::warn!("keeping expired log segments: {because}");
        }
        (Some(_), None) => tracing::info!("no expired log segments are kept any more"),
        _ => {}
    }
    *before = now;
}
