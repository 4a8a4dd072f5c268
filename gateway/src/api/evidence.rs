//! `POST /v1/attest/evidence`: the decision that all the rest is for.

use std::sync::Arc;

use std::net::IpAddr;

use attest::protocol::{CONFIG_PREFIX, DOCUMENT_LIMIT_BYTES, Evidence, EvidenceRequest, EvidenceResponse, SecretText};
use attest::{AttestationResult, Claims, EndorsedBy, NodeIdentity, Reject, TpmClaims, UnixTime};
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::anchors::Anchors;
use super::problem::Refusal;
use super::{Gateway, Peer};
use crate::audit::{Basis, Blobs, Decision, Record, Shown, Verdict};
use crate::challenges::Opened;
use crate::instances::Claim;
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
    // What is refused later is recorded whole.
    if let Some(kind) = request.evidence.too_large() {
        return Refusal::malformed(format!("the evidence of kind {kind} has more than {DOCUMENT_LIMIT_BYTES} bytes")).into_response();
    }
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
    let subject = &opened.peek().subject;
    record.kinds = subject.kinds();
    record.shown = if subject.tpm.is_some() { Shown::Tpm } else { Shown::Cloud };
    record.user_agent = super::user_agent(&headers);
    let ek = subject.tpm.as_ref().and_then(|tpm| tpm.attester.ek_digest().ok());
    record.identity = ek.map(|ek| NodeIdentity::of_tpm(ek).to_string());
    record.name.clone_from(&opened.peek().name);

    let mut basis = gateway.basis(&pool);
    let mut anchors = Anchors::default();
    let asked = Asked {
        pool: &pool,
        opened: &opened,
        evidence: &request.evidence,
        peer: peer.ip(),
        now,
    };
    let outcome = match decide(&gateway, &asked, &mut anchors, &mut record, &mut basis).await {
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
    let mut blobs = anchors.into_blobs();
    blobs.extend(keep_evidence(request.evidence, &mut basis));
    record.basis = Some(basis);
    super::answer(gateway.journal.record(&record, blobs, outcome).await)
}

/// What evidence has earned.
struct Earned {
    result: AttestationResult,
    grant: Grant,
}

/// What a decision is about.
pub(super) struct Asked<'r> {
    pub(super) pool: &'r Pool,
    pub(super) opened: &'r Opened,
    pub(super) evidence: &'r Evidence,
    pub(super) peer: IpAddr,
    pub(super) now: UnixTime,
}

/// The decision. What it was made from is in its arguments and in the store; what comes of it, in the record.
async fn decide(
    gateway: &Gateway,
    asked: &Asked<'_>,
    anchors: &mut Anchors,
    record: &mut Record,
    basis: &mut Basis,
) -> Result<Earned, Refusal> {
    let Asked { pool, opened, now, .. } = *asked;
    // Nobody is asked about evidence that was not asked for.
    let (subject, shown) = (opened.peek().subject.kinds(), asked.evidence.kinds());
    if subject != shown {
        return Err(Reject::KindsShown { asked: subject, shown }.into());
    }
    // First, so that what cannot be verified at all spends nothing.
    anchors.gather(gateway, asked, basis).await?;
    let challenge = opened.spend(&*gateway.store).await?;
    let ek = challenge.subject.tpm.as_ref().map(|tpm| tpm.attester.ek_digest()).transpose()?;
    let vouched = gateway.vouched(ek, pool).await.map_err(|error| Refusal::because(&error))?;
    vouched.note(gateway, basis);
    let claims = anchors.verify(gateway, asked, &vouched.endorsements, basis).await?;
    record.identity = Some(claims.identity().to_string());
    record.instance = claims
        .instance()
        .filter(|instance| *instance != claims.identity())
        .map(ToString::to_string);
    record.claims = Some(claims.clone());
    if let Some(claimed) = claims.aws_identity_document() {
        // The other regions' certificates had no part in it.
        let region = claimed.document().replayable().region().to_owned();
        basis.cloud.region_certificates.retain(|name, _| *name == region);
    }

    if let Some(tpm) = claims.tpm() {
        let alert = enrolment::note_counters(&*gateway.store, claims.identity(), tpm)
            .await
            .map_err(|error| Refusal::because(&error))?;
        record.alerts.extend(alert);
    }
    let result = attest::appraise(claims, &pool.policy, now)?;
    let grant = pool
        .grants
        .for_attested(&result)
        .ok_or_else(|| Refusal::attested_not_accepted(pool.name()))?;
    // Only now: evidence that is not accepted takes no instance, keeps no name, and uses no token up.
    anchors.examine_token(gateway, asked).await?;
    let claim = Claim {
        claims: result.claims(),
        first_use_binds: pool.policy.first_use_binds(result.claims().kinds()),
        at: now.as_secs(),
        peer: &asked.peer.to_string(),
    };
    let alert = claim
        .make(&*gateway.store)
        .await
        .inspect_err(|error| record.alerts.extend(error.alert()))?;
    record.alerts.extend(alert);
    let (name, identity) = (result.claims().name(), result.claims().identity());
    record.name = enrolment::settle_name(&*gateway.store, vouched.allowlisted.as_ref(), name, identity).await?;
    // Last, when nothing else can be wrong with the node.
    let alert = anchors.redeem_token(gateway, asked).await?;
    record.alerts.extend(alert);
    record.verdict = Verdict::Trusted;
    record.grant = Some(grant.set());
    record.reason = reason(result.claims());
    Ok(Earned { result, grant })
}

/// By what a node was trusted, for a person.
fn reason(claims: &Claims) -> String {
    let mut reasons = Vec::new();
    reasons.extend(claims.tpm().map(tpm_reason));
    if let Some(identity) = claims.gcp() {
        let (instance, account) = (identity.instance(), identity.service_account());
        reasons.push(format!(
            "identity token of Google: instance {} in {}, service account {}",
            instance.instance_name(),
            instance.zone(),
            account.email
        ));
    }
    if let Some(claimed) = claims.aws_identity_document() {
        let document = claimed.document().replayable();
        reasons.push(format!(
            "identity document of AWS: image {} in {}",
            document.image_id(),
            document.region()
        ));
    }
    if let Some(document) = claims.aws_nitro_tpm() {
        let document = document.document();
        reasons.push(format!(
            "NitroTPM document of AWS: {} PCRs accepted, in {}",
            document.pcrs().len(),
            document.region()
        ));
    }
    if let Some(caller) = claims.aws_sts() {
        reasons.push(format!("AWS STS in {}: role {}", caller.region(), caller.role()));
    }
    if let Some(document) = claims.azure() {
        let place = document.location().unwrap_or("an unnamed region");
        reasons.push(format!("attested document of Azure, signed in {place}"));
    }
    if let Some(name) = claims.token() {
        reasons.push(format!("provisioning token {name:?}"));
    }
    reasons.join("; ")
}

fn tpm_reason(tpm: &TpmClaims) -> String {
    let by = match &tpm.endorsed_by {
        EndorsedBy::Allowlist => "the allowlist".to_owned(),
        EndorsedBy::Root { root_subject, .. } => format!("{root_subject:?}"),
        EndorsedBy::GcpInstance(instance) => format!("Google as the vTPM of {}", instance.identity()),
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

/// Puts the evidence into the record, without what is worth something to a reader; its event log goes beside it, kept once for all who
/// have the same.
fn keep_evidence(mut evidence: Evidence, basis: &mut Basis) -> Option<(String, Vec<u8>)> {
    if let Some(token) = &mut evidence.token {
        token.token = SecretText::default();
    }
    // Whoever hears what the cloud says of the instance would be the node with it.
    basis.cloud.claimant_sha256 = evidence.claimant_sha256();
    evidence.forget_claimant();
    if let Some(sts) = &mut evidence.aws_sts {
        sts.request = sts.request.redacted();
    }
    let log = evidence.tpm.as_mut().and_then(|tpm| tpm.event_log.take());
    let log = log.map(|log| (Blobs::name(log.as_ref()), log.0));
    basis.event_log_sha256 = log.as_ref().map(|(name, _)| name.clone());
    basis.evidence = Some(evidence);
    log
}
