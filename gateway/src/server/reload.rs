//! Reload at SIGHUP: all files that may change while the gateway serves are read again, and one line of the log says what came of it. It
//! also names what differs from the files, and needs a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attest_certificates::folder;
use attest_log::Blobs;
use attest_store::settings::EngineSettings;
use attest_system::files;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::service_manager;
use crate::settings::Settings;
use crate::watch::{ReloadReport, ReloadRequest, ReloadRequests};

/// Longest wait for one reload: another server may be slow to send a pool's config.
const RELOAD_LIMIT: Duration = Duration::from_secs(60);
/// Largest file that is compared: a bundle of certificates.
const FILE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;
/// Depth of folders: the certificates of AWS's regions may be in a folder for each region.
const DEPTH_LIMIT: usize = 2;

/// Senders of requests to the tasks that read files.
#[derive(Debug, Default)]
pub(super) struct Reloaders(Vec<(&'static str, mpsc::Sender<ReloadRequest>)>);

impl Reloaders {
    /// Adds a task, by the name of its files in messages. Returns its requests.
    pub(super) fn add(&mut self, name: &'static str) -> ReloadRequests {
        let (sender, requests) = mpsc::channel(1);
        self.0.push((name, sender));
        requests
    }

    /// Asks all of them. Returns their reports, and the names of those that have not answered in time.
    async fn ask(&self) -> (ReloadReport, Vec<&'static str>) {
        let (mut all, mut late) = (ReloadReport::default(), Vec::new());
        let deadline = Instant::now() + RELOAD_LIMIT;
        let mut answers = Vec::new();
        for (name, sender) in &self.0 {
            let (request, answer) = ReloadRequest::new();
            match timeout_at(deadline, sender.send(request)).await {
                Ok(Ok(())) => answers.push((*name, answer)),
                _ => late.push(*name),
            }
        }
        for (name, answer) in answers {
            match timeout_at(deadline, answer).await {
                Ok(Ok(ReloadReport { changed, broken })) => {
                    all.changed.extend(changed);
                    all.broken.extend(broken);
                }
                _ => late.push(name),
            }
        }
        (all, late)
    }
}

/// Files that are read only at the start, by their settings, each with a digest of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartupFiles(BTreeMap<&'static str, String>);

impl StartupFiles {
    /// Reads them. Blocks on the disk.
    pub(super) fn read(settings: &Settings) -> Self {
        let clouds = &settings.clouds;
        let folders = [
            ("gcp.vtpm_roots", &clouds.gcp.vtpm_roots),
            ("aws.region_certificates", &clouds.aws.region_certificates),
            ("aws.nitro_roots", &clouds.aws.nitro_roots),
            ("azure.roots", &clouds.azure.roots),
            ("azure.intermediates", &clouds.azure.intermediates),
            ("azure.vtpm_roots", &clouds.azure.vtpm_roots),
        ];
        let mut paths: Vec<(&'static str, &PathBuf)> = folders.into();
        paths.extend(clouds.outgoing.ca.as_ref().map(|path| ("outgoing.ca", path)));
        if let EngineSettings::Etcd(etcd) = &settings.store.engine {
            paths.extend(etcd.ca.as_ref().map(|path| ("store.ca", path)));
            if let Some((certificate, key)) = &etcd.identity {
                paths.extend([("store.certificate", certificate), ("store.key", key)]);
            }
            paths.extend(etcd.user.as_ref().map(|(_, path)| ("store.password_file", path)));
        }
        Self(paths.into_iter().map(|(name, path)| (name, digest(path, DEPTH_LIMIT))).collect())
    }

    /// Returns the settings whose files have other contents than these.
    fn differing(&self, other: &Self) -> Vec<&'static str> {
        let differs = |(name, digest): &(&&'static str, &String)| other.0.get(*name) != Some(*digest);
        self.0.iter().filter(differs).map(|(name, _)| *name).collect()
    }
}

/// Returns a digest of a file, or of a folder's files, with their names. What cannot be read differs from what can.
fn digest(path: &Path, depth: usize) -> String {
    if !path.is_dir() {
        return match files::read(path, FILE_LIMIT_BYTES) {
            Ok(bytes) => Blobs::name(&bytes),
            Err(error) => error.kind().to_string(),
        };
    }
    let Some(depth) = depth.checked_sub(1) else { return String::new() };
    let lines = match folder::entries(path) {
        Ok(paths) => paths
            .iter()
            .map(|path| format!("{}\0{}\n", path.display(), digest(path, depth)))
            .collect(),
        Err(error) => error.to_string(),
    };
    Blobs::name(lines.as_bytes())
}

/// Returns the settings of `gateway.toml` that differ from those in use; or the reason for which it cannot be read.
fn differing_settings(in_use: &Settings) -> Result<Vec<String>, String> {
    let new = Settings::load(&in_use.file).map_err(|error| error.to_string())?;
    let effective = |settings: &Settings| Settings {
        set_values: BTreeMap::new(),
        ..settings.clone()
    };
    // A default that is written out changes nothing.
    if effective(&new) == effective(in_use) {
        return Ok(Vec::new());
    }
    let keys: BTreeSet<&String> = in_use.set_values.keys().chain(new.set_values.keys()).collect();
    let differs = |key: &&&String| in_use.set_values.get(**key) != new.set_values.get(**key);
    Ok(keys.iter().filter(differs).map(|key| (**key).clone()).collect())
}

/// Reloads at each SIGHUP.
pub(super) async fn at_sighup(settings: Settings, started_with: StartupFiles, reloaders: Reloaders, mut hangup: Signal) {
    let settings = Arc::new(settings);
    while hangup.recv().await.is_some() {
        service_manager::reloading();
        let (report, late) = reloaders.ask().await;
        let compared = Arc::clone(&settings);
        let comparing = tokio::task::spawn_blocking(move || (differing_settings(&compared), StartupFiles::read(&compared)));
        let (changed_settings, files) = match comparing.await {
            Ok((changed, now)) => (changed, started_with.differing(&now)),
            Err(error) => (Err(error.to_string()), Vec::new()),
        };
        let Summary { text, is_good } = summary(&report, &late, changed_settings, &files);
        if is_good {
            tracing::info!("SIGHUP: {text}");
        } else {
            tracing::warn!("SIGHUP: {text}");
        }
        service_manager::ready(&format!("serving; last reload: {text}"));
    }
}

/// Result of a reload, in one line.
struct Summary {
    text: String,
    is_good: bool,
}

fn summary(report: &ReloadReport, late: &[&str], settings: Result<Vec<String>, String>, files: &[&str]) -> Summary {
    let mut bad = Vec::new();
    if !report.broken.is_empty() {
        bad.push(format!("broken, the last good state stays: {}", report.broken.join(", ")));
    }
    if !late.is_empty() {
        bad.push(format!("still being read: {}", late.join(", ")));
    }
    match settings {
        Ok(changed) if changed.is_empty() => {}
        Ok(changed) => bad.push(format!("gateway.toml: {}: changed, needs a restart", changed.join(", "))),
        Err(error) => bad.push(format!("gateway.toml is broken, a restart would fail: {error}")),
    }
    if !files.is_empty() {
        bad.push(format!("files of {}: changed, needs a restart", files.join(", ")));
    }
    let is_good = bad.is_empty();
    let first = match report.changed.is_empty() {
        true if is_good => "nothing changed".to_owned(),
        true => "reloaded nothing".to_owned(),
        false => format!("reloaded {}", report.changed.join(", ")),
    };
    bad.insert(0, first);
    // A parser's message has several lines.
    let text = bad.join("; ").split_whitespace().collect::<Vec<_>>().join(" ");
    Summary { text, is_good }
}
