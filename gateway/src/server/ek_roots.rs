//! Watching of the EK roots: they are read again when their files change, and at SIGHUP.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest_certificates::folder;

use crate::api::{EkRootsInUse, EkRootsReloadError, Endorsers};
use crate::watch::{Pace, ReloadReport, ReloadRequests, SETTLE, SETTLE_LIMIT, Settling, Wake, WatchedFolders, folders_of};

const PACE: Pace = Pace {
    new: SETTLE,
    limit: Some(SETTLE_LIMIT),
};
/// Name of the files in messages.
const EK_ROOTS: &str = "EK roots";

/// Returns the folders in which a change may mean other certificates.
fn folders(roots: &Path) -> BTreeSet<PathBuf> {
    // A file that cannot be listed is reported when the folder is read.
    let mut paths = folder::entries(roots).unwrap_or_default();
    paths.push(roots.join("new.pem"));
    folders_of(paths.iter().map(PathBuf::as_path))
}

/// Keeps the EK roots up to date for as long as it is polled; `requests` come at the administrator's signal.
pub(super) async fn watch(endorsers: Arc<Endorsers>, roots: PathBuf, requests: ReloadRequests) {
    let files = WatchedFolders::open(folders(&roots)).inspect_err(|error| {
        tracing::warn!("cannot watch the EK roots for changes: {error}; send SIGHUP to reload them");
    });
    let mut files = Settling::new(files.ok(), requests, PACE);
    let mut problem: Option<String> = None;
    loop {
        let (wake, mut report) = (files.wake(None).await, ReloadReport::default());
        // Before they are read: what changes later is told by the kernel.
        files.set(folders(&roots));
        match reload(&endorsers, &roots).await {
            Ok(None) => {
                if problem.take().is_some() {
                    tracing::info!("the EK roots can be read again, and are unchanged");
                }
            }
            Ok(Some((old, new))) => {
                problem = None;
                report.changed.push(EK_ROOTS.to_owned());
                changed(&old, &new);
            }
            Err(found) => {
                if problem.as_ref() != Some(&found) {
                    tracing::error!("cannot reload the EK roots; keeping the previous ones: {found}");
                    problem = Some(found);
                }
                report.broken.push(EK_ROOTS.to_owned());
            }
        }
        if let Wake::Signal(request) = wake {
            request.done(report);
        }
    }
}

/// State before a reload, and after it.
type EkRootsChange = (Arc<EkRootsInUse>, Arc<EkRootsInUse>);

/// Reads the folder again, off the threads that serve.
async fn reload(endorsers: &Arc<Endorsers>, roots: &Path) -> Result<Option<EkRootsChange>, String> {
    let (endorsers, roots, old) = (Arc::clone(endorsers), roots.to_owned(), endorsers.ek_roots());
    let reloading = tokio::task::spawn_blocking(move || endorsers.reload_ek_roots(&roots));
    let reloaded = reloading.await.map_err(|error| error.to_string())?;
    let new = reloaded.map_err(|error: EkRootsReloadError| error.to_string())?;
    Ok(new.map(|new| (old, new)))
}

/// Logs the certificates that came and went, and those that are ignored.
fn changed(old: &EkRootsInUse, new: &EkRootsInUse) {
    let less = |these: &[String], those: &[String]| {
        let missing: Vec<&str> = these.iter().filter(|one| !those.contains(one)).map(String::as_str).collect();
        match missing.is_empty() {
            true => "none".to_owned(),
            false => missing.join(", "),
        }
    };
    tracing::info!(
        added = less(new.certificates(), old.certificates()),
        removed = less(old.certificates(), new.certificates()),
        "reloaded the EK roots: {} certificates",
        new.certificates().len()
    );
    let known = &old.folder().refused;
    for refused in new.folder().refused.iter().filter(|refused| !known.contains(refused)) {
        tracing::warn!("ignored a file of the EK roots: {refused}");
    }
}
