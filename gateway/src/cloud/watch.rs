//! Watching: Google's keys are read again when their file changes, and when the administrator says so.

use std::time::Instant;

use tokio::signal::unix::Signal;

use super::Clouds;
use super::google_keys::Reloaded;
use crate::watch::{SETTLE, SETTLE_LIMIT, Watched, at, folders_of, next, received};

/// Keeps what comes from files up to date for as long as it is polled; `hangup` is the administrator's signal. Certificates are read at
/// the start only.
pub async fn watch(clouds: &Clouds, mut hangup: Signal) {
    let Some(file) = clouds.google_keys.file() else {
        return std::future::pending().await;
    };
    let mut files = match Watched::open(folders_of([file])) {
        Ok(files) => Some(files),
        Err(error) => {
            tracing::warn!("gcp.jwks cannot be watched for changes: {error}; SIGHUP has it read again");
            None
        }
    };
    let mut problem: Option<String> = None;
    // What changed between the first reading and now.
    let mut settled = Some(Instant::now() + SETTLE);
    let mut limit = None;
    loop {
        tokio::select! {
            biased;
            event = next(&mut files) => {
                match (event, &mut files) {
                    (Some((watch, name, mask)), Some(files)) => files.folders.event(&watch, name, mask),
                    _ => files = None,
                }
                let limit = *limit.get_or_insert_with(|| Instant::now() + SETTLE_LIMIT);
                settled = Some(limit.min(Instant::now() + SETTLE));
                continue;
            }
            () = received(&mut hangup) => {}
            () = at(settled) => {}
        }
        (settled, limit) = (None, None);
        // Before it is read: what changes later is told by the kernel.
        if files.as_mut().is_some_and(|files| files.folders.set(folders_of([file]))) {
            settled = Some(Instant::now() + SETTLE);
        }
        match clouds.google_keys.reload() {
            Ok(Reloaded::Unchanged) => {
                if problem.take().is_some() {
                    tracing::info!("gcp.jwks is what it was before");
                }
            }
            Ok(Reloaded::Changed(ids)) => {
                problem = None;
                tracing::info!("gcp.jwks has changed: Google's keys are {ids}");
            }
            Err(error) => {
                let found = error.to_string();
                if problem.as_ref() != Some(&found) {
                    tracing::error!("Google's keys stay as they were: {found}");
                    problem = Some(found);
                }
            }
        }
    }
}
