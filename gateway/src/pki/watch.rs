//! Watching of the certificates: they are read again when their files change and at SIGHUP, and their expiry is logged in time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use attest_certificates::Certificate;
use attest_system::clock::{Clock, rfc3339};

use super::ServingCertificate;
use super::expiry::{Expiry, Notice, seconds_to_next_check};
use super::live::{CertificateReload, LiveTls};
use crate::metrics::Metrics;
use crate::settings::TlsSettings;
use crate::watch::{Pace, ReloadReport, ReloadRequests, SETTLE, SETTLE_LIMIT, Settling, Wake, WatchedFolders, folders_of};

const PACE: Pace = Pace {
    new: SETTLE,
    limit: Some(SETTLE_LIMIT),
};

/// Name of these files in messages.
const CERTIFICATES: &str = "certificates";

/// Returns the folders in which a change may mean another certificate.
fn folders(files: &TlsSettings) -> BTreeSet<PathBuf> {
    let paths = [&files.ca, &files.certificate, &files.key].into_iter().chain(&files.client_ca);
    folders_of(paths.map(PathBuf::as_path))
}

/// Keeps what is shown to nodes up to date for as long as it is polled; `requests` come at the administrator's signal.
pub async fn watch(tls: &LiveTls, clock: Clock, metrics: &Metrics, requests: ReloadRequests) {
    let files = WatchedFolders::open(folders(tls.files())).inspect_err(|error| {
        tracing::warn!("cannot watch the certificates' files for changes: {error}; send SIGHUP to reload them");
    });
    let mut files = Settling::new(files.ok(), requests, PACE);
    let mut said = WarnedProblems::default();
    let mut due = said.check(tls, clock, metrics);
    loop {
        let wake = files.wake(Some(due)).await;
        if matches!(wake, Wake::Signal(_)) {
            tracing::info!("SIGHUP: reloading the certificates");
        }
        if !matches!(wake, Wake::Due) {
            // Before they are read: what changes later is told by the kernel.
            files.set(folders(tls.files()));
            let changed = said.reload(tls, metrics);
            if let Wake::Signal(request) = wake {
                let certificates = |is: bool| is.then(|| CERTIFICATES.to_owned()).into_iter().collect();
                request.done(ReloadReport {
                    changed: certificates(changed),
                    broken: certificates(said.problem.is_some()),
                });
            }
        }
        due = said.check(tls, clock, metrics);
    }
}

/// State of the log messages, so that each is given once.
#[derive(Debug, Default)]
struct WarnedProblems {
    problem: Option<String>,
    expiry: Expiry,
}

impl WarnedProblems {
    /// Reads the certificates again. Returns whether others are in use now.
    fn reload(&mut self, tls: &LiveTls, metrics: &Metrics) -> bool {
        let found = tls.reload();
        metrics.certificates_broken(found.is_err());
        match found {
            Ok(CertificateReload::Unchanged) => {
                if self.problem.take().is_some() {
                    tracing::info!("the certificates can be read again, and are unchanged");
                }
            }
            Ok(CertificateReload::Changed { old, new }) => {
                self.problem = None;
                changed(&old.serving, &new.serving);
                return true;
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!("cannot reload the certificates; keeping the previous ones: {problem}");
                    self.problem = Some(problem);
                }
            }
        }
        false
    }

    /// Sets the metrics of the certificates in use, logs those that expire, and returns the time of the next check.
    fn check(&mut self, tls: &LiveTls, clock: Clock, metrics: &Metrics) -> Instant {
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
        Instant::now() + Duration::from_secs(seconds_to_next_check(&named, now))
    }
}

/// Logs one line about what has changed.
fn changed(old: &ServingCertificate, new: &ServingCertificate) {
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
