//! `POST /v1/report`: a failed first boot, as the node states it. A report gives nothing away, decides nothing and spends nothing.
//!
//! Any client can send one. Reports that prove an attestation have an allowance of their own, in fair shares among the attested machines;
//! all others share a small one, in fair shares among sources. Beyond it a report is refused: none displaces another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attest::UnixTime;
use attest::protocol::{ReportRequest, ReportResponse};
use attest_log::{Blobs, Journal, NodeReport, ReportSource};
use attest_system::clock::Clock;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::gateway::Gateway;
use super::problem::Refusal;
use super::{Peer, overload};
use crate::admission::{Admission, ClientSource, REPORT_BYTES, Spending};
use crate::credentials::report_proofs::{self, ProvenAttestation};
use crate::credentials::seal::SealKeyRing;
use crate::metrics::Metrics;
use crate::pools::live::LivePools;

/// Period in which the console has one message about too many reports, in seconds.
const TELL_EVERY_SECONDS: u64 = 60;

/// Parts of the gateway that this endpoint has access to.
#[derive(Debug)]
pub(super) struct ReportEndpoint {
    clock: Clock,
    pools: Arc<LivePools>,
    admission: Arc<Admission>,
    seal: Arc<SealKeyRing>,
    journal: Arc<Journal>,
    metrics: Arc<Metrics>,
    is_on: bool,
    /// Period of the last console message about too many reports.
    warned: AtomicU64,
}

impl ReportEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            clock: gateway.clock,
            pools: Arc::clone(&gateway.pools),
            admission: Arc::clone(&gateway.admission),
            seal: Arc::clone(&gateway.seal),
            journal: Arc::clone(&gateway.journal),
            metrics: Arc::clone(&gateway.metrics),
            is_on: gateway.settings.reports,
            warned: AtomicU64::new(0),
        }
    }
}

/// Records a report, and answers with the id of its record.
pub(super) async fn post(
    State(endpoint): State<Arc<ReportEndpoint>>,
    Extension(Peer(peer)): Extension<Peer>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    if !endpoint.is_on {
        return Refusal::reports_off().into_response();
    }
    let (request, proven, now) = match endpoint.read(body).await {
        Ok(read) => read,
        Err(refusal) => return refusal.into_response(),
    };
    let source = match &proven {
        // Its neighbours, and those behind the same address, use up nothing of its share.
        Some(proven) => ClientSource::of_machine(&proven.identity),
        None => endpoint.admission.source(peer.ip()),
    };
    let allowance = match &proven {
        Some(_) => &endpoint.admission.verified_reports,
        None => &endpoint.admission.unverified_reports,
    };
    if let Spending::Over { again, .. } = allowance.spend(source, REPORT_BYTES, now) {
        endpoint.metrics.reported("refused");
        // One line for all sources: each address would have one of its own.
        if endpoint.warned.swap(now.as_secs() / TELL_EVERY_SECONDS, Ordering::Relaxed) != now.as_secs() / TELL_EVERY_SECONDS {
            tracing::warn!(peer = %peer.ip(), verified = proven.is_some(), "too many reports of failed boots: answering 503 with Retry-After");
        }
        return overload::with_retry_after(Refusal::unavailable().into_response(), Some(again));
    }
    let Some(id) = super::decision_id() else {
        return Refusal::unavailable().into_response();
    };
    let result = if proven.is_some() { "verified" } else { "unverified" };
    let (source, report) = record(&request, proven, peer.to_string());
    let journal = report.journal_sha256.clone().map(|name| (name, request.journal.as_bytes().into()));
    let event = report.event(id.clone(), now.as_secs(), source);
    if let Err(error) = endpoint.journal.record_event_with(&event, journal.into_iter().collect()).await {
        return Refusal::because(&error).into_response();
    }
    endpoint.metrics.reported(result);
    let body = ReportResponse { report: id };
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(body)).into_response()
}

impl ReportEndpoint {
    /// Reads a report, and verifies its proof if it has one. Returns it with the proven attestation, and the time.
    async fn read(&self, body: Result<Bytes, BytesRejection>) -> Result<(ReportRequest, Option<ProvenAttestation>, UnixTime), Refusal> {
        let request: ReportRequest = super::decode(body)?;
        request.check().map_err(Refusal::malformed)?;
        let now = self.clock.now();
        super::pool(&self.pools, &request.pool)?;
        let proven = match request.proof.as_ref().map(|proof| proof.reveal()) {
            Some(proof) => {
                self.seal.refresh_for(proof).await.map_err(|error| Refusal::because(&error))?;
                Some(report_proofs::open(&self.seal, proof, &request.pool, now)?)
            }
            None => None,
        };
        Ok((request, proven, now))
    }
}

/// Returns the source of a report and the report, for the record. Without a proof, only the address is known of the source.
fn record(request: &ReportRequest, proven: Option<ProvenAttestation>, peer: String) -> (ReportSource, NodeReport) {
    let report = NodeReport {
        verified: proven.is_some(),
        attestation: proven.as_ref().map(|proven| proven.decision.clone()).or(request.decision.clone()),
        stage: request.stage,
        unit: request.unit.clone(),
        error: request.error.clone(),
        boot: request.boot.clone(),
        journal_bytes: u64::try_from(request.journal.len()).unwrap_or(u64::MAX),
        journal_sha256: (!request.journal.is_empty()).then(|| Blobs::name(request.journal.as_bytes())),
    };
    let (identity, instance, name) = match proven {
        Some(ProvenAttestation {
            identity, instance, name, ..
        }) => (Some(identity.to_string()), instance.map(|instance| instance.to_string()), name),
        None => (None, None, None),
    };
    let source = ReportSource {
        peer,
        pool: request.pool.clone(),
        identity,
        instance,
        name,
    };
    (source, report)
}
