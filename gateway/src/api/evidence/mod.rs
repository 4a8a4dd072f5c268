//! `POST /v1/attest/evidence`: the decision that all the rest is for.

mod case;
mod decide;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::protocol::{CONFIG_PREFIX, DOCUMENT_LIMIT_BYTES, Evidence, EvidenceRequest, EvidenceResponse, RehearsalResponse, SecretText};
use attest::{Challenge, NodeIdentity, Submission, UnixTime};
use attest_log::admin::{By, Verb};
use attest_log::{Decision, DeltaBases, Record, ShownEvidence};
use attest_machines::objects::MachineObjects;
use attest_machines::waiting::WaitingList;
use attest_recording::Acting;
use attest_store::Store;
use attest_system::clock::Clock;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use zeroize::Zeroizing;

use super::Peer;
use super::config_formats::WantedFormats;
use super::decisions::{Decided, Decisions};
use super::endorsers::Endorsers;
use super::evidence_context::EvidenceAsked;
use super::gateway::Gateway;
use super::guesses::Guesses;
use super::overload;
use super::problem::Refusal;
use super::waiting_client::Awaited;
use crate::admission::{Admission, Spending};
use crate::credentials::challenges::{AnswerAttempts, AnsweredChallenge, Attempt, ChallengeError, OpenedChallenge};
use crate::credentials::seal::SealKeyRing;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::pools::live::LivePools;
use crate::settings::TicketSettings;
use case::{EvidenceCase, by_digest};
use decide::GrantingDecision;

/// Parts of the gateway that this endpoint has access to.
#[derive(Debug)]
pub(super) struct EvidenceEndpoint {
    clock: Clock,
    pools: Arc<LivePools>,
    admission: Arc<Admission>,
    guesses: Guesses,
    store: Arc<dyn Store>,
    endorsers: Arc<Endorsers>,
    tls: Arc<LiveTls>,
    seal: Arc<SealKeyRing>,
    ticket: TicketSettings,
    decisions: Decisions,
    delta_bases: DeltaBases,
    attempts: AnswerAttempts,
    /// Set if the store keeps which machines have attested: approvals depend on it.
    notes_attested: bool,
    machines: Arc<MachineObjects>,
    waiting: WaitingList,
    metrics: Arc<Metrics>,
}

impl EvidenceEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        // That the administrator is asked, a gateway tells as an act of its own.
        let asking = Acting {
            verb: Verb::WaitingAsk,
            by: By::gateway(gateway.settings.checkpoints.name.as_deref()),
            clock: gateway.clock,
        };
        Self {
            clock: gateway.clock,
            pools: Arc::clone(&gateway.pools),
            admission: Arc::clone(&gateway.admission),
            guesses: Guesses::new(gateway),
            store: Arc::clone(&gateway.store),
            endorsers: Arc::clone(&gateway.endorsers),
            tls: Arc::clone(&gateway.tls),
            seal: Arc::clone(&gateway.seal),
            ticket: gateway.settings.ticket,
            decisions: Decisions::new(gateway),
            delta_bases: DeltaBases::default(),
            attempts: AnswerAttempts::default(),
            notes_attested: gateway.settings.approval.notes_attested(),
            machines: Arc::clone(&gateway.machines),
            waiting: WaitingList::new(Arc::clone(&gateway.store), asking.on(Arc::clone(&gateway.store))),
            metrics: Arc::clone(&gateway.metrics),
        }
    }
}

/// Takes evidence, and gives a ticket for it.
pub(super) async fn post(
    State(endpoint): State<Arc<EvidenceEndpoint>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(awaited): Extension<Awaited>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let request: EvidenceRequest = match super::decode(body) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    let formats = match WantedFormats::read(request.config.as_ref()) {
        Ok(formats) => formats,
        Err(refusal) => return refusal.into_response(),
    };
    let now = endpoint.clock.now();
    let Some(id) = super::decision_id() else {
        return Refusal::unavailable().into_response();
    };
    let record = |pool: &str| {
        let mut record = Record::new(id, Decision::Evidence, now.as_secs(), peer.to_string(), pool.to_owned());
        record.user_agent = super::user_agent(&headers);
        record.boot_id = super::boot_id(&headers);
        record
    };
    if let Err(error) = endpoint.seal.refresh_for(&request.challenge).await {
        return Refusal::because(&error).into_response();
    }
    let opened = match OpenedChallenge::open(&endpoint.seal, &request.challenge, now) {
        Ok(opened) => opened,
        // Not sealed by this gateway, or too old: what is in it is not looked at, and the record says no more than that.
        Err(error) => {
            let mut record = record("");
            record.shown = ShownEvidence::Unreadable;
            return Box::pin(endpoint.decisions.refuse(record, Refusal::from(error))).await;
        }
    };
    let pool = match super::pool(&endpoint.pools, &opened.peek().pool) {
        Ok(pool) => pool,
        Err(refusal) => return refusal.into_response(),
    };
    let mut record = record(pool.name());
    note(opened.peek(), &mut record);
    let is_rehearsal = opened.peek().is_rehearsal();
    if is_rehearsal {
        record.decision = Decision::Rehearsal;
    }

    // What costs less than a verification goes before the attempt, and leaves the challenge as it is. So of it there is nothing in the
    // record.
    if let Err(refusal) = screen(&endpoint, opened.peek(), &request.evidence) {
        record.basis = Some(by_digest(&request.evidence));
        return Box::pin(endpoint.decisions.refuse(record, refusal)).await;
    }
    let is_endorsed = opened.peek().subject.tpm.as_ref().is_some_and(|tpm| !tpm.unendorsed);
    if !is_endorsed && let Some(again) = endpoint.over_budget(peer.ip(), now) {
        return overload::with_retry_after(Refusal::unavailable().into_response(), Some(again));
    }
    // Nor is anything verified that could not be recorded.
    let has_room = endpoint.store.has_room().map_err(|error| Refusal::because(&error));
    if let Err(refusal) = has_room.and_then(|()| endpoint.decisions.can_record()) {
        return refusal.into_response();
    }
    let attempt = endpoint.attempts.begin(opened.peek(), now);
    let answered = match endpoint.begin(opened, attempt).await {
        Ok(answered) => Arc::new(answered),
        Err(refusal) => return Box::pin(endpoint.turn_away(record, &request.evidence, refusal)).await,
    };
    let asked = EvidenceAsked {
        pool,
        challenge: answered.peek(),
        evidence: &request.evidence,
        formats,
        peer: peer.ip(),
        source: endpoint.admission.source(peer.ip()),
        now,
    };
    let case = EvidenceCase::new(&endpoint, asked, Arc::clone(&answered), record.clone());
    let refusal = if is_rehearsal {
        match Box::pin(case.rehearse(&awaited)).await {
            Ok(rehearsed) => {
                endpoint.note_spend(is_endorsed, now);
                let decided = rehearsed.decided(request.evidence, &endpoint.delta_bases);
                return Box::pin(endpoint.answer_rehearsal(decided)).await;
            }
            Err(refusal) => refusal,
        }
    } else {
        match case.decide(&awaited).await {
            Ok(judged) => {
                endpoint.note_spend(is_endorsed, now);
                let decided = judged.decided(request.evidence, &endpoint.delta_bases);
                let answer = endpoint.decisions.answer(decided).await;
                if answer.status().is_success() {
                    // Its Ignition comes next, on a connection of its own.
                    endpoint.admission.trusted_sources.note(peer.ip(), Instant::now());
                }
                return answer;
            }
            Err(refusal) => refusal,
        }
    };
    Box::pin(endpoint.turn_away(record, &request.evidence, refusal)).await
}

/// Refuses what cannot be the answer, before the challenge is spent.
fn screen(endpoint: &EvidenceEndpoint, challenge: &Challenge, evidence: &Evidence) -> Result<(), Refusal> {
    if let Some(kind) = evidence.too_large() {
        return Err(Refusal::malformed(format!(
            "the evidence of kind {kind} has more than {DOCUMENT_LIMIT_BYTES} bytes"
        )));
    }
    let server_keys = endpoint.tls.server_keys();
    attest::screen(&Submission::new(challenge, evidence, &server_keys)).map_err(Refusal::from)
}

impl EvidenceEndpoint {
    /// Begins to look at the answer to a challenge. A copy costs no verification: if it is not known whether this is one, the challenge is
    /// spent beforehand.
    async fn begin(&self, opened: OpenedChallenge, attempt: Attempt) -> Result<AnsweredChallenge, Refusal> {
        match attempt {
            Attempt::First => Ok(AnsweredChallenge::Opened(opened)),
            Attempt::Repeated => Err(ChallengeError::Spent.into()),
            Attempt::Unknown => Ok(AnsweredChallenge::Spent(opened.spend(&*self.store).await?)),
        }
    }

    /// Answers evidence that is not decided about.
    async fn turn_away(&self, mut record: Record, evidence: &Evidence, refusal: Refusal) -> Response {
        if refusal.is_unavailable() {
            return refusal.into_response();
        }
        record.basis = Some(by_digest(evidence));
        self.decisions.refuse(record, refusal).await
    }

    /// Records a rehearsal, and answers what a boot would get.
    async fn answer_rehearsal(&self, decided: Decided<RehearsalResponse>) -> Response {
        let recorded = match self.decisions.record(decided).await {
            Ok(recorded) => recorded,
            Err(error) => return Refusal::because(&error).into_response(),
        };
        let decision = recorded.line().map(str::to_owned);
        let mut answer = recorded.into_inner();
        if let Some(refusal) = &mut answer.refusal {
            refusal.decision.clone_from(&decision);
        }
        answer.decision = decision;
        ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(answer)).into_response()
    }

    /// Notes that a challenge is spent. An endorsed TPM that has activated its credential has proven something: it is not limited. What it
    /// writes is less for those who have proven nothing.
    fn note_spend(&self, is_endorsed: bool, now: UnixTime) {
        if is_endorsed && let Some(spends) = &self.admission.spends {
            spends.take(1, now);
        }
    }

    /// Spends one challenge from the store's budget, if it has one; returns how long this source must wait if there is nothing left.
    fn over_budget(&self, peer: IpAddr, now: UnixTime) -> Option<Duration> {
        let spends = self.admission.spends.as_ref()?;
        let source = self.admission.source(peer);
        let Spending::Over { tell, again } = spends.spend(source, 1, now) else {
            return None;
        };
        if tell {
            tracing::warn!(
                %source,
                "too many writes to the store on the cluster's API by clients without a TPM: answered 503 with Retry-After"
            );
        }
        Some(again)
    }
}

/// Says in the record what the challenge says of the node.
fn note(challenge: &Challenge, record: &mut Record) {
    let subject = &challenge.subject;
    record.kinds = subject.kinds();
    record.shown = if subject.tpm.is_some() {
        ShownEvidence::Tpm
    } else {
        ShownEvidence::Cloud
    };
    let ek = subject.tpm.as_ref().and_then(|tpm| tpm.attester.ek_digest().ok());
    record.identity = ek.map(|ek| NodeIdentity::from_ek(ek).to_string());
    record.name.clone_from(&challenge.name);
}

/// Returns the answer to evidence that has earned a ticket.
fn answer(earned: &GrantingDecision) -> Response {
    let GrantingDecision { record, ticket, .. } = earned;
    let body = EvidenceResponse {
        ticket: ticket.text.clone(),
        expires: ticket.expires,
        url: format!("{CONFIG_PREFIX}{}", record.pool),
        report: Some(SecretText::new(Zeroizing::new(ticket.report.clone()))),
        config: ticket.config.clone(),
    };
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(body)).into_response()
}
