//! Watching of Google's keys: they are read again when their file changes, and at SIGHUP.

use tokio::signal::unix::Signal;

use super::Clouds;
use super::google_keys::KeysReload;
use crate::watch::{Pace, SETTLE, SETTLE_LIMIT, Settling, WatchedFolders, folders_of};

const PACE: Pace = Pace {
    new: SETTLE,
    limit: Some(SETTLE_LIMIT),
};

/// Keeps what comes from files up to date for as long as it is polled; `hangup` is the administrator's signal. Certificates are read at
/// the start only.
pub async fn watch(clouds: &Clouds, hangup: Signal) {
    let Some(file) = clouds.google_keys.file() else {
        return std::future::pending().await;
    };
    let files = WatchedFolders::open(folders_of([file])).inspect_err(|error| {
        tracing::warn!("cannot watch gcp.jwks for changes: {error}; send SIGHUP to reload it");
    });
    let mut files = Settling::new(files.ok(), hangup, PACE);
    let mut problem: Option<String> = None;
    loop {
        files.wake(None).await;
        // Before it is read: what changes later is told by the kernel.
        files.set(folders_of([file]));
        match clouds.google_keys.reload() {
            Ok(KeysReload::Unchanged) => {
                if problem.take().is_some() {
                    tracing::info!("gcp.jwks can be read again, and is unchanged");
                }
            }
            Ok(KeysReload::Changed(ids)) => {
                problem = None;
                tracing::info!("reloaded gcp.jwks: Google's keys are {ids}");
            }
            Err(error) => {
                let found = error.to_string();
                if problem.as_ref() != Some(&found) {
                    tracing::error!("cannot reload gcp.jwks; keeping the previous keys: {found}");
                    problem = Some(found);
                }
            }
        }
    }
}
