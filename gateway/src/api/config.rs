//! `GET /config/{pool}`: what Ignition asks for.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use attest::UnixTime;
use attest::protocol::{ConfigCompression, GATEWAY_UNREACHABLE, NOT_ATTESTED_HEADER, RETRY_LIMIT_EXCEEDED, TICKET_UNDELIVERABLE};
use attest_certificates::Fingerprint;
use attest_certificates::kubelet::PresentedCertificate;
use attest_ignition::SpecVersion;
use attest_log::codes::is_code;
use attest_log::{ConfigSet, Decision, Earns, LargeParts, NotAttested, Record, ShownEvidence, Verdict, WAITED, served_for};
use attest_machines::objects::MachineObjects;
use attest_store::{EntryTransaction, Store, StoreError, Transact};
use attest_system::clock::Clock;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use zeroize::Zeroizing;

use super::credential::RequestCredential;
use super::decisions::{Decided, Decisions, pending, refuse};
use super::gateway::Gateway;
use super::guesses::Guesses;
use super::problem::{self, Refusal};
use super::waiting_client::Awaited;
use super::{Peer, accept, kubelet};
use crate::admission::Admission;
use crate::credentials::seal::SealKeyRing;
use crate::credentials::tickets::{self, PresentedTicket, StillListed, TicketError};
use crate::credentials::tokens::{self, Claimant, TokenError};
use crate::pki::LiveTls;
use crate::policy::Grant;
use crate::pools::live::{LivePools, Lookup, Promised};
use crate::pools::{PreparedConfig, compressed};
use crate::settings::TicketSettings;
use crate::sightings::Sightings;
use attest_pool::{Pool, PoolInventory, RenderedConfig};

/// Parts of the gateway that this endpoint has access to.
#[derive(Debug)]
pub(super) struct ConfigEndpoint {
    clock: Clock,
    pools: Arc<LivePools>,
    tls: Arc<LiveTls>,
    sightings: Arc<Sightings>,
    admission: Arc<Admission>,
    guesses: Guesses,
    store: Arc<dyn Store>,
    seal: Arc<SealKeyRing>,
    ticket: TicketSettings,
    machines: Arc<MachineObjects>,
    decisions: Decisions,
}

impl ConfigEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            clock: gateway.clock,
            pools: Arc::clone(&gateway.pools),
            tls: Arc::clone(&gateway.tls),
            sightings: Arc::clone(&gateway.sightings),
            admission: Arc::clone(&gateway.admission),
            guesses: Guesses::new(gateway),
            store: Arc::clone(&gateway.store),
            seal: Arc::clone(&gateway.seal),
            ticket: gateway.settings.ticket,
            machines: Arc::clone(&gateway.machines),
            decisions: Decisions::new(gateway),
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
        let said = attest_pointers::parse_hint(uri.query(), &bundle);
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
    presented: Option<Extension<PresentedCertificate>>,
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
    record.boot_id = super::boot_id(&headers);
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
        large_parts: LargeParts::new(),
    };
    let decided = match case.decide(&awaited).await {
        Ok(decided) => decided,
        Err(refusal) => return refusal.empty_response(),
    };
    match endpoint.decisions.record(decided).await {
        Ok(recorded) => recorded.into_inner(),
        Err(_) => problem::empty_503(),
    }
}

/// Returns the node's stated reason for not having attested. Any client can send it.
fn not_attested(headers: &HeaderMap) -> Option<NotAttested> {
    let said = headers.get(NOT_ATTESTED_HEADER)?.to_str().ok()?;
    NotAttested::read(said, |code| WAITED.contains(&code) || is_code(code))
}

/// Returns an alert for a node that gets less than it could have earned, and was not refused.
fn less_than_due(record: &Record) -> Option<String> {
    let code = record.not_attested.as_ref()?.code.as_str();
    let why = match code {
        RETRY_LIMIT_EXCEEDED => {
            "the node tried to attest, but this gateway answered 503 for longer than the pool's attestation.hold_seconds"
        }
        GATEWAY_UNREACHABLE => "the node tried to attest, but did not reach this gateway in time, or got only errors from it",
        TICKET_UNDELIVERABLE => "attest-node cannot write a file that the node's Ignition reads, so a ticket does not reach it",
        _ => return None,
    };
    (record.grant != Some(ConfigSet::Full)).then(|| format!("this node reports {code}: {why}; it may get a lesser config"))
}

/// Data of one config request.
#[derive(Clone, Copy)]
struct ConfigAsked<'r> {
    pool: &'r Arc<Pool>,
    peer: IpAddr,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    presented: Option<&'r PresentedCertificate>,
    now: UnixTime,
}

/// Decision in progress: its request, and the record so far.
struct ConfigCase<'r> {
    endpoint: &'r ConfigEndpoint,
    asked: ConfigAsked<'r>,
    record: Record,
    large_parts: LargeParts,
}

/// Refusal of a transaction that served no config. Nothing was written.
struct ConfigRefusal {
    refusal: Box<Refusal>,
    /// The record so far; `None` if the store failed.
    record: Option<Box<Record>>,
}

impl From<StoreError> for ConfigRefusal {
    fn from(error: StoreError) -> Self {
        Self {
            refusal: Box::new(error.into()),
            record: None,
        }
    }
}

/// Data for the transaction of a decision that serves a config.
struct ConfigGrant {
    pools: Arc<LivePools>,
    pool: Arc<Pool>,
    awaited: Awaited,
    prepared: PreparedConfig,
}

impl ConfigGrant {
    /// Says in the record that the config is served for this grant; the last that can be wrong with it.
    fn give(&self, record: &mut Record, grant: &Grant) -> Result<Arc<RenderedConfig>, Refusal> {
        let Self {
            pools,
            pool,
            awaited,
            prepared,
        } = self;
        record.grant = Some(grant.set());
        let config = prepared.for_grant(grant).ok_or_else(Refusal::unavailable)?;
        // By what is served at the moment: it may have been looked up long ago.
        if !pools.is_current(pool) {
            return Err(Refusal::unavailable());
        }
        awaited.give()?;
        record.verdict = Verdict::Served;
        record.grants = Some(pool.grants);
        record.config_sha256 = Some(prepared.sha256().to_owned());
        record.spec_version = Some(prepared.version());
        record.alerts.extend(less_than_due(record));
        if record.shown != ShownEvidence::Kubelet {
            record.reason = served_for(record.shown, record.used());
        }
        Ok(Arc::clone(config))
    }
}

impl<'r> ConfigCase<'r> {
    /// Returns the whole decision, or the reason why the gateway cannot decide now.
    async fn decide(mut self, awaited: &Awaited) -> Result<Decided<Response>, Refusal> {
        let ConfigAsked { headers, .. } = self.asked;
        self.record.not_attested = not_attested(headers);
        let outcome = match self.config(awaited).await {
            Ok(config) => config.serve(headers).await,
            Err(refusal) if refusal.is_unavailable() => return Err(refusal),
            Err(refusal) => {
                let record = &mut self.record;
                record.alerts.extend(less_than_due(record));
                refuse(record, &refusal);
                refusal.into_response()
            }
        };
        let Self {
            record, large_parts: kept, ..
        } = self;
        Ok(Decided {
            record,
            large_parts: kept,
            outcome,
        })
    }

    /// Returns the config that is due.
    async fn config(&mut self, awaited: &Awaited) -> Result<GrantedConfig, Refusal> {
        let ConfigAsked {
            pool,
            uri,
            headers,
            presented,
            ..
        } = self.asked;
        self.record.shown = ShownEvidence::Unreadable;
        // First, so that a request that cannot be answered spends nothing.
        let version = accept::spec_version(headers)?;
        match RequestCredential::read(headers, uri, presented)? {
            RequestCredential::Ticket(text) => self.by_ticket(&text, version, awaited).await,
            RequestCredential::Token(text, claimant) => self.by_token(text, claimant, version, awaited).await.map(GrantedConfig::plain),
            RequestCredential::Certificate(presented) => self.by_certificate(&presented, version, awaited).await.map(GrantedConfig::plain),
            RequestCredential::Nothing => {
                self.record.shown = ShownEvidence::Nothing;
                let refused = || Refusal::evidence_required(pool.name());
                let grant = Grant::for_nothing(&pool.grants, pool.name()).ok_or_else(refused)?;
                let giving = self.giving(pool.grants.nothing, version, awaited, refused)?;
                giving.give(&mut self.record, &grant).map(GrantedConfig::plain)
            }
        }
    }

    /// Refuses a config that would not be served, before anything is used up for it. The pool gives nothing, or cannot express it in the
    /// node's spec version.
    fn giving(&self, earns: Earns, version: SpecVersion, awaited: &Awaited, refused: impl Fn() -> Refusal) -> Result<ConfigGrant, Refusal> {
        let pool = self.asked.pool;
        let set = earns.set().ok_or_else(refused)?;
        let prepared = PreparedConfig::new(pool, set, version).map_err(|error| Refusal::from(&error))?;
        Ok(self.grant_of(prepared, awaited))
    }

    fn grant_of(&self, prepared: PreparedConfig, awaited: &Awaited) -> ConfigGrant {
        ConfigGrant {
            pools: Arc::clone(&self.endpoint.pools),
            pool: Arc::clone(self.asked.pool),
            awaited: awaited.clone(),
            prepared,
        }
    }

    /// Like [`ConfigCase::giving`], for the config that a ticket promises, if it promises one.
    fn giving_promised(
        &self,
        ticket: &PresentedTicket,
        version: SpecVersion,
        awaited: &Awaited,
        refused: impl Fn() -> Refusal,
    ) -> Result<ConfigGrant, Refusal> {
        let pool = self.asked.pool;
        let Some(promise) = &ticket.config().promise else {
            return self.giving(pool.grants.attested, version, awaited, refused);
        };
        let promised = promise.spec_version;
        if version < promised {
            return Err(TicketError::SpecVersion { promised, asked: version }.into());
        }
        let set = pool.grants.attested.set().ok_or_else(refused)?;
        match self.endpoint.pools.promised(pool, set, promise) {
            Promised::Config(prepared) => Ok(self.grant_of(prepared, awaited)),
            Promised::NotYet => Err(Refusal::config_awaited(pool.name(), &promise.sha256)),
            Promised::Gone => Err(TicketError::ConfigChanged {
                pool: pool.name().to_owned(),
                sha256: promise.sha256.clone(),
            }
            .into()),
        }
    }

    /// Decides in one optimistic transaction, so that all reads are of one moment. Uses are only spent for a decision that is recorded.
    async fn transact(
        &mut self,
        mut work: impl FnMut(&mut EntryTransaction<'_>, &mut Record) -> Result<Arc<RenderedConfig>, Refusal> + Send + 'static,
    ) -> Result<Arc<RenderedConfig>, Refusal> {
        let begun = self.record.clone();
        self.endpoint.decisions.begin(&begun.id);
        let decided = self.endpoint.store.decide(&self.record.id, move |transaction| {
            let mut record = begun.clone();
            let given = work(transaction, &mut record).and_then(|config| {
                if record.use_number.is_some() {
                    transaction.decide(pending(&record)?)?;
                }
                Ok(config)
            });
            match given {
                Ok(config) => Ok((Box::new(record), config)),
                Err(refusal) => {
                    // Nothing was used up.
                    (record.use_number, record.again, record.late_seconds) = (None, false, None);
                    Err(ConfigRefusal {
                        refusal: Box::new(refusal),
                        record: Some(Box::new(record)),
                    })
                }
            }
        });
        match decided.await {
            Ok((record, config)) => {
                self.record = *record;
                Ok(config)
            }
            Err(ConfigRefusal { refusal, record }) => {
                self.endpoint.decisions.end(&self.record.id);
                if let Some(record) = record {
                    self.record = *record;
                }
                Err(*refusal)
            }
        }
    }

    async fn by_ticket(&mut self, text: &Zeroizing<String>, version: SpecVersion, awaited: &Awaited) -> Result<GrantedConfig, Refusal> {
        let (endpoint, record) = (self.endpoint, &mut self.record);
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        record.shown = ShownEvidence::Ticket;
        let known = endpoint.seal.refresh_for(tickets::sealed(text)).await;
        known.map_err(|error| Refusal::because(&error))?;
        let ticket = tickets::open(&endpoint.seal, &endpoint.ticket, text, pool.name(), now).map_err(|error| match error {
            TicketError::Invalid => endpoint.guesses.count_failure(peer, now, error.into()),
            error => error.into(),
        })?;
        record.identity = Some(ticket.identity().to_string());
        record.name = ticket.name().map(str::to_owned);
        record.earned_by = Some(ticket.decision().to_owned());
        let of = pool.name().to_owned();
        let refused = move || Refusal::attested_not_accepted(&of);
        ticket.is_listed(StillListed {
            inventory: pool.inventory.as_ref().map(PoolInventory::machines),
            machines: pool.machines.as_ref().map(|rules| (&*endpoint.machines, rules)),
        })?;
        let giving = match self.giving_promised(&ticket, version, awaited, &refused) {
            Ok(giving) => giving,
            Err(refusal) if refusal.is_unavailable() => return Err(refusal),
            // A machine that may have no config is told so, and not to attest again.
            Err(refusal) => {
                endpoint.store.read(move |transaction| ticket.stands(transaction)).await?;
                return Err(refusal);
            }
        };
        let compression = ticket.config().compression;
        let given = self.transact(move |transaction, record| {
            let redeemed = ticket.redeem(transaction)?;
            record.use_number = Some(redeemed.use_number());
            record.late_seconds = redeemed.late_seconds();
            let grant = Grant::for_ticket(&giving.pool.grants, &redeemed).ok_or_else(&refused)?;
            giving.give(record, &grant)
        });
        given.await.map(|config| GrantedConfig { config, compression })
    }

    async fn by_token(
        &mut self,
        text: Zeroizing<String>,
        claimant: Option<Claimant>,
        version: SpecVersion,
        awaited: &Awaited,
    ) -> Result<Arc<RenderedConfig>, Refusal> {
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        self.record.shown = ShownEvidence::Token;
        let of = pool.name().to_owned();
        let refused = move || Refusal::token_not_accepted(&of);
        // A pool that accepts no tokens does not look at one.
        if pool.grants.token == Earns::Refuse {
            return Err(refused());
        }
        let (of, shown) = (pool.name().to_owned(), text.clone());
        let looked = self
            .endpoint
            .store
            .read(move |transaction| tokens::open(transaction, &shown, &of, peer, now));
        let token = looked.await.map_err(|error| match error {
            TokenError::Invalid => self.endpoint.guesses.count_failure(peer, now, error.into()),
            error => error.into(),
        })?;
        self.record.name = Some(token.name().to_owned());
        let giving = self.giving(pool.grants.token, version, awaited, &refused)?;
        self.transact(move |transaction, record| {
            let token = tokens::open(transaction, &text, giving.pool.name(), peer, now)?;
            let node = claimant
                .as_ref()
                .map_or(tokens::TokenHolder::Unknown, tokens::TokenHolder::Claimant);
            let redeemed = token.redeem(transaction, node)?;
            record.use_number = Some(redeemed.use_number());
            record.again = redeemed.is_repeated();
            record.alerts.extend(redeemed.stale().map(str::to_owned));
            let grant = Grant::for_token(&giving.pool.grants, &redeemed).ok_or_else(&refused)?;
            giving.give(record, &grant)
        })
        .await
    }

    async fn by_certificate(
        &mut self,
        presented: &PresentedCertificate,
        version: SpecVersion,
        awaited: &Awaited,
    ) -> Result<Arc<RenderedConfig>, Refusal> {
        let (endpoint, record) = (self.endpoint, &mut self.record);
        let ConfigAsked { pool, peer, now, .. } = self.asked;
        record.shown = ShownEvidence::Kubelet;
        let tls = endpoint.tls.current();
        if endpoint.tls.awaits_client_authorities(&tls) {
            return Err(Refusal::kubelet_ca_untold());
        }
        let (verification, source) = (&endpoint.admission.verification, endpoint.admission.source(peer));
        let examined = kubelet::examine(verification, &tls.client_authorities, pool, presented, source, now).await?;
        record.basis = Some(Box::new(examined.basis));
        self.large_parts = examined.large_parts;
        let verified = examined.verified.map_err(|error| match error.path() {
            // A stranger's: it fills the log as a wrong token does.
            [] => endpoint.guesses.count_failure(peer, now, error.into()),
            _ => error.into(),
        })?;
        record.identity = Some(verified.identity());
        record.name = Some(verified.name().to_owned());
        record.reason = kubelet::reason(&verified);
        let (of, refused) = (Arc::clone(pool), || Refusal::kubelet_not_accepted(pool.name()));
        // Whether the node is the pool's is said before whether the pool gives it anything.
        let giving = match pool.grants.kubelet {
            Earns::Refuse => None,
            earns => Some(self.giving(earns, version, awaited, refused)?),
        };
        self.transact(move |transaction, record| {
            let grant = kubelet::grant(transaction, &of, &verified, now)?;
            giving.as_ref().ok_or_else(Refusal::unavailable)?.give(record, &grant)
        })
        .await
    }
}

/// A config that was granted, and how it is sent.
struct GrantedConfig {
    config: Arc<RenderedConfig>,
    /// Compression of the body. It is not negotiated by `Accept-Encoding`: Ignition undoes what its pointer names.
    compression: Option<ConfigCompression>,
}

impl GrantedConfig {
    const fn plain(config: Arc<RenderedConfig>) -> Self {
        Self { config, compression: None }
    }

    async fn serve(&self, headers: &HeaderMap) -> Response {
        let Self { config, compression } = self;
        match compression {
            None => serve(config.bytes.clone(), "application/json", &format!("\"{}\"", config.sha256), headers),
            Some(ConfigCompression::Gzip) => match compressed(config).await {
                Some(body) => serve(body, "application/gzip", &format!("\"{}.gzip\"", config.sha256), headers),
                None => problem::empty_503(),
            },
        }
    }
}

/// Answers like a Machine Config Server. The body is never empty: Ignition would read that as an empty config. Only a client that sends
/// `If-None-Match` can get 304; Ignition never sends it.
fn serve(body: Bytes, kind: &'static str, etag: &str, headers: &HeaderMap) -> Response {
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
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    (common, kind, Body::from(body)).into_response()
}
