//! `GET /config/{pool}`: what Ignition asks for.

use std::net::IpAddr;
use std::sync::Arc;

use attest::protocol::{GATEWAY_UNREACHABLE, HELD_TOO_LONG, NOT_ATTESTED_HEADER, TICKET_UNDELIVERABLE};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::accept;
use super::awaited::Awaited;
use super::credential::Credential;
use super::kubelet::{self, Kept};
use super::problem::{self, Refusal};
use super::{Gateway, Peer};
use crate::admission::Wrong;
use crate::audit::{Decision, NotAttested, Record, Shown, Verdict, WAITED, served_for};
use crate::credentials::kubelet::Presented;
use crate::credentials::tickets::{self, TicketError};
use crate::credentials::tokens::{self, TokenError};
use crate::ignition::SpecVersion;
use crate::policy::{ConfigSet, Earns, Grant};
use crate::pools::live::Lookup;
use crate::pools::{Pool, PoolInventory, RenderedConfig};

/// Serves a config. Every answer but "no such pool" and "unavailable" is a decision, and recorded.
pub(super) async fn get(
    State(gateway): State<Arc<Gateway>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(awaited): Extension<Awaited>,
    Path(pool): Path<String>,
    presented: Option<Extension<Presented>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let pool = match gateway.pools.get(&pool) {
        Lookup::Pool(pool) => pool,
        Lookup::NotYet => return problem::empty_503(),
        Lookup::Unknown => return Refusal::pool_unknown(&pool).into_response(),
    };
    let now = gateway.clock.now();
    let Some(id) = super::decision_id() else {
        return problem::empty_503();
    };
    let mut record = Record::new(id, Decision::Config, now.as_secs(), peer.to_string(), pool.name().to_owned());
    record.user_agent = super::user_agent(&headers);
    record.pointer_authorities = gateway.note_pointer(pool.name(), &uri, peer, now);
    let mut kept = Vec::new();
    let asked = Asked {
        peer: peer.ip(),
        uri: &uri,
        headers: &headers,
        presented: presented.as_ref().map(|Extension(presented)| presented),
        now,
    };
    let decided = decide(&gateway, &pool, &asked, &mut record, &mut kept).await;
    let decided = decided.and_then(|config| awaited.give().map(|()| config));
    record.not_attested = not_attested(&headers);
    record.alerts.extend(less_than_due(&record));
    let outcome = match decided {
        Ok(config) => {
            record.verdict = Verdict::Served;
            record.grants = Some(pool.grants);
            record.config_sha256 = Some(config.sha256.clone());
            record.spec_version = Some(config.version);
            if record.shown != Shown::Kubelet {
                record.reason = served_for(record.shown, record.used());
            }
            serve(config, &headers)
        }
        Err(refusal) => {
            gateway.give_back(&mut record).await;
            if refusal.is_unavailable() {
                return problem::empty_503();
            }
            super::refuse(&mut record, &refusal);
            refusal.into_response()
        }
    };
    match gateway.record(&record, kept, outcome).await {
        Ok(recorded) => recorded.into_inner(),
        Err(_) => problem::empty_503(),
    }
}

/// Why the node says that it has not attested. Anybody can say it.
fn not_attested(headers: &HeaderMap) -> Option<NotAttested> {
    let said = headers.get(NOT_ATTESTED_HEADER)?.to_str().ok()?;
    NotAttested::read(said, |code| WAITED.contains(&code) || problem::is_code(code))
}

/// What is to be said of a node that gets less than it could have earned, and was not refused.
fn less_than_due(record: &Record) -> Option<String> {
    let code = record.not_attested.as_ref()?.code.as_str();
    let why = match code {
        HELD_TOO_LONG => "it wanted to attest, and this gateway has told it to come again for longer than the pool has nodes wait",
        GATEWAY_UNREACHABLE => "it wanted to attest, and has not reached this gateway for as long as its administrator has it wait",
        TICKET_UNDELIVERABLE => "nothing that its Ignition reads can be written in its initramfs, so that a ticket does not reach it",
        _ => return None,
    };
    (record.grant != Some(ConfigSet::Full)).then(|| format!("this node says {code}: {why}; it may get less than its due"))
}

/// What is known of a request.
struct Asked<'r> {
    peer: IpAddr,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    presented: Option<&'r Presented>,
    now: attest::UnixTime,
}

async fn decide<'p>(
    gateway: &Gateway,
    pool: &'p Pool,
    asked: &Asked<'_>,
    record: &mut Record,
    kept: &mut Kept,
) -> Result<&'p RenderedConfig, Refusal> {
    let Asked { peer, now, .. } = *asked;
    record.shown = Shown::Unreadable;
    // First, so that a request that cannot be answered spends nothing.
    let version = accept::spec_version(asked.headers)?;
    let grant: Grant = match Credential::read(asked.headers, asked.uri, asked.presented)? {
        Credential::Ticket(text) => {
            record.shown = Shown::Ticket;
            let settings = &gateway.settings.ticket;
            let ticket = tickets::open(&gateway.seal, settings, &text, pool.name(), now).map_err(|error| match error {
                TicketError::Invalid => turned_out_wrong(gateway, peer, now, error.into()),
                error => error.into(),
            })?;
            record.identity = Some(ticket.identity().to_string());
            record.name = ticket.name().map(str::to_owned);
            record.earned_by = Some(ticket.decision().to_owned());
            let refused = || Refusal::attested_not_accepted(pool.name());
            servable(pool, pool.grants.attested, version, refused)?;
            let inventory = pool.inventory.as_ref().map(PoolInventory::machines);
            let ticket = ticket.redeem(&*gateway.store, inventory, record.pending()).await?;
            record.use_number = Some(ticket.use_number());
            record.late_seconds = ticket.late_seconds();
            pool.grants.for_ticket(&ticket).ok_or_else(refused)?
        }
        Credential::Token(text, claimant) => {
            record.shown = Shown::Token;
            // A pool that accepts no tokens does not look at one.
            if pool.grants.token == Earns::Refuse {
                return Err(Refusal::token_not_accepted(pool.name()));
            }
            let token = tokens::open(&*gateway.store, &text, pool.name(), peer, now)
                .await
                .map_err(|error| match error {
                    TokenError::Invalid => turned_out_wrong(gateway, peer, now, error.into()),
                    error => error.into(),
                })?;
            record.name = Some(token.name().to_owned());
            let refused = || Refusal::token_not_accepted(pool.name());
            servable(pool, pool.grants.token, version, refused)?;
            let node = claimant.as_ref().map_or(tokens::Node::Unknown, tokens::Node::Claimant);
            let token = token.redeem(&*gateway.store, node, record.pending()).await?;
            record.use_number = Some(token.use_number());
            record.again = token.again();
            record.alerts.extend(token.stale().map(str::to_owned));
            pool.grants.for_token(&token).ok_or_else(refused)?
        }
        Credential::Certificate(presented) => {
            record.shown = Shown::Kubelet;
            kubelet::grant(gateway, pool, &presented, peer, now, record, kept).await?
        }
        Credential::Nothing => {
            record.shown = Shown::Nothing;
            pool.grants
                .for_nothing(pool.name())
                .ok_or_else(|| Refusal::evidence_required(pool.name()))?
        }
    };
    record.grant = Some(grant.set());
    let versions = pool.config(&grant).ok_or_else(Refusal::unavailable)?;
    versions.get(version).map_err(Refusal::from)
}

/// Refuses what would not be served, because the pool gives nothing for it or cannot say it in the node's spec version, before anything
/// is used up for it.
fn servable(pool: &Pool, earns: Earns, version: SpecVersion, refused: impl Fn() -> Refusal) -> Result<(), Refusal> {
    let set = earns.set().ok_or_else(refused)?;
    pool.can_say(set, version).map_err(Refusal::from)
}

/// Counts a credential that was wrong. Whoever shows too many is told to come again, so that a rack of good machines with a dead pointer waits
/// and is not turned away; and that is not recorded, so that guessing does not fill the disk. Right ones are never counted.
pub(super) fn turned_out_wrong(gateway: &Gateway, peer: IpAddr, now: attest::UnixTime, refusal: Refusal) -> Refusal {
    let Wrong::TooMany { tell } = gateway.admission.wrong.count(peer, now) else {
        return refusal;
    };
    gateway.metrics.guess_ignored();
    if tell {
        tracing::warn!(%peer, "too many wrong tokens, tickets or client certificates from there: for a while wrong ones are answered by 503");
    }
    Refusal::unavailable()
}

/// The answer that nodes know from a Machine Config Server; the body is never empty, which Ignition would take for an empty config.
/// Only a client that says what it has already is told that it is the same: Ignition never does.
fn serve(config: &RenderedConfig, headers: &HeaderMap) -> Response {
    let etag = format!("\"{}\"", config.sha256);
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().trim_start_matches("W/") == etag);
    let Ok(etag) = HeaderValue::try_from(etag) else {
        return problem::empty_503();
    };
    let common = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::ETAG, etag),
        (header::VARY, HeaderValue::from_static("Accept")),
    ];
    if known {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (common, kind, Body::from(config.bytes.clone())).into_response()
}
