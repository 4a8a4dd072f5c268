//! The HTTP API: what each endpoint takes and gives. `docs/protocol.md` describes it for people.

mod accept;
mod anchors;
mod awaited;
mod challenge;
mod config;
mod credential;
mod discovery;
mod evidence;
mod health;
mod kubelet;
mod overload;
mod problem;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use attest::protocol::{CHALLENGE_BODY_LIMIT_BYTES, CHALLENGE_PATH, DISCOVERY_PATH, EVIDENCE_BODY_LIMIT_BYTES, EVIDENCE_PATH};
use attest::{EkDigest, Endorsements};
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};
pub use problem::{CODES, Refusal, decided_by};

use crate::admission::Admission;
use crate::audit::{Basis, CloudBasis, Journal, JournalError, Record, Recorded, Verdict, decision_id};
use crate::certificates::Fingerprint;
use crate::certificates::ek_roots::EkRootsFolder;
use crate::clock::Clock;
use crate::cloud::Clouds;
use crate::credentials::seal::Seal;
use crate::machines::enrolment::{self, EkRecord};
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::pointers::sightings::{self, Sightings};
use crate::pools::live::{LivePools, Lookup};
use crate::pools::{Endorsement, Pool};
use crate::settings::Settings;
use crate::store::{Store, StoreError};

/// Longest User-Agent that is recorded.
const USER_AGENT_LIMIT_CHARACTERS: usize = 128;

/// Everything that requests need.
#[derive(Debug)]
pub struct Gateway {
    /// What the administrator said.
    pub settings: Settings,
    /// The time.
    pub clock: Clock,
    /// Sealed challenges and tickets.
    pub seal: Seal,
    /// What must be known again.
    pub store: Arc<dyn Store>,
    /// The attestation log.
    pub journal: Journal,
    /// Who vouches for EKs.
    pub ek_roots: EkRootsFolder,
    /// The blobs that hold these certificates: written once, at the start, and named in each record.
    pub ek_root_blobs: Vec<String>,
    /// What evidence of clouds is verified against.
    pub clouds: Clouds,
    /// The blobs that hold the configured certificates of clouds, likewise.
    pub cloud_blobs: CloudBasis,
    /// The pools, as they are at the moment.
    pub pools: LivePools,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is shown to nodes at the moment.
    pub tls: LiveTls,
    /// What sources share: who waits, and who is told to come again.
    pub admission: Admission,
    /// Which pointers are in use.
    pub sightings: Sightings,
    /// Whether the gateway is on its way out.
    pub draining: AtomicBool,
}

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Gateway {
    /// Whether new work should go elsewhere.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The pool of that name; it stays the same for a whole request.
    fn pool(&self, name: &str) -> Result<Arc<Pool>, Refusal> {
        match self.pools.get(name) {
            Lookup::Pool(pool) => Ok(pool),
            Lookup::NotYet => Err(Refusal::unavailable()),
            Lookup::Unknown => Err(Refusal::pool_unknown(name)),
        }
    }

    /// Who vouches for this EK in a pool, as of now: the allowlist, and the roots if the pool takes them. A machine that the
    /// administrator has allowed in other pools only is vouched for by nobody, whoever made its TPM.
    async fn vouched(&self, ek: Option<EkDigest>, pool: &Pool) -> Result<Vouched, StoreError> {
        let Some(ek) = ek else { return Ok(Vouched::nothing()) };
        let record = enrolment::allowlisted(&*self.store, ek).await?;
        let elsewhere = record.as_ref().is_some_and(|record| !record.may_join(pool.name()));
        let by = match pool.endorsement {
            _ if elsewhere => RootsTaken::None,
            Endorsement::AnyTpmOfATrustedMaker => RootsTaken::OfMakers,
            Endorsement::Allowlist => RootsTaken::None,
            Endorsement::GcpInstance => RootsTaken::OfGoogle,
        };
        // Where Google has to say which instance it is, the administrator's word about an EK says too little.
        let allowlisted = record.filter(|_| !elsewhere && by != RootsTaken::OfGoogle);
        let mut endorsements = match by {
            RootsTaken::OfMakers => Endorsements::new(Arc::clone(&self.ek_roots.roots)),
            RootsTaken::OfGoogle => Endorsements::of_gcp_instances(Arc::clone(self.clouds.vtpm_roots())),
            RootsTaken::None => Endorsements::new(Arc::default()),
        };
        if allowlisted.is_some() {
            endorsements = endorsements.allow(ek);
        }
        Ok(Vouched {
            endorsements,
            allowlisted,
            by,
        })
    }

    /// Notes which CAs the pointer says it carries; gives those of them that this gateway knows.
    fn note_pointer(&self, pool: &str, uri: &Uri, peer: SocketAddr, now: attest::UnixTime) -> Option<Vec<String>> {
        let current = self.tls.current();
        let bundle: Vec<Fingerprint> = current
            .serving
            .authorities()
            .iter()
            .map(|authority| authority.fingerprint)
            .collect();
        let said = sightings::said(uri.query(), &bundle);
        let accepted = current.serving.signed_by();
        self.sightings
            .note(pool, said.clone(), accepted, peer.ip().to_string(), now.as_secs());
        said
    }

    /// Makes a decision durable: the one way into the log. What it used up and has claimed is settled then; if it cannot be recorded, nobody
    /// gets anything for it, and it is given back.
    async fn record<T>(&self, record: &Record, blobs: Vec<(String, Vec<u8>)>, outcome: T) -> Result<Recorded<T>, JournalError> {
        let recorded = self.journal.record(record, blobs, outcome).await;
        if may_have_taken(record) && record.verdict != Verdict::Refused {
            match &recorded {
                Ok(_) => self.store.settle(&record.id),
                Err(_) => self.take_back(record).await,
            }
        }
        recorded
    }

    /// Gives back what a decision used up, or has claimed, that has come to a refusal after all.
    async fn give_back(&self, record: &mut Record) {
        if may_have_taken(record) {
            self.take_back(record).await;
        }
        record.use_number = None;
        record.again = false;
        record.late_seconds = None;
    }

    async fn take_back(&self, record: &Record) {
        if let Err(error) = self.store.give_back(&record.id).await {
            // The next start finds it among what is pending, and in the log that it was refused, or is not recorded.
            tracing::error!(%error, decision = record.id, "cannot give back what was used up for nothing");
        }
    }

    /// What every record of a decision about a pool says about the gateway itself.
    fn basis(&self, pool: &Pool) -> Basis {
        Basis {
            server_keys: self.tls.server_keys(),
            policy: Some(pool.policy.clone()),
            ..Basis::default()
        }
    }
}

/// Which roots of EK certificates are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RootsTaken {
    OfMakers,
    OfGoogle,
    None,
}

/// Who vouches for one EK in one pool.
struct Vouched {
    endorsements: Endorsements,
    allowlisted: Option<EkRecord>,
    by: RootsTaken,
}

impl Vouched {
    /// For a node without a TPM.
    fn nothing() -> Self {
        Self {
            endorsements: Endorsements::new(Arc::default()),
            allowlisted: None,
            by: RootsTaken::None,
        }
    }

    /// Puts into the record what the endorsement stood on.
    fn note(&self, gateway: &Gateway, basis: &mut Basis) {
        basis.allowlisted = self.allowlisted.is_some();
        basis.allowlisted_name = self.allowlisted.as_ref().and_then(|record| record.name.clone());
        match self.by {
            RootsTaken::OfMakers => basis.ek_roots.clone_from(&gateway.ek_root_blobs),
            RootsTaken::OfGoogle => basis.cloud.vtpm_roots.clone_from(&gateway.cloud_blobs.vtpm_roots),
            RootsTaken::None => {}
        }
    }
}

/// The whole API.
pub fn router(gateway: Arc<Gateway>) -> Router {
    // What has no body is not asked for one.
    let guarded = |path: &str, endpoint: MethodRouter<Arc<Gateway>>, body_bytes: usize| {
        let guard = overload::Guard {
            gateway: Arc::clone(&gateway),
            body_bytes,
        };
        let endpoint = endpoint
            .layer(DefaultBodyLimit::max(body_bytes))
            .layer(middleware::from_fn_with_state(guard, overload::guard));
        Router::new().route(path, endpoint)
    };
    // Health is answered however busy the gateway is.
    let health = Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready));
    guarded(DISCOVERY_PATH, get(discovery::get), 0)
        .merge(guarded(CHALLENGE_PATH, post(challenge::post), CHALLENGE_BODY_LIMIT_BYTES))
        .merge(guarded(EVIDENCE_PATH, post(evidence::post), EVIDENCE_BODY_LIMIT_BYTES))
        .merge(guarded("/config/{pool}", get(config::get), 0))
        // The Machine Config Server takes a path's last element.
        .merge(guarded("/config/{pool}/", get(config::get), 0))
        .merge(health)
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .with_state(gateway)
}

/// Metrics, on an address of their own.
pub fn metrics_router(gateway: Arc<Gateway>) -> Router {
    Router::new().route("/metrics", get(health::metrics)).with_state(gateway)
}

/// Reads a body.
fn decode<T: serde::de::DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refusal> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::body_too_large(),
        _ => Refusal::malformed("the body did not arrive whole"),
    })?;
    serde_json::from_slice(&body).map_err(Refusal::malformed)
}

/// What the client calls itself, cut to what a log line bears.
fn user_agent(headers: &HeaderMap) -> Option<String> {
    let agent = headers.get(header::USER_AGENT)?.to_str().ok()?;
    Some(agent.chars().take(USER_AGENT_LIMIT_CHARACTERS).collect())
}

/// Whether a decision may have used something up, or have claimed an instance or a name.
fn may_have_taken(record: &Record) -> bool {
    record.use_number.is_some() || record.claims.is_some()
}

/// Puts a refusal into a record.
fn refuse(record: &mut Record, refusal: &Refusal) {
    record.verdict = Verdict::Refused;
    record.code = Some(refusal.code().to_owned());
    record.decided_by = refusal.decided_by();
    record.reason = refusal.reason();
    record.grant = None;
    record.grants = None;
}

/// The answer to a recorded decision about an attestation, of which a refusal says which record it is; 503 if it could not be recorded.
fn answer(recorded: Result<Recorded<Result<Response, Refusal>>, JournalError>) -> Response {
    let recorded = match recorded {
        Ok(recorded) => recorded,
        Err(error) => return Refusal::because(&error).into_response(),
    };
    let line = recorded.line().map(str::to_owned);
    match recorded.into_inner() {
        Ok(response) => response,
        Err(refusal) => refusal.recorded_as(line),
    }
}
