//! `POST /v1/attest/evidence`: the decision that all the rest is for.

use std::sync::Arc;

use attest::protocol::{CONFIG_PREFIX, Evidence, EvidenceRequest, EvidenceResponse};
use attest::{AttestationResult, NodeIdentity, Subject, Submission, UnixTime};
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::problem::Refusal;
use super::{Gateway, Peer};
use crate::audit::{Basis, Blobs, Decision, Record, Shown, Verdict};
use crate::challenges::Opened;
use crate::policy::Grant;
use crate::pools::Pool;
use crate::{enrolment, tickets};

/// Takes evidence, and gives a ticket for it.
pub(super) async fn post(
    State(gateway): State<Arc<Gateway>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let request: EvidenceRequest = match super::decode(body) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    let now = gateway.clock.now();
    let Some(id) = super::decision_id() else {
        return Refusal::unavailable().into_response();
    };
    let opened = match Opened::open(&gateway.seal, &request.challenge, now) {
        Ok(opened) => opened,
        // Not sealed by this gateway, or too old: what is in it is not looked at, and the record says no more than that.
        Err(error) => {
            let refusal = Refusal::from(error);
            let mut record = Record::new(id, Decision::Evidence, now.as_secs(), peer.to_string(), String::new());
            record.shown = Shown::Unreadable;
            record.user_agent = super::user_agent(&headers);
            super::refuse(&mut record, &refusal);
            return super::answer(gateway.journal.record(&record, Vec::new(), refusal).await);
        }
    };
    let pool = match gateway.pool(&opened.peek().pool) {
        Ok(pool) => pool,
        Err(refusal) => return refusal.into_response(),
    };

    let mut record = Record::new(id, Decision::Evidence, now.as_secs(), peer.to_string(), pool.name().to_owned());
    record.shown = Shown::Tpm;
    record.user_agent = super::user_agent(&headers);
    let Subject::Tpm(subject) = &opened.peek().subject;
    record.identity = subject.attester.ek_digest().ok().map(|ek| NodeIdentity::of_tpm(ek).to_string());
    record.name.clone_from(&opened.peek().name);

    let mut basis = gateway.basis(&pool);
    let outcome = match decide(&gateway, &pool, &opened, &request.evidence, now, &mut record, &mut basis).await {
        Ok(earned) => match earned.ticket(&gateway, &record, now) {
            Ok(response) => response,
            Err(refusal) => return refusal.into_response(),
        },
        Err(refusal) if refusal.is_unavailable() => return refusal.into_response(),
        Err(refusal) => {
            super::refuse(&mut record, &refusal);
            refusal.into_response()
        }
    };
    basis.challenge = Some(opened.into_inner());
    let blobs = keep_evidence(request.evidence, &mut basis).into_iter().collect();
    record.basis = Some(basis);
    super::answer(gateway.journal.record(&record, blobs, outcome).await)
}

/// What evidence has earned.
struct Earned {
    result: AttestationResult,
    grant: Grant,
}

/// The decision. What it was made from is in its arguments and in the store; what comes of it, in the record.
async fn decide(
    gateway: &Gateway,
    pool: &Pool,
    opened: &Opened,
    evidence: &Evidence,
    now: UnixTime,
    record: &mut Record,
    basis: &mut Basis,
) -> Result<Earned, Refusal> {
    let challenge = opened.spend(&*gateway.store).await?;
    let Subject::Tpm(subject) = &challenge.subject;
    let vouched = gateway
        .vouched(subject.attester.ek_digest()?, pool)
        .await
        .map_err(|error| Refusal::because(&error))?;
    vouched.note(gateway, basis);
    let claims = attest::verify(
        &Submission {
            challenge,
            evidence,
            server_keys: &basis.server_keys,
        },
        &vouched.endorsements,
        now,
    )?;
    record.claims = Some(claims.clone());

    let alert = enrolment::note_counters(&*gateway.store, claims.identity(), claims.tpm())
        .await
        .map_err(|error| Refusal::because(&error))?;
    record.alerts.extend(alert);

    let result = attest::appraise(claims, &pool.reference_values)?;
    let grant = pool
        .grants
        .for_attested(&result)
        .ok_or_else(|| Refusal::attested_not_accepted(pool.name()))?;
    // Last: a machine that is not accepted does not get to keep a name.
    let (asked, identity) = (result.claims().name(), result.claims().identity());
    record.name = enrolment::settle_name(&*gateway.store, vouched.allowlisted.as_ref(), asked, identity).await?;
    record.verdict = Verdict::Trusted;
    record.grant = Some(grant.set());
    record.reason = reason(&result);
    Ok(Earned { result, grant })
}

fn reason(result: &AttestationResult) -> String {
    let tpm = result.claims().tpm();
    let by = match &tpm.endorsed_by {
        attest::EndorsedBy::Allowlist => "the allowlist".to_owned(),
        attest::EndorsedBy::Root { root_subject, .. } => format!("{root_subject:?}"),
    };
    let log = match &tpm.event_log {
        None => "no event log".to_owned(),
        Some(log) => format!(
            "an event log of {} events explains {} of them",
            log.events,
            log.explained_pcrs.len()
        ),
    };
    format!(
        "EK endorsed by {by}; AK in the same TPM; {} PCRs of {} quoted and accepted, {log}",
        tpm.pcrs.len(),
        tpm.pcr_bank
    )
}

impl Earned {
    fn ticket(&self, gateway: &Gateway, record: &Record, now: UnixTime) -> Result<Response, Refusal> {
        let claims = self.result.claims();
        let pool = self.grant.pool();
        let ticket = tickets::issue(
            &gateway.seal,
            &gateway.settings.ticket,
            claims.identity(),
            record.name.as_deref(),
            pool,
            &record.id,
            now,
        )
        .map_err(|error| Refusal::because(&error))?;
        let body = EvidenceResponse {
            ticket: ticket.text,
            expires: ticket.expires,
            url: format!("{CONFIG_PREFIX}{pool}"),
        };
        Ok(([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(body)).into_response())
    }
}

/// Puts the evidence into the record; its event log goes beside it, kept once for all who have the same.
fn keep_evidence(evidence: Evidence, basis: &mut Basis) -> Option<(String, Vec<u8>)> {
    let Evidence::Tpm(mut tpm) = evidence;
    let log = tpm.event_log.take().map(|log| (Blobs::name(log.as_ref()), log.0));
    basis.event_log_sha256 = log.as_ref().map(|(name, _)| name.clone());
    basis.evidence = Some(Evidence::Tpm(tpm));
    log
}
