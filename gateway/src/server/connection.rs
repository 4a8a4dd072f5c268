//! One connection: its place, its handshake, its requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::pace::Paced;
use super::refused::{self, Refused};
use crate::admission::{Entered, NoRoom, Place};
use crate::api::Peer;
use crate::clock::Clock;
use crate::credentials::kubelet::Presented;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::settings::Limits;

/// Largest request head: a ticket, and whatever proxies add.
const HEAD_LIMIT_BYTES: usize = 16 * 1024;
/// How long a connection may last: a large config over a slow line, and no longer, so that clients that do not read cannot hold on to
/// connections for ever.
const CONNECTION_LIMIT: Duration = Duration::from_secs(600);

/// What connections have in common.
pub(super) struct ConnectionService {
    pub limits: Limits,
    pub clock: Clock,
    pub tls: Arc<LiveTls>,
    pub metrics: Arc<Metrics>,
    pub refused: Refused,
    pub router: Router,
}

impl ConnectionService {
    /// One connection, once it has a place.
    pub(super) async fn accept(&self, stream: TcpStream, peer: SocketAddr, entered: Entered, watcher: Watcher) {
        match entered.place().await {
            Ok(place) => self.serve(stream, peer, place, watcher).await,
            Err(NoRoom) => tracing::debug!(%peer, "closed: there was no place for it in time"),
        }
    }

    /// One connection, until its end or until another takes its place.
    async fn serve(&self, stream: TcpStream, peer: SocketAddr, place: Place, watcher: Watcher) {
        tokio::select! {
            () = self.requests(stream, peer, place.clone(), watcher) => {}
            () = place.taken() => tracing::debug!(%peer, "closed: idle, and another connection needs its place"),
        }
    }

    /// The handshake, then the requests.
    async fn requests(&self, stream: TcpStream, peer: SocketAddr, place: Place, watcher: Watcher) {
        let limits = &self.limits;
        // Latency is all that this costs, and a whole config is written at once.
        drop(stream.set_nodelay(true));
        // Whatever changes from now on, this connection goes on with what it began with.
        let tls = TlsAcceptor::from(Arc::clone(&self.tls.current().config));
        let stream = match tokio::time::timeout(limits.handshake, tls.accept(Paced::new(stream))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.handshake_failed(peer, &error),
            Err(_) => return tracing::debug!(%peer, "TLS handshake took too long"),
        };
        let presented = stream.get_ref().1.peer_certificates().map(Presented::new);
        // Not a layer of the router, which would wrap every route anew for each connection.
        let router = self.router.clone();
        let service = TowerToHyperService::new(router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(place.clone());
            if let Some(presented) = &presented {
                request.extensions_mut().insert(presented.clone());
            }
            request.map(axum::body::Body::new)
        }));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_buf_size(HEAD_LIMIT_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(CONNECTION_LIMIT, watcher.watch(connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "connection ended"),
            Err(_) => tracing::debug!(%peer, "connection lasted too long"),
        }
    }

    fn handshake_failed(&self, peer: SocketAddr, error: &std::io::Error) {
        let Some(alert) = refused::alert(error) else {
            return tracing::debug!(%peer, %error, "TLS handshake failed");
        };
        self.metrics.tls_refused_by_client();
        if self.refused.is_worth_saying(peer.ip(), self.clock.now().as_secs()) {
            let current = self.tls.current();
            let leaf = current.serving.chain().first();
            let dates = leaf.map_or((0, u64::MAX), |leaf| (leaf.not_before, leaf.not_after));
            tracing::warn!("{peer} refuses the MCS certificate ({alert:?}): {}", refused::hint(alert, dates));
        }
    }
}
