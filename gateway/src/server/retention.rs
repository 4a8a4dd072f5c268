//! What of the attestation log is past its rule is removed, now and then, beside all else.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::api::Gateway;
use crate::audit::{Blobs, Folders, Held, LastLine, Retention, Rule};
use crate::forward::Kept;
use crate::settings::Settings;

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// As the settings say.
pub(super) fn of(settings: &Settings, folders: &Folders) -> Retention {
    // Copies of configs may be there although none is kept any more.
    let configs = folders.configs.clone().unwrap_or_else(|| Blobs::at(&settings.configs_folder()));
    // Each folder of what records name.
    let blobs = vec![folders.evidence.clone(), configs];
    let rule = Rule {
        age: settings.keep.age,
        bytes: settings.keep.bytes,
    };
    let folder = settings.forwarded();
    let receivers: Vec<String> = settings.forwards.iter().map(|forward| forward.name.clone()).collect();
    let lacking = move |last: &LastLine| {
        let lacks = |name: &&String| {
            // Whose place is not known is sent all of the log.
            let place = Kept::of(&folder, name).read().ok().flatten();
            !place.is_some_and(|place| place.covers(last.chain.as_deref(), last.number, last.at))
        };
        receivers.iter().filter(lacks).cloned().collect()
    };
    Retention::new(settings.attestation_log(), rule, blobs, lacking)
}

/// Keeps the rule, for as long as the gateway serves.
pub(super) async fn keep(gateway: Arc<Gateway>, retention: Retention) {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut held_by, mut failed) = (None, None);
    loop {
        every.tick().await;
        let now = gateway.clock.now().as_secs();
        match retention.tend(&gateway.journal, &*gateway.store, now).await {
            Ok(held) => {
                failed = None;
                gateway.metrics.log_segments_held(held.as_ref().map_or(0, |held| held.segments));
                let by = held.map(|Held { by, .. }| by);
                say(&mut held_by, by);
            }
            Err(error) => {
                let error = error.to_string();
                if failed.as_ref() != Some(&error) {
                    tracing::warn!("nothing more is removed of the attestation log for now: {error}");
                }
                failed = Some(error);
            }
        }
    }
}

/// Says once who holds the log longer than its rule, and when nobody does any more. A decision that is under way is over before long.
fn say(before: &mut Option<Vec<String>>, now: Option<Vec<String>>) {
    let now = now.filter(|by| !by.is_empty());
    match (&before, &now) {
        (before, Some(by)) if before.as_ref() != Some(by) => tracing::warn!(
            "the attestation log is kept longer than its rule says: not all of it was taken yet by {}",
            by.join(", ")
        ),
        (Some(_), None) => tracing::info!("the attestation log is as short again as its rule says"),
        _ => {}
    }
    *before = now;
}
