//! Watching: pools are read again when their files change, when the administrator says so, and when another server may have news.

use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;

use super::live::{LivePools, Occasion};
use crate::watch::{SETTLE, Watched, at, next, received};

/// How long nothing must change in a folder that was not watched before: whoever was writing there when the watch began is not known.
const SETTLE_NEW: Duration = Duration::from_secs(2);

/// Keeps `live` up to date for as long as it is polled; `hangup` is the administrator's signal.
pub async fn watch(live: &LivePools, mut hangup: Signal) {
    let mut files = match Watched::open(live.watched()) {
        Ok(files) => Some(files),
        Err(error) => {
            tracing::warn!("files cannot be watched for changes: {error}; SIGHUP has them read again");
            None
        }
    };
    // What changed between the first reading and now.
    let mut settled = Some(Instant::now() + SETTLE_NEW);
    loop {
        let due = live.revalidation_due().await;
        let occasion = tokio::select! {
            // What the kernel has told already comes before anything is read.
            biased;
            event = next(&mut files) => {
                match (event, &mut files) {
                    (Some((watch, name, mask)), Some(files)) => files.folders.event(&watch, name, mask),
                    _ => files = None,
                }
                settled = Some(Instant::now() + SETTLE);
                continue;
            }
            () = received(&mut hangup) => {
                tracing::info!("SIGHUP: all pools are read again");
                Occasion::Signal
            }
            () = at(settled) => {
                settled = None;
                Occasion::Change
            }
            () = at(due) => Occasion::Revalidation,
        };
        // Nothing is known of who writes where no file can be watched; and the administrator's word is that it is time.
        let known = files.as_ref().filter(|_| occasion != Occasion::Signal);
        let quiet = known.map(|files| files.folders.view());
        live.reload(occasion, quiet.as_ref()).await;
        if let Some(files) = &mut files
            && files.folders.set(live.watched())
        {
            settled = Some(Instant::now() + SETTLE_NEW);
        }
    }
}
