//! `POST /v1/attest/challenge`.

use std::sync::Arc;

use attest::protocol::{ChallengeRequest, ChallengeResponse};
use attest::{Challenge, NodeIdentity, UnixTime};
use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::problem::Refusal;
use super::{Gateway, Peer};
use crate::audit::{Basis, Decision, Record, Shown};
use crate::challenges;
use crate::pools::Pool;

/// Answers with a challenge. Nothing is given away by it, so only refusals are recorded.
pub(super) async fn post(
    State(gateway): State<Arc<Gateway>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let request: ChallengeRequest = match super::decode(body) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    let pool = match gateway.pool(&request.pool) {
        Ok(pool) => pool,
        Err(refusal) => return refusal.into_response(),
    };
    let now = gateway.clock.now();
    let mut basis = gateway.basis(&pool);
    let refusal = match issue(&gateway, &request, &pool, now, &mut basis).await {
        Ok(response) => return Json(response).into_response(),
        Err(refusal) if refusal.is_unavailable() => return refusal.into_response(),
        Err(refusal) => refusal,
    };
    let Some(id) = super::decision_id() else {
        return Refusal::unavailable().into_response();
    };
    let mut record = Record::new(id, Decision::Challenge, now.as_secs(), peer.to_string(), request.pool.clone());
    record.kinds = request.attester.kinds();
    record.shown = if request.attester.tpm.is_some() { Shown::Tpm } else { Shown::Cloud };
    let ek = request.attester.tpm.as_ref().and_then(|tpm| tpm.ek_digest().ok());
    record.identity = ek.map(|ek| NodeIdentity::of_tpm(ek).to_string());
    record.name.clone_from(&request.name);
    record.user_agent = super::user_agent(&headers);
    super::refuse(&mut record, &refusal);
    basis.request = Some(request);
    record.basis = Some(basis);
    super::answer(gateway.journal.record(&record, Vec::new(), refusal).await)
}

async fn issue(
    gateway: &Gateway,
    request: &ChallengeRequest,
    pool: &Pool,
    now: UnixTime,
    basis: &mut Basis,
) -> Result<ChallengeResponse, Refusal> {
    let ek = request.attester.tpm.as_ref().map(|tpm| tpm.ek_digest()).transpose()?;
    let vouched = gateway.vouched(ek, pool).await.map_err(|error| Refusal::because(&error))?;
    vouched.note(gateway, basis);
    let lifetime = gateway.settings.challenge_lifetime;
    let issued = Challenge::issue(
        request,
        &vouched.endorsements,
        &pool.policy,
        gateway.clouds.gateway_name(),
        now,
        lifetime,
    )?;
    let challenge = challenges::seal(&gateway.seal, &issued.challenge).map_err(|error| Refusal::because(&error))?;
    Ok(ChallengeResponse {
        challenge,
        nonce: issued.challenge.nonce,
        purpose: issued.challenge.purpose,
        expires: issued.challenge.expires,
        task: issued.task,
    })
}
