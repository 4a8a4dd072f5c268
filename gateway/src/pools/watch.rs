//! Watching of pools: they are read again when their files change, at SIGHUP, and when another server may have something new.

use std::time::Duration;

use tokio::signal::unix::Signal;

use super::live::{LivePools, ReloadCause};
use crate::watch::{Pace, Settling, Wake, WatchedFolders};

/// Waits for pools. In a folder that was not watched before, files that were being written when the watch began are not known. In others
/// they are, and a pool is read when none is being written.
const PACE: Pace = Pace {
    new: Duration::from_secs(2),
    limit: None,
};

/// Keeps `live` up to date for as long as it is polled; `hangup` is the administrator's signal.
pub(crate) async fn watch(live: &LivePools, hangup: Signal) {
    let files = WatchedFolders::open(live.watched()).inspect_err(|error| {
        tracing::warn!("cannot watch the pools' files for changes: {error}; send SIGHUP to reload them");
    });
    let mut files = Settling::new(files.ok(), hangup, PACE);
    loop {
        let due = live.revalidation_due().await;
        let wake = tokio::select! {
            wake = files.wake(due) => wake,
            () = live.news() => Wake::Due,
        };
        let occasion = match wake {
            Wake::Signal => {
                tracing::info!("SIGHUP: reloading all pools");
                ReloadCause::Signal
            }
            Wake::Quiet => ReloadCause::Change,
            Wake::Due => ReloadCause::Revalidation,
        };
        // Nothing is known of who writes where no file can be watched; and the administrator's word is that it is time.
        let quiet = files.quiet().filter(|_| occasion != ReloadCause::Signal);
        live.reload(occasion, quiet.as_ref()).await;
        files.set(live.watched());
    }
}
