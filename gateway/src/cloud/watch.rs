//! Watching of Google's keys: they are read again when their file changes, and at SIGHUP.

use super::Clouds;
use super::google_keys::KeysReload;
use crate::watch::{Pace, ReloadReport, ReloadRequests, SETTLE, SETTLE_LIMIT, Settling, Wake, WatchedFolders, folders_of};

const PACE: Pace = Pace {
    new: SETTLE,
    limit: Some(SETTLE_LIMIT),
};

/// Setting of these keys.
const KEYS: &str = "gcp.jwks";

/// Keeps what comes from files up to date for as long as it is polled; `requests` come at the administrator's signal. Certificates are read at
/// the start only.
pub async fn watch(clouds: &Clouds, mut requests: ReloadRequests) {
    let Some(file) = clouds.google_keys.file() else {
        while let Some(request) = requests.recv().await {
            request.done(ReloadReport::default());
        }
        return;
    };
    let files = WatchedFolders::open(folders_of([file])).inspect_err(|error| {
        tracing::warn!("cannot watch gcp.jwks for changes: {error}; send SIGHUP to reload it");
    });
    let mut files = Settling::new(files.ok(), requests, PACE);
    let mut problem: Option<String> = None;
    loop {
        let (wake, mut report) = (files.wake(None).await, ReloadReport::default());
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
                report.changed.push(KEYS.to_owned());
                tracing::info!("reloaded gcp.jwks: Google's keys are {ids}");
            }
            Err(error) => {
                let found = error.to_string();
                if problem.as_ref() != Some(&found) {
                    tracing::error!("cannot reload gcp.jwks; keeping the previous keys: {found}");
                    problem = Some(found);
                }
                report.broken.push(KEYS.to_owned());
            }
        }
        if let Wake::Signal(request) = wake {
            request.done(report);
        }
    }
}
