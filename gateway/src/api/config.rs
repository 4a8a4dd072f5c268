//! `GET /config/{pool}`: what Ignition asks for.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use attest::UnixTime;
use attest::protocol::{GATEWAY_UNREACHABLE, HELD_TOO_LONG, NOT_ATTESTED_HEADER, TICKET_UNDELIVERABLE};
use attest_ignition::SpecVersion;
use attest_log::{ConfigSet, Earns};
use attest_log::{Decision, LargeParts, NotAttested, Record, Shown, Verdict, WAITED, served_for};
use attest_machines::objects::MachineObjects;
use attest_recording::pending;
use attest_store::Store;
use attest_system::clock::Clock;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use zeroize::Zeroizing;

use super::awaited::Awaited;
use super::credential::Credential;
use super::decisions::{Decided, Decisions, refuse};
use super::gateway::Gateway;
use super::guesses::Guesses;
use super::problem::{self, Refusal};
use super::{Peer, accept, kubelet};
use crate::admission::Admission;
use crate::certificates::Fingerprint;
use crate::credentials::kubelet::Presented;
use crate::credentials::seal::Seal;
use crate::credentials::tickets::{self, StillListed, TicketError};
use crate::credentials::tokens::{self, Claimant, TokenError};
use crate::pki::LiveTls;
use crate::pointers::sightings::{self, Sightings};
use crate::policy::Grant;
use crate::pools::live::{LivePools, Lookup};
use crate::pools::{Pool, PoolInventory, RenderedConfig};
use crate::settings::TicketSettings;

/// What this endpoint can touch.
#[derive(Debug)]
pub(super) struct ConfigEndpoint {
    clock: Clock,
    pools: Arc<LivePools>,
    tls: Arc<LiveTls>,
    sightings: Arc<Sightings>,
    admission: Arc<Admission>,
    guesses: Guesses,
    store: Arc<dyn Store>,
    seal: Arc<Seal>,
    ticket: TicketSettings,
    machines: Arc<MachineObjects>,
    decisions: Decisions,
}

impl ConfigEndpoint {
    pub(super) fn of(gateway: &Gateway) -> Self {
        Self {
            clock: gateway.clock,
            pools: Arc::clone(&gateway.pools),
            tls: Arc::clone(&gateway.tls),
            sightings: Arc::clone(&gateway.sightings),
            admission: Arc::clone(&gateway.admission),
            guesses: Guesses::of(gateway),
            store: Arc::clone(&gateway.store),
            seal: Arc::clone(&gateway.seal),
            ticket: gateway.settings.ticket,
            machines: Arc::clone(&gateway.machines),
            decisions: Decisions::of(gateway),
        }
    }

    /// Notes which CAs the pointer says it carries; gives those of them that this gateway knows.
    fn note_pointer(&self, pool: &str, uri: &Uri, peer: SocketAddr, now: UnixTime) -> Option<Vec<String>> {
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
}

/// Serves a config. Every answer but "no such pool" and "unavailable" is a decision, and recorded.
pub(super) async fn get(
    State(endpoint): State<Arc<ConfigEndpoint>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(awaited): Extension<Awaited>,
    Path(pool): Path<String>,
    presented: Option<Extension<Presented>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let pool = match endpoint.pools.get(&pool) {
        Lookup::Pool(pool) => pool,
        Lookup::NotYet => return problem::empty_503(),
        Lookup::Unknown => return Refusal::pool_unknown(&pool).into_response(),
    };
    let now = endpoint.clock.now();
    let Some(id) = super::decision_id() else {
        return problem::empty_503();
    };
    let mut record = Record::new(id, Decision::Config, now.as_secs(), peer.to_string(), pool.name().to_owned());
    record.user_agent = super::user_agent(&headers);
    record.pointer_authorities = endpoint.note_pointer(pool.name(), &uri, peer, now);
    let case = ConfigCase {
        endpoint: &endpoint,
        asked: ConfigAsked {
            pool: &pool,
            peer: peer.ip(),
            uri: &uri,
            headers: &headers,
            presented: presented.as_ref().map(|Extension(presented)| presented),
            now,
        },
        record,
        kept: LargeParts::new(),
    };
    let decided = match case.decide(&awaited).await {
        Ok(decided) => decided,
        Err(refusal) => return refusal.without_a_word(),
    };
    match endpoint.decisions.record(decided).await {
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
        GATEWAY_UNREACHABLE => {
            "it wanted to attest, and has not reached this gateway, or has had nothing but errors of it, for as long as it waits"
        }
        TICKET_UNDELIVERABLE => "nothing that its Ignition reads can be written in its initramfs, so that a ticket does not reach it",
        _ => return None,
    };
    (record.grant != Some(ConfigSet::Full)).then(|| format!("this node says {code}: {why}; it may get less than its due"))
}

/// What is known of a request.
#[derive(Clone, Copy)]
struct ConfigAsked<'r> {
    pool: &'r Arc<Pool>,
    peer: IpAddr,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    presented: Option<&'r Presented>,
    now: UnixTime,
}

/// A decision on its way: what it is about, and what is known of it so far.
struct ConfigCase<'r> {
    endpoint: &'r ConfigEndpoint,
    asked: ConfigAsked<'r>,
    record: Record,
    kept: LargeParts,
}

impl<'r> ConfigCase<'r> {
    /// The decision, whole; or why the gateway cannot decide now.
    async fn decide(mut self, awaited: &Awaited) -> Result<Decided<Response>, Refusal> {
        let ConfigAsked { pool, headers, .. } = self.asked;
        let config = self.config().await;
        // By what is served at the moment: it may have been looked up long ago.
        let config = match self.endpoint.pools.is_current(pool) {
            true => config.and_then(|config| awaited.give().map(|()| config)),
            false => Err(Refusal::unavailable()),
        };
        let record = &mut self.record;
        record.not_attested = not_attested(headers);
        record.alerts.extend(less_than_due(record));
        let outcome = match config {
            Ok(config) => {
                record.verdict = Verdict::Served;
                record.grants = Some(pool.grants);
                record.config_sha256 = Some(config.sha256.clone());
                record.spec_version = Some(config.version);
                if record.shown != Shown::Kubelet {
                    record.reason = served_for(record.shown, record.used());
                }
                serve(&config, headers)
            }
            Err(refusal) => {
                self.endpoint.decisions.give_back(record).await;
                if refusal.is_unavailable() {
                    return Err(refusal);
                }
                refuse(record, &refusal);
                refusal.into_response()
            }
        };
        let Self { record, kept, .. } = self;
        Ok(Decided { record, kept, outcome })
    }

    /// The config that is due.
    async fn config(&mut self) -> Result<Arc<RenderedConfig>, Refusal> {
        let ConfigAsked {
            pool,
            uri,
            headers,
            presented,
            ..
        } = self.asked;
        self.record.shown = Shown::Unreadable;
        // First, so that a request that cannot be answered spends nothing.
        let version = accept::spec_version(headers)?;
        let grant = match Credential::read(headers, uri, presented)? {
            Credential::Ticket(text) => self.by_ticket(&text, version).await?,
            Credential::Token(text, claimant) => self.by_token(&text, claimant.as_ref(), version).await?,
            Credential::Certificate(presented) => self.by_certificate(&presented).await?,
            Credential::Nothing => {
                self.record.shown = Shown::Nothing;
                Grant::for_nothing(&pool.grants, pool.name()).ok_or_else(|| Refusal::evidence_required(pool.name()))?
            }
        };
        self.record.grant = Some(grant.set());
        let versions = pool.config(&grant).ok_or_else(Refusal::unavailable)?;
        versions.get(version).map_err(|error| Refusal::from(&error))
    }

    async fn by_ticket(&mut self, text: &Zeroizing<String>, version: SpecVersion) -> Result<Grant, Refusal> {
        let (endpoint, record) = (self.endpoint, &mut self.record);
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        record.shown = Shown::Ticket;
        let known = endpoint.seal.look_for_key_of(tickets::sealed(text)).await;
        known.map_err(|error| Refusal::because(&error))?;
        let ticket = tickets::open(&endpoint.seal, &endpoint.ticket, text, pool.name(), now).map_err(|error| match error {
            TicketError::Invalid => endpoint.guesses.turned_out_wrong(peer, now, error.into()),
            error => error.into(),
        })?;
        record.identity = Some(ticket.identity().to_string());
        record.name = ticket.name().map(str::to_owned);
        record.earned_by = Some(ticket.decision().to_owned());
        let refused = || Refusal::attested_not_accepted(pool.name());
        servable(pool, pool.grants.attested, version, refused)?;
        let still = StillListed {
            inventory: pool.inventory.as_ref().map(PoolInventory::machines),
            machines: pool.machines.as_ref().map(|rules| (&*endpoint.machines, rules)),
        };
        let ticket = ticket.redeem(&*endpoint.store, still, pending(record)).await?;
        record.use_number = Some(ticket.use_number());
        record.late_seconds = ticket.late_seconds();
        Grant::for_ticket(&pool.grants, &ticket).ok_or_else(refused)
    }

    async fn by_token(&mut self, text: &Zeroizing<String>, claimant: Option<&Claimant>, version: SpecVersion) -> Result<Grant, Refusal> {
        let (endpoint, record) = (self.endpoint, &mut self.record);
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        record.shown = Shown::Token;
        // A pool that accepts no tokens does not look at one.
        if pool.grants.token == Earns::Refuse {
            return Err(Refusal::token_not_accepted(pool.name()));
        }
        let token = tokens::open(&*endpoint.store, text, pool.name(), peer, now)
            .await
            .map_err(|error| match error {
                TokenError::Invalid => endpoint.guesses.turned_out_wrong(peer, now, error.into()),
                error => error.into(),
            })?;
        record.name = Some(token.name().to_owned());
        let refused = || Refusal::token_not_accepted(pool.name());
        servable(pool, pool.grants.token, version, refused)?;
        let node = claimant.map_or(tokens::Node::Unknown, tokens::Node::Claimant);
        let token = token.redeem(&*endpoint.store, node, pending(record).into()).await?;
        record.use_number = Some(token.use_number());
        record.again = token.again();
        record.alerts.extend(token.stale().map(str::to_owned));
        Grant::for_token(&pool.grants, &token).ok_or_else(refused)
    }

    async fn by_certificate(&mut self, presented: &Presented) -> Result<Grant, Refusal> {
        let (endpoint, record) = (self.endpoint, &mut self.record);
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        record.shown = Shown::Kubelet;
        let tls = endpoint.tls.current();
        if endpoint.tls.awaits_client_authorities(&tls) {
            return Err(Refusal::kubelet_ca_untold());
        }
        let (verification, source) = (&endpoint.admission.verification, endpoint.admission.source(peer));
        let examined = kubelet::examine(verification, &tls.client_authorities, pool, presented, source, now).await?;
        record.basis = Some(examined.basis);
        self.kept = examined.kept;
        let verified = examined.verified.map_err(|error| match error.path() {
            // A stranger's: it fills the log as a wrong token does.
            [] => endpoint.guesses.turned_out_wrong(peer, now, error.into()),
            _ => error.into(),
        })?;
        record.identity = Some(verified.identity());
        record.name = Some(verified.name().to_owned());
        record.reason = kubelet::reason(&verified);
        kubelet::grant(&*endpoint.store, pool, &verified, now).await
    }
}

/// Refuses what would not be served, because the pool gives nothing for it or cannot say it in the node's spec version, before anything
/// is used up for it.
fn servable(pool: &Pool, earns: Earns, version: SpecVersion, refused: impl Fn() -> Refusal) -> Result<(), Refusal> {
    let set = earns.set().ok_or_else(refused)?;
    pool.can_say(set, version).map_err(|error| Refusal::from(&error))
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
