//! Watching: the certificates are read again when their files change and when the administrator says so, and their end is said in time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;

use super::expiry::{Expiry, Notice, look_again};
use super::live::{LiveTls, Reloaded};
use super::{Certificate, Serving};
use crate::clock::{Clock, rfc3339};
use crate::metrics::Metrics;
use crate::settings::TlsSettings;
use crate::watch::{SETTLE, Watched, at, next, received};

/// How long is waited for quiet in a folder where something always changes.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// Most links that are followed, as in the kernel.
const LINK_LIMIT: usize = 40;

/// The folders in which a change may mean another certificate: those of the files, and of every link on the way to them. In the place of a
/// folder that is not there, the one that it would come to be in.
fn folders(files: &TlsSettings) -> BTreeSet<PathBuf> {
    let paths = [&files.ca, &files.certificate, &files.key].into_iter().chain(&files.client_ca);
    let mut folders = BTreeSet::new();
    for path in paths {
        follow(path, &mut folders);
    }
    let there = |folder: &PathBuf| folder.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
    folders.iter().filter_map(there).collect()
}

/// The folder of a file, and the folders of all links that lead to it. Kubernetes changes a volume by pointing its link `..data` elsewhere.
fn follow(path: &Path, folders: &mut BTreeSet<PathBuf>) {
    let Ok(path) = std::path::absolute(path) else { return };
    folders.extend(path.parent().map(Path::to_owned));
    let mut rest: Vec<PathBuf> = parts(&path);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            done.pop();
            continue;
        }
        let here = done.join(&part);
        match fs::read_link(&here) {
            Ok(target) if links < LINK_LIMIT => {
                links += 1;
                folders.insert(done.clone());
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(parts(&target));
            }
            _ => done = here,
        }
    }
    folders.extend(done.parent().map(Path::to_owned));
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path
        .components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| PathBuf::from(part.as_os_str())).collect()
}

/// Keeps what is shown to nodes up to date for as long as it is polled; `hangup` is the administrator's signal.
pub async fn watch(tls: &LiveTls, clock: Clock, metrics: &Metrics, mut hangup: Signal) {
    let mut files = match Watched::open(folders(tls.files())) {
        Ok(files) => Some(files),
        Err(error) => {
            tracing::warn!("certificates cannot be watched for changes: {error}; SIGHUP has them read again");
            None
        }
    };
    let mut said = Said::default();
    // What changed between the first reading and now.
    let mut settled = Some(Instant::now() + SETTLE);
    let mut limit = None;
    let mut due = said.look(tls, clock, metrics);
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
            () = received(&mut hangup) => tracing::info!("SIGHUP: the certificates are read again"),
            () = at(settled) => {}
            () = at(Some(due)) => {
                due = said.look(tls, clock, metrics);
                continue;
            }
        }
        (settled, limit) = (None, None);
        // Before they are read: what changes later is told by the kernel.
        let new = files.as_mut().is_some_and(|files| files.folders.set(folders(tls.files())));
        said.reload(tls, metrics);
        due = said.look(tls, clock, metrics);
        if new {
            settled = Some(Instant::now() + SETTLE);
        }
    }
}

/// What was said already, so that it is not said all the time.
#[derive(Debug, Default)]
struct Said {
    problem: Option<String>,
    expiry: Expiry,
}

impl Said {
    fn reload(&mut self, tls: &LiveTls, metrics: &Metrics) {
        let found = tls.reload();
        metrics.certificates_broken(found.is_err());
        match found {
            Ok(Reloaded::Unchanged) => {
                if self.problem.take().is_some() {
                    tracing::info!("the certificates are what they were before");
                }
            }
            Ok(Reloaded::Changed { old, new }) => {
                self.problem = None;
                changed(&old.serving, &new.serving);
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!("the certificates stay as they were: {problem}");
                    self.problem = Some(problem);
                }
            }
        }
    }

    /// Measures what is in use, says what ends, and when to look again.
    fn look(&mut self, tls: &LiveTls, clock: Clock, metrics: &Metrics) -> Instant {
        let current = tls.current();
        let now = clock.now().as_secs();
        let all: Vec<(&str, &Certificate)> = current
            .serving
            .chain()
            .iter()
            .map(|certificate| ("mcs", certificate))
            .chain(current.serving.authorities().iter().map(|ca| ("mcs-ca", ca)))
            .chain(current.client_authorities.certificates().map(|ca| ("kubelet-client-ca", ca)))
            .collect();
        metrics.certificates(
            all.iter()
                .map(|(role, certificate)| (*role, certificate.fingerprint.short(), certificate.not_after)),
        );
        let named: Vec<(&str, &Certificate)> = all
            .into_iter()
            .map(|(role, certificate)| match role {
                "mcs" => ("MCS certificate", certificate),
                "mcs-ca" => ("MCS CA", certificate),
                _ => ("kubelet client CA", certificate),
            })
            .collect();
        for notice in self.expiry.notices(&named, now) {
            match notice {
                Notice::Soon(text) => tracing::warn!("{text}"),
                Notice::Over(text) => tracing::error!("{text}"),
            }
        }
        Instant::now() + Duration::from_secs(look_again(&named, now))
    }
}

/// One line of what has changed.
fn changed(old: &Serving, new: &Serving) {
    let (Some(before), Some(leaf)) = (old.certificate(), new.certificate()) else {
        return;
    };
    let authorities: Vec<String> = new.authorities().iter().map(|ca| ca.fingerprint.short()).collect();
    let authorities = authorities.join(", ");
    if old.chain() != new.chain() || old.signed_by() != new.signed_by() {
        tracing::info!(
            "the MCS certificate is now {}, until {}, signed by {} ({}); it was {}, signed by {}; CAs of new pointers: {authorities}",
            leaf.fingerprint.short(),
            rfc3339(leaf.not_after),
            new.authority().subject,
            new.signed_by().short(),
            before.fingerprint.short(),
            old.signed_by().short(),
        );
    } else if old.authorities() != new.authorities() {
        tracing::info!(
            "CAs of new pointers are now {authorities}; the MCS certificate is still {}",
            leaf.fingerprint.short()
        );
    } else {
        tracing::info!(
            "the certificates' files have changed; the MCS certificate is still {}",
            leaf.fingerprint.short()
        );
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_folder_on_the_way_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let path = |name: &str| root.join(name);
        fs::create_dir_all(path("volume/..1")).unwrap();
        fs::create_dir_all(path("gateway")).unwrap();
        fs::write(path("volume/..1/tls.crt"), "").unwrap();
        symlink("..1", path("volume/..data")).unwrap();
        symlink("..data/tls.crt", path("volume/tls.crt")).unwrap();
        symlink("../volume", path("gateway/tls")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let check = |name: &str, expected: &[&str]| {
            let mut found = BTreeSet::new();
            follow(&path(name), &mut found);
            let expected: BTreeSet<PathBuf> = expected.iter().map(|name| path(name)).collect();
            assert_eq!(found, expected, "{name}");
        };
        check("volume/..1/tls.crt", &["volume/..1"]);
        check("volume/tls.crt", &["volume", "volume/..1"]);
        check("gateway/tls/tls.crt", &["gateway/tls", "gateway", "volume", "volume/..1"]);
        check("gateway/none.crt", &["gateway"]);
        assert!(root.join("loop").parent().is_some_and(|parent| {
            let mut found = BTreeSet::new();
            follow(&path("loop"), &mut found);
            found.contains(parent)
        }));
    }
}
