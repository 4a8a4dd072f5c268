//! Endpoint `POST /v1/attest/challenge`, which issues challenges.

use std::sync::Arc;
use std::time::Duration;

use attest::challenge::{Drawn, NAME_LIMIT_BYTES};
use attest::protocol::{ChallengeRequest, ChallengeResponse};
use attest::{Challenge, NodeIdentity, Reject, UnixTime};
use attest_log::{Basis, Decision, Record, RequestDigests, ShownEvidence, unknown_ek};
use attest_machines::revocations;
use attest_store::{EntryKind, Store, Transact};
use attest_system::clock::Clock;
use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::decisions::Decisions;
use super::endorsers::{Endorsers, Vouched};
use super::gateway::Gateway;
use super::problem::Refusal;
use super::{Peer, effort, evidence_context, overload};
use crate::admission::{Admission, ClientSource, Spending};
use crate::credentials::challenges;
use crate::credentials::seal::SealKeyRing;
use crate::metrics::Metrics;
use crate::pools::live::LivePools;
use attest_pool::{Endorsement, Pool, UnknownMachines};

/// Parts of the gateway that this endpoint has access to.
#[derive(Debug)]
pub(super) struct ChallengeEndpoint {
    clock: Clock,
    pools: Arc<LivePools>,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    store: Arc<dyn Store>,
    endorsers: Arc<Endorsers>,
    seal: Arc<SealKeyRing>,
    lifetime: Duration,
    decisions: Decisions,
}

impl ChallengeEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            clock: gateway.clock,
            pools: Arc::clone(&gateway.pools),
            admission: Arc::clone(&gateway.admission),
            metrics: Arc::clone(&gateway.metrics),
            store: Arc::clone(&gateway.store),
            endorsers: Arc::clone(&gateway.endorsers),
            seal: Arc::clone(&gateway.seal),
            lifetime: gateway.settings.challenge_lifetime,
            decisions: Decisions::new(gateway),
        }
    }
}

/// Answers with a challenge. Nothing is given away by it, so only refusals are recorded.
pub(super) async fn post(
    State(endpoint): State<Arc<ChallengeEndpoint>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let request: ChallengeRequest = match super::decode(body) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    let pool = match super::pool(&endpoint.pools, &request.pool) {
        Ok(pool) => pool,
        Err(refusal) => return refusal.into_response(),
    };
    let now = endpoint.clock.now();
    let source = endpoint.admission.source(peer.ip());
    if let Spending::Over { tell, again } = endpoint.admission.challenges.spend(source, 1, now) {
        endpoint.metrics.challenge_over_budget();
        if tell {
            tracing::warn!(%source, "too many challenges requested: answering 503 with Retry-After");
        }
        return overload::with_retry_after(Refusal::unavailable().into_response(), Some(again));
    }
    let refusal = match issue(&endpoint, &request, &pool, source, now).await {
        Ok(response) => return Json(response).into_response(),
        Err(refusal) if refusal.is_unavailable() => return refusal.into_response(),
        Err(refusal) => refusal,
    };
    let Some(id) = super::decision_id() else {
        return Refusal::unavailable().into_response();
    };
    let decision = match request.rehearsal {
        true => Decision::Rehearsal,
        false => Decision::Challenge,
    };
    let mut record = Record::new(id, decision, now.as_secs(), peer.to_string(), request.pool.clone());
    record.kinds = request.attester.kinds();
    record.shown = if request.attester.tpm.is_some() {
        ShownEvidence::Tpm
    } else {
        ShownEvidence::Cloud
    };
    let ek = request.attester.tpm.as_ref().and_then(|tpm| tpm.ek_digest().ok());
    record.identity = ek.map(|ek| NodeIdentity::from_ek(ek).to_string());
    // Names are looked at late; what cannot be one may be as long as the request.
    let name = request.name.as_deref();
    record.name = name.map(|name| name.chars().take(NAME_LIMIT_BYTES).collect());
    record.user_agent = super::user_agent(&headers);
    record.boot_id = super::boot_id(&headers);
    // A key and a certificate are public: whoever shows them has proven nothing.
    record.basis = Some(Box::new(Basis {
        digests: Some(RequestDigests::from_request(&request)),
        ..Basis::default()
    }));
    endpoint.decisions.refuse(record, refusal).await
}

/// Returns whether an unknown TPM may wait in this pool. One that the administrator has removed, or allowed in other pools only, is not
/// unknown.
fn may_wait(pool: &Pool, vouched: &Vouched) -> bool {
    let waits = pool.waiting.is_some_and(|rules| rules.unknown == UnknownMachines::Wait);
    waits && vouched.listed.is_none() && pool.endorsement != Endorsement::GcpInstance
}

async fn issue(
    endpoint: &ChallengeEndpoint,
    request: &ChallengeRequest,
    pool: &Arc<Pool>,
    source: ClientSource,
    now: UnixTime,
) -> Result<ChallengeResponse, Refusal> {
    let ek = request
        .attester
        .tpm
        .as_ref()
        .map(|tpm| tpm.ek_digest())
        .transpose()
        .map_err(Reject::from)?;
    let vouched = {
        let (endorsers, pool, name) = (Arc::clone(&endpoint.endorsers), Arc::clone(pool), request.name.clone());
        let looked = endpoint.store.read(move |transaction| {
            let (identity, listed) = (ek.map(NodeIdentity::from_ek), ek.map(|ek| ek.to_string()));
            let identities: Vec<&str> = identity.iter().map(NodeIdentity::as_str).collect();
            let names: Vec<&str> = name.as_deref().into_iter().collect();
            transaction.fetch(listed.iter().map(|ek| (EntryKind::Ek, ek.as_str())))?;
            // Before anything is done for it. What it says of itself is not proven yet; whoever says so of another learns that it is revoked.
            revocations::refuse(transaction, &names, &identities)?;
            Ok::<_, Refusal>(endorsers.vouched(transaction, ek, &pool)?)
        });
        looked.await?
    };
    let (lifetime, gateway_name) = (endpoint.lifetime, endpoint.endorsers.clouds.gateway_name());
    let Some(drawn) = Drawn::draw() else {
        tracing::error!("cannot create a challenge: the system's random generator failed");
        return Err(Refusal::unavailable());
    };
    let policy = evidence_context::policy(pool, request.rehearsal);
    let issue = || Challenge::issue(request, &vouched.endorsements, &policy, gateway_name, &drawn, now, lifetime);
    let length = effort::estimate_challenge(request.attester.kinds(), request.attester.tpm.as_ref());
    let issued = endpoint.admission.verification.run(source, length, issue).await?;
    let issued = match (issued, ek) {
        (Err(reject), Some(ek)) if unknown_ek(&reject).is_some() && !request.rehearsal && may_wait(pool, &vouched) => {
            // It may wait for an endorsement, once its evidence has shown that it is this TPM.
            let endorsements = vouched.endorsements.clone().allow(ek);
            let issue = || Challenge::issue(request, &endorsements, &policy, gateway_name, &drawn, now, lifetime);
            let mut issued = endpoint.admission.verification.run(source, length, issue).await??;
            if let Some(tpm) = &mut issued.challenge.subject.tpm {
                tpm.unendorsed = true;
            }
            issued
        }
        // That the administrator has removed it is no oversight: only `ek add` takes it back.
        (Err(reject), _) if vouched.is_removed() => return Err(Refusal::from(reject).without_acceptable()),
        (issued, _) => issued?,
    };
    let challenge = challenges::seal(&endpoint.seal, &issued.challenge).map_err(|error| Refusal::because(&error))?;
    Ok(ChallengeResponse {
        challenge,
        nonce: issued.challenge.nonce,
        purpose: issued.challenge.purpose,
        expires: issued.challenge.expires,
        task: issued.task,
    })
}
