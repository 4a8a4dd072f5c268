//! `GET /metrics`, on an address of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest_log::closed_segments;
use attest_plain_http::exposition;
use attest_store::settings::EngineSettings;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::gateway::Gateway;
use crate::admission::Admission;
use crate::metrics::{Measured, Metrics};
use crate::recording::Recorder;

/// Parts of the gateway that are measured at a scrape.
#[derive(Debug)]
pub(super) struct ScrapeEndpoint {
    metrics: Arc<Metrics>,
    admission: Arc<Admission>,
    recorder: Arc<Recorder>,
    state: PathBuf,
    log: PathBuf,
    /// File of the embedded store.
    store: Option<PathBuf>,
}

impl ScrapeEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        let store = &gateway.settings.store;
        Self {
            metrics: Arc::clone(&gateway.metrics),
            admission: Arc::clone(&gateway.admission),
            recorder: Arc::clone(&gateway.recorder),
            state: gateway.settings.state.clone(),
            log: gateway.settings.attestation_log(),
            store: (store.engine == EngineSettings::Embedded).then(|| store.file.clone()),
        }
    }

    /// Measures all that has a value only at a scrape. It waits for a disk.
    fn measure(&self) {
        let segments = closed_segments(&self.log).unwrap_or_default();
        let measured = Measured {
            unwritten: self.recorder.unwritten(),
            body_bytes: self.admission.bodies.used(),
            log: segments.iter().chain([&self.log]).map(|path| bytes(path)).sum(),
            disk: disk(&self.state),
            store: self
                .store
                .as_ref()
                .map(|file| bytes(file).saturating_add(bytes(&write_ahead(file)))),
        };
        self.metrics.measure(&self.admission.usage(), measured);
    }
}

/// Answers with all metrics.
pub(super) async fn get(State(endpoint): State<Arc<ScrapeEndpoint>>, request: HeaderMap) -> Response {
    let metrics = Arc::clone(&endpoint.metrics);
    match tokio::task::spawn_blocking(move || endpoint.measure()).await {
        Ok(()) => exposition(metrics.registry(), &request),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Answers with the metrics that need no store.
pub(super) async fn waiting(State(metrics): State<Arc<Metrics>>, request: HeaderMap) -> Response {
    exposition(metrics.registry(), &request)
}

/// Returns the size of a file; 0 if there is none.
fn bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

/// Returns the path of SQLite's write-ahead log.
fn write_ahead(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Returns free bytes and size of the file system with this folder.
fn disk(folder: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some((disk.f_bavail.checked_mul(disk.f_frsize)?, disk.f_blocks.checked_mul(disk.f_frsize)?))
}
