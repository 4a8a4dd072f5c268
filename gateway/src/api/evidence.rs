//! `POST /v1/attest/evidence`: the decision that all the rest is for.

use std::sync::Arc;

use std::net::IpAddr;

use attest::protocol::{CONFIG_PREFIX, DOCUMENT_LIMIT_BYTES, Evidence, EvidenceRequest, EvidenceResponse, SecretText};
use attest::{AttestationResult, Challenge, NodeIdentity, Reject, UnixTime};
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::anchors::Anchors;
use super::awaited::Awaited;
use super::problem::Refusal;
use super::{Gateway, Peer};
use crate::audit::{Basis, Blobs, Decision, Digests, Record, Shown, TicketTerms, Verdict, trusted_by};
use crate::credentials::challenges::Opened;
use crate::credentials::{tickets, tokens};
use crate::machines::instances::{self, Claim, InstanceError};
use crate::machines::{enrolment, revocations};
use crate::policy::Grant;
use crate::pools::Pool;
use crate::store::Kind;

/// Takes evidence, and gives a ticket for it.
pub(super) async fn post(
    State(gateway): State<Arc<Gateway>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(awaited): Extension<Awaited>,
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
            return super::answer(gateway.record(&record, Vec::new(), Err(refusal)).await);
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

    // Before anything is said about it: what is recorded, logged or answered from here on is about a challenge that nobody can answer
    // any more.
    let spent = match opened.spend(&*gateway.store).await {
        Ok(spent) => spent,
        Err(error) => {
            let refusal = Refusal::from(error);
            if refusal.is_unavailable() {
                return refusal.into_response();
            }
            super::refuse(&mut record, &refusal);
            record.basis = Some(by_digest(&request.evidence));
            return super::answer(gateway.record(&record, Vec::new(), Err(refusal)).await);
        }
    };
    let mut made = Made {
        anchors: Anchors::default(),
        basis: gateway.basis(&pool),
        claimed: false,
    };
    let asked = Asked {
        pool: &pool,
        challenge: spent.challenge(),
        evidence: &request.evidence,
        peer: peer.ip(),
        now,
    };
    let decided = decide(&gateway, &asked, &mut record, &mut made).await;
    let decided = decided.and_then(|earned| awaited.give().map(|()| earned));
    let outcome = match decided.and_then(|earned| earned.ticket(&gateway, &mut record, now)) {
        Ok(response) => Ok(response),
        Err(refusal) => {
            // Also the instance: it belongs to nobody again, if it did not before.
            gateway.give_back(&mut record).await;
            made.claimed = made.claimed && is_somebodys(&gateway, &record).await;
            if refusal.is_unavailable() {
                return refusal.into_response();
            }
            super::refuse(&mut record, &refusal);
            record.known = is_known(&gateway, &record).await;
            Err(refusal)
        }
    };
    let Made {
        anchors,
        mut basis,
        claimed,
    } = made;
    let mut blobs = Vec::new();
    let proven = record.claims.is_some() || is_activated(spent.challenge(), &request.evidence);
    // Whoever reads the document of an instance that belongs to nobody could claim it.
    let exposes = request.evidence.aws_identity_document.is_some() && !claimed;
    if proven && !exposes && request.evidence.too_large().is_none() {
        basis.challenge = Some(spent);
        blobs = anchors.into_blobs();
        blobs.extend(keep_evidence(request.evidence, &mut basis));
    } else {
        basis = by_digest(&request.evidence);
    }
    record.basis = Some(basis);
    super::answer(gateway.record(&record, blobs, outcome).await)
}

/// Whether the instance that a refusal is about belongs to somebody; not as far as the store cannot tell.
async fn is_somebodys(gateway: &Gateway, record: &Record) -> bool {
    let Some(claims) = &record.claims else { return false };
    instances::is_somebodys(&*gateway.store, claims).await.unwrap_or(false)
}

/// Whether a machine that is refused is known here: it is on the allowlist or in an inventory, it has a name, or its instance belongs to
/// somebody. Its owner has to be able to read why; nobody has to read again and again that a machine is revoked.
async fn is_known(gateway: &Gateway, record: &Record) -> bool {
    let Some(claims) = &record.claims else { return false };
    let identities = || claims.instance().into_iter().chain([claims.identity()]);
    let named: Vec<&str> = identities().map(NodeIdentity::as_str).collect();
    let store = &*gateway.store;
    if revocations::refuse(store, &[], &named).await.is_err() {
        return false;
    }
    for identity in identities() {
        for kind in [Kind::Instance, Kind::NameOf] {
            if matches!(store.get(kind, identity.as_str()).await, Ok(Some(_))) {
                return true;
            }
        }
    }
    let ek = claims.tpm().map(|tpm| tpm.ek_digest);
    if let Some(ek) = ek
        && matches!(enrolment::allowlisted(store, ek).await, Ok(Some(_)))
    {
        return true;
    }
    let pools = gateway.pools.all();
    let mut inventories = pools.iter().filter_map(|pool| pool.inventory.as_ref());
    inventories.any(|inventory| identities().any(|identity| inventory.machines().names(identity)))
}

/// Whether the evidence comes from the TPM that was asked: what is wrong with a machine that somebody vouches for is worth a whole record.
fn is_activated(challenge: &Challenge, evidence: &Evidence) -> bool {
    match (&challenge.subject.tpm, &evidence.tpm) {
        (Some(asked), Some(shown)) => asked.secret_sha256 == shown.secret_sha256,
        _ => false,
    }
}

/// The basis of a refusal of what has proven nothing, or would help whoever reads it.
fn by_digest(evidence: &Evidence) -> Basis {
    Basis {
        digests: Some(Digests::of_evidence(evidence)),
        ..Basis::default()
    }
}

/// What evidence has earned.
struct Earned {
    result: AttestationResult,
    grant: Grant,
    /// To whom the instance belongs, if it is one.
    holder: Option<String>,
}

/// What a decision is about.
pub(super) struct Asked<'r> {
    pub(super) pool: &'r Pool,
    pub(super) challenge: &'r Challenge,
    pub(super) evidence: &'r Evidence,
    pub(super) peer: IpAddr,
    pub(super) now: UnixTime,
}

/// What a decision was made from, beside what was sent.
struct Made {
    anchors: Anchors,
    basis: Basis,
    /// The instance belongs to somebody, or was claimed: before that, nobody has asked.
    claimed: bool,
}

/// The decision. What it was made from is in its arguments and in the store; what comes of it, in the record.
async fn decide(gateway: &Gateway, asked: &Asked<'_>, record: &mut Record, made: &mut Made) -> Result<Earned, Refusal> {
    let Made { anchors, basis, claimed } = made;
    let Asked { pool, challenge, now, .. } = *asked;
    if let Some(kind) = asked.evidence.too_large() {
        return Err(Refusal::malformed(format!(
            "the evidence of kind {kind} has more than {DOCUMENT_LIMIT_BYTES} bytes"
        )));
    }
    // Nobody is asked about evidence that was not asked for.
    let (subject, shown) = (challenge.subject.kinds(), asked.evidence.kinds());
    if subject != shown {
        return Err(Reject::KindsShown { asked: subject, shown }.into());
    }
    anchors.gather(gateway, asked, basis).await?;
    let ek = challenge
        .subject
        .tpm
        .as_ref()
        .map(|tpm| tpm.attester.ek_digest())
        .transpose()
        .map_err(Reject::from)?;
    let vouched = gateway.vouched(ek, pool).await.map_err(|error| Refusal::because(&error))?;
    vouched.note(gateway, basis);
    let claims = anchors.verify(gateway, asked, &vouched.endorsements, basis).await?;
    record.identity = Some(claims.identity().to_string());
    record.instance = claims
        .instance()
        .filter(|instance| *instance != claims.identity())
        .map(ToString::to_string);
    record.claims = Some(claims.clone());
    if let Some(document) = claims.aws_identity_document() {
        // The other regions' certificates had no part in it.
        let region = document.document().replayable().region().to_owned();
        basis.cloud.region_certificates.retain(|name, _| *name == region);
    }

    let given = vouched.allowlisted.as_ref().and_then(|record| record.name.as_deref());
    let names: Vec<&str> = given.into_iter().chain(claims.name()).collect();
    let identities: Vec<&str> = claims
        .instance()
        .into_iter()
        .chain([claims.identity()])
        .map(NodeIdentity::as_str)
        .collect();
    revocations::refuse(&*gateway.store, &names, &identities).await?;
    if let Some(tpm) = claims.tpm() {
        let alert = enrolment::compare_counters(&*gateway.store, claims.identity(), tpm)
            .await
            .map_err(|error| Refusal::because(&error))?;
        record.alerts.extend(alert);
    }
    let result = attest::appraise(claims, &pool.policy, now)?;
    if let Some(inventory) = &pool.inventory {
        anchors.use_inventory(inventory, basis);
        inventory.machines().admit(result.claims())?;
    }
    let grant = pool
        .grants
        .for_attested(&result)
        .ok_or_else(|| Refusal::attested_not_accepted(pool.name()))?;
    // Only now: evidence that is not accepted takes no instance, keeps no name, and uses no token up.
    let node = tokens::Node::Attested(result.claims().identity());
    let token = anchors.examine_token(gateway, asked, node).await?;
    let pending = record.pending();
    let claim = Claim {
        claims: result.claims(),
        pending: &pending,
        first_use_binds: pool.policy.first_use_binds(result.claims().kinds()),
        at: now.as_secs(),
        peer: &asked.peer.to_string(),
    };
    let alert = claim.make(&*gateway.store).await.inspect_err(|error| {
        // Which of them is another's, the TPM or the instance, is asked when all is given back.
        *claimed = matches!(error, InstanceError::Claimed { .. });
        record.alerts.extend(error.alert());
    })?;
    *claimed = true;
    record.alerts.extend(alert);
    let holder = match result.claims().instance() {
        Some(instance) => instances::holder(&*gateway.store, instance)
            .await
            .map_err(|error| Refusal::because(&error))?,
        None => None,
    };
    let (name, identity) = (result.claims().name(), result.claims().identity());
    record.name = enrolment::settle_name(&*gateway.store, vouched.allowlisted.as_ref(), name, identity, &pending).await?;
    // Not of a machine that is refused: it has not attested, and who it is now is compared with when it last did.
    if let Some(tpm) = result.claims().tpm() {
        enrolment::note_counters(&*gateway.store, identity, tpm)
            .await
            .map_err(|error| Refusal::because(&error))?;
    }
    // Last, when nothing else can be wrong with the node.
    if let Some(token) = token {
        let redeemed = token.redeem(&*gateway.store, node, pending).await?;
        record.use_number = Some(redeemed.use_number());
        record.again = redeemed.again();
        record.alerts.extend(redeemed.stale().map(str::to_owned));
    }
    record.verdict = Verdict::Trusted;
    record.grant = Some(grant.set());
    record.grants = Some(pool.grants);
    record.reason = trusted_by(result.claims());
    Ok(Earned { result, grant, holder })
}

impl Earned {
    fn ticket(&self, gateway: &Gateway, record: &mut Record, now: UnixTime) -> Result<Response, Refusal> {
        let claims = self.result.claims();
        let pool = self.grant.pool();
        let earned = tickets::Earned {
            identity: claims.identity(),
            instance: claims.instance(),
            holder: self.holder.as_deref(),
            name: record.name.as_deref(),
            pool,
            decision: &record.id,
            endorsed_by: claims.tpm().map(|tpm| &tpm.endorsed_by),
        };
        let ticket = tickets::issue(&gateway.seal, &gateway.settings.ticket, &earned, now).map_err(|error| Refusal::because(&error))?;
        record.ticket = Some(TicketTerms {
            expires: ticket.expires,
            uses: gateway.settings.ticket.uses,
            late_seconds: gateway.settings.ticket.late.as_secs(),
        });
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
