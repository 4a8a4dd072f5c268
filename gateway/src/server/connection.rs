//! One connection: whose it is, its place, its handshake, its requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::pace::Paced;
use super::proxy_protocol::{self, HeaderError, Whose};
use super::refused;
use super::said::Said;
use crate::admission::{Admission, Entered, NoRoom, Place, Unnamed};
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
    /// Whose connections say first whose they are.
    pub balancers: Vec<IpNet>,
    pub admission: Arc<Admission>,
    pub clock: Clock,
    pub tls: Arc<LiveTls>,
    pub metrics: Arc<Metrics>,
    /// Who was said to refuse the MCS certificate.
    pub refused: Said,
    /// Which balancers were said not to say whose their connections are.
    pub unnamed: Said,
    pub router: Router,
}

/// A connection that was let in.
pub(super) enum Arrived {
    /// From whoever opened it.
    Itself(Entered),
    /// From a balancer, which has to say for whom.
    ByBalancer(Unnamed),
}

impl ConnectionService {
    /// Lets a connection in. Nobody else waits for it here.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(super) fn arrive(&self, address: IpAddr) -> Result<Arrived, NoRoom> {
        let connections = &self.admission.connections;
        match self.balancers.iter().any(|balancer| balancer.contains(&address)) {
            true => Ok(Arrived::ByBalancer(connections.enter_unnamed(address.into())?)),
            false => Ok(Arrived::Itself(connections.enter(address.into())?)),
        }
    }

    /// One connection: whose it is, and then its requests.
    pub(super) async fn accept(&self, mut stream: TcpStream, address: SocketAddr, arrived: Arrived, watcher: Watcher) {
        let (peer, entered) = match arrived {
            Arrived::Itself(entered) => (address, Ok(entered)),
            Arrived::ByBalancer(unnamed) => {
                let Some(peer) = self.peer_by_balancer(&mut stream, address, &unnamed).await else {
                    return;
                };
                (peer, self.admission.connections.enter(peer.ip().into()))
            }
        };
        match entered {
            Ok(entered) => self.with_place(stream, peer, entered, watcher).await,
            Err(NoRoom) => tracing::debug!(%peer, "closed: there is no place for it, and too many wait for one"),
        }
    }

    /// What the balancer says of this connection: from here on that is where it comes from. `None` if it is to be closed.
    async fn peer_by_balancer(&self, stream: &mut TcpStream, balancer: SocketAddr, unnamed: &Unnamed) -> Option<SocketAddr> {
        let header = tokio::time::timeout(self.limits.handshake, proxy_protocol::read(stream));
        let whose = tokio::select! {
            whose = header => whose.unwrap_or(Err(HeaderError::Late)),
            () = unnamed.evicted() => {
                tracing::debug!(%balancer, "closed: it has not said whose it is, and others are to say so");
                return None;
            }
        };
        match whose {
            Ok(Whose::Own) => Some(balancer),
            Ok(Whose::Of(peer)) => Some(peer),
            Err(error) => {
                if self.unnamed.is_worth_saying(balancer.ip(), self.clock.now().as_secs()) {
                    tracing::warn!(
                        "closed a connection of {balancer}, which is in proxy_protocol_from and has to begin with a header of the PROXY protocol, version 2: {error}"
                    );
                }
                None
            }
        }
    }

    /// One connection, once it has a place.
    async fn with_place(&self, stream: TcpStream, peer: SocketAddr, entered: Entered, watcher: Watcher) {
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
