//! Watching: the certificates are read again when their files change and when the administrator says so, and their end is said in time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;

use super::Serving;
use super::expiry::{Expiry, Notice, look_again};
use super::live::{LiveTls, Reloaded};
use crate::certificates::Certificate;
use crate::clock::{Clock, rfc3339};
use crate::metrics::Metrics;
use crate::settings::TlsSettings;
use crate::watch::{SETTLE, SETTLE_LIMIT, Watched, at, folders_of, next, received};

/// The folders in which a change may mean another certificate.
fn folders(files: &TlsSettings) -> BTreeSet<PathBuf> {
    let paths = [&files.ca, &files.certificate, &files.key].into_iter().chain(&files.client_ca);
    folders_of(paths.map(PathBuf::as_path))
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
