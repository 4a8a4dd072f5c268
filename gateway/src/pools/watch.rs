//! Watching of pools: they are read again when their files change, at SIGHUP, and when another server may have something new.

use std::sync::Arc;
use std::time::Duration;

use attest_pool::Pool;

use super::live::{LivePools, ReloadCause};
use crate::watch::{Pace, ReloadReport, ReloadRequests, Settling, Wake, WatchedFolders};

/// Waits for pools. In a folder that was not watched before, files that were being written when the watch began are not known. In others
/// they are, and a pool is read when none is being written.
const PACE: Pace = Pace {
    new: Duration::from_secs(2),
    limit: None,
};

/// Keeps `live` up to date for as long as it is polled; `requests` come at the administrator's signal.
pub(crate) async fn watch(live: &LivePools, requests: ReloadRequests) {
    let files = WatchedFolders::open(live.watched()).inspect_err(|error| {
        tracing::warn!("cannot watch the pools' files for changes: {error}; send SIGHUP to reload them");
    });
    let mut files = Settling::new(files.ok(), requests, PACE);
    loop {
        let due = live.revalidation_due().await;
        let wake = tokio::select! {
            wake = files.wake(due) => wake,
            () = live.news() => Wake::Due,
        };
        let mut request = None;
        let occasion = match wake {
            Wake::Signal(asked) => {
                tracing::info!("SIGHUP: reloading all pools");
                request = Some((asked, live.all(), live.names()));
                ReloadCause::Signal
            }
            Wake::Quiet => ReloadCause::Change,
            Wake::Due => ReloadCause::Revalidation,
        };
        // Nothing is known of who writes where no file can be watched; and the administrator's word is that it is time.
        let quiet = files.quiet().filter(|_| occasion != ReloadCause::Signal);
        live.reload(occasion, quiet.as_ref()).await;
        files.set(live.watched());
        if let Some((request, pools, names)) = request {
            request.done(report(live, &pools, &names));
        }
    }
}

/// Returns what has changed since these pools were served.
fn report(live: &LivePools, before: &[Arc<Pool>], names: &[String]) -> ReloadReport {
    let pool = |name: &str| format!("pool {name}");
    let is_new = |pool: &Arc<Pool>| !before.iter().any(|old| Arc::ptr_eq(old, pool));
    let now = live.names();
    let changed = live.all().into_iter().filter(is_new).map(|new| pool(new.name()));
    let gone = names.iter().filter(|name| !now.contains(name));
    ReloadReport {
        changed: changed.chain(gone.map(|name| format!("pool {name} (removed)"))).collect(),
        broken: live.broken_sources().keys().map(|name| pool(name)).collect(),
    }
}
