//! Life of a connection: peer address, turn, place, handshake, requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_certificates::kubelet::PresentedCertificate;
use attest_system::clock::Clock;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::pace::Paced;
use super::proxy_protocol::{self, ConnectionOwner, HeaderError};
use super::recent_warnings::RecentWarnings;
use super::refused;
use crate::admission::{Admission, Begun, ConnectionSlot, Handshake, NoRoom, Unnamed, WaitingConnection};
use crate::api::Peer;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::settings::Limits;

/// Largest request head, in bytes: a ticket, and headers that proxies add.
const HEAD_LIMIT_BYTES: usize = 16 * 1024;
/// Longest life of a connection: long enough for a large config over a slow line. Clients that do not read cannot hold on to connections
/// for ever.
const CONNECTION_LIMIT: Duration = Duration::from_secs(600);

/// Time for which a handshake keeps others from beginning theirs, unless its request comes earlier. A client that goes on takes a few ms;
/// waiting for one that does not needs no processor.
const HANDSHAKE_TURN: Duration = Duration::from_millis(100);

/// Wait after which it is logged that nodes wait: Ignition gives up a handshake after 10 s, and asks again.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept: the process is out of file descriptors, and trying at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// State that all connections share.
pub(super) struct ConnectionService {
    pub limits: Limits,
    /// Networks of balancers, whose connections begin with a PROXY protocol header.
    pub balancers: Vec<IpNet>,
    pub admission: Arc<Admission>,
    pub clock: Clock,
    pub tls: Arc<LiveTls>,
    pub metrics: Arc<Metrics>,
    /// Peers for which it was logged lately that they refuse the MCS certificate.
    pub refused: RecentWarnings,
    /// Balancers for which it was logged lately that the PROXY protocol header is missing.
    pub unnamed: RecentWarnings,
    /// Limits the warning that handshakes wait.
    pub waits: RecentWarnings,
    pub router: Router,
}

/// A connection that was let in.
pub(super) enum Arrived {
    /// The client opened it directly.
    Itself(WaitingConnection),
    /// A balancer opened it, and has to name the client.
    ByBalancer(Unnamed),
}

impl ConnectionService {
    /// Accepts the next connection for which there is room.
    pub(super) async fn next(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, Arrived) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            match self.arrive(peer.ip()) {
                Ok(arrived) => return (stream, peer, arrived),
                Err(NoRoom) => tracing::debug!(%peer, "closed: too many connections wait for their handshake"),
            }
        }
    }

    /// Admits a connection, without waiting, so that others can be accepted.
    ///
    /// # Errors
    /// [`NoRoom`].
    fn arrive(&self, address: IpAddr) -> Result<Arrived, NoRoom> {
        let connections = &self.admission.connections;
        match self.is_balancer(address) {
            true => Ok(Arrived::ByBalancer(connections.enter_unnamed(address.into())?)),
            false => Ok(Arrived::Itself(connections.enter(self.admission.source(address))?)),
        }
    }

    fn is_balancer(&self, address: IpAddr) -> bool {
        self.balancers.iter().any(|balancer| balancer.contains(&address))
    }

    /// Handles a connection: determines its peer, and then serves its requests.
    pub(super) async fn accept(&self, mut stream: TcpStream, address: SocketAddr, arrived: Arrived, watcher: Watcher) {
        let (peer, waiting) = match arrived {
            Arrived::Itself(waiting) => (address, Ok(waiting)),
            Arrived::ByBalancer(unnamed) => {
                let Some(peer) = self.peer_by_balancer(&mut stream, address, &unnamed).await else {
                    return;
                };
                (peer, self.admission.connections.enter(self.admission.source(peer.ip())))
            }
        };
        let Ok(waiting) = waiting else {
            return tracing::debug!(%peer, "closed: too many connections wait for their handshake");
        };
        match self.let_in(&stream, peer.ip(), waiting).await {
            // What waits is small: all that a connection needs comes here.
            Ok((handshake, place)) => Box::pin(self.serve(stream, peer, handshake, place, watcher)).await,
            Err(why) => tracing::debug!(%peer, "closed: {why}"),
        }
    }

    /// Reads the balancer's header, and returns the client's address, which replaces the balancer's from here on. `None` if the connection
    /// is to be closed.
    async fn peer_by_balancer(&self, stream: &mut TcpStream, balancer: SocketAddr, unnamed: &Unnamed) -> Option<SocketAddr> {
        let header = tokio::time::timeout(self.limits.handshake, proxy_protocol::read(stream));
        let whose = tokio::select! {
            whose = header => whose.unwrap_or(Err(HeaderError::Late)),
            () = unnamed.evicted() => {
                tracing::debug!(%balancer, "closed: PROXY protocol header missing while other connections wait");
                return None;
            }
        };
        match whose {
            Ok(ConnectionOwner::Own) => Some(balancer),
            Ok(ConnectionOwner::Of(peer)) => Some(peer),
            Err(error) => {
                if self.unnamed.is_worth_saying(balancer.ip(), self.clock.now().as_secs()) {
                    tracing::warn!(
                        "closed a connection from {balancer}, which is in proxy_protocol_from: no valid PROXY protocol v2 header: {error}"
                    );
                }
                None
            }
        }
    }

    /// Waits for the connection's first byte, and for its turn; the error is the reason for which it has none.
    async fn let_in(
        &self,
        stream: &TcpStream,
        peer: IpAddr,
        waiting: WaitingConnection,
    ) -> Result<(Handshake, ConnectionSlot), &'static str> {
        let turn = async {
            // Who says nothing takes nobody's turn.
            let first = tokio::time::timeout(self.limits.handshake, stream.peek(&mut [0])).await;
            if !matches!(first, Ok(Ok(1..))) {
                return Err("the client sent nothing");
            }
            let (source, since) = (waiting.source(), Instant::now());
            // A balancer's own connections look whether this gateway lives.
            let known = self.is_balancer(peer) || self.admission.trusted_sources.knows(peer, since);
            let _waits = self.metrics.handshake_waits();
            loop {
                let handshake = self.admission.handshakes.begin(source, known).await;
                if let Ok(place) = waiting.place(known) {
                    self.warn_if_long(since.elapsed());
                    return Ok((handshake, place));
                }
                // Others may find one: nobody keeps a turn that he cannot take.
                drop(handshake);
                waiting.room().await;
            }
        };
        tokio::select! {
            turn = turn => turn,
            () = waiting.evicted() => Err("too many connections wait, and this one was evicted"),
            // At once, so that its place in the line is its source's next one's, and not lost with it.
            () = hung_up(stream) => Err("the client hung up while it waited for its handshake"),
        }
    }

    /// Warns about a long wait, so that an administrator knows why nodes are late.
    fn warn_if_long(&self, waited: Duration) {
        let line = long_wait(waited, || self.admission.handshakes.waiting());
        let Some(line) = line else { return };
        if self.waits.is_worth_saying(Ipv4Addr::UNSPECIFIED.into(), self.clock.now().as_secs()) {
            tracing::warn!("{line}");
        }
    }

    /// Serves a connection until its end, or until another takes its place.
    async fn serve(&self, stream: TcpStream, peer: SocketAddr, handshake: Handshake, place: ConnectionSlot, watcher: Watcher) {
        let begun = Begun::from(handshake);
        let over = async {
            tokio::time::sleep(HANDSHAKE_TURN).await;
            begun.done();
            std::future::pending().await
        };
        tokio::select! {
            () = self.requests(stream, peer, begun.clone(), place.clone(), watcher) => {}
            () = over => {}
            () = place.taken() => tracing::debug!(%peer, "closed: idle, and another connection needs its slot"),
        }
    }

    /// Does the handshake, and then serves the requests.
    async fn requests(&self, stream: TcpStream, peer: SocketAddr, begun: Begun, place: ConnectionSlot, watcher: Watcher) {
        let limits = &self.limits;
        // Latency is all that this costs, and a whole config is written at once.
        drop(stream.set_nodelay(true));
        // Whatever changes from now on, this connection goes on with what it began with.
        let tls = TlsAcceptor::from(Arc::clone(&self.tls.current().config));
        let arrived = Instant::now();
        let stream = match tokio::time::timeout(limits.handshake, tls.accept(Paced::new(stream))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.handshake_failed(peer, &error),
            Err(_) => return tracing::debug!(%peer, "TLS handshake took too long"),
        };
        self.metrics.tls_handshake(arrived.elapsed());
        let presented = stream.get_ref().1.peer_certificates().map(PresentedCertificate::new);
        // Not a layer of the router, which would wrap every route anew for each connection.
        let router = self.router.clone();
        let service = TowerToHyperService::new(router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
            // What this connection is for begins: its turn at work is the request's now.
            begun.done();
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
        let now = self.clock.now().as_secs();
        if self.refused.is_worth_saying(peer.ip(), now) {
            let current = self.tls.current();
            let leaf = current.serving.chain().first();
            let dates = leaf.map_or((0, u64::MAX), |leaf| (leaf.not_before, leaf.not_after));
            tracing::warn!(
                "{peer} refuses the MCS certificate ({alert:?}): {}",
                refused::hint(alert, dates, now)
            );
        }
    }
}

/// Returns the warning about a connection that has waited for so long, and about those that wait.
fn long_wait(waited: Duration, others: impl FnOnce() -> usize) -> Option<String> {
    (waited >= LONG_WAIT).then(|| {
        let (seconds, others) = (waited.as_secs(), others());
        format!(
            "connections wait for {seconds} s to be served, {others} at the moment: more nodes boot than this gateway serves at once; they retry and are served in turn"
        )
    })
}

/// Completes when the client is gone, even if there is still something of it to read.
async fn hung_up(stream: &TcpStream) {
    // Urgent bytes are nothing that TLS knows; beside them, what this waits for is the end of what comes.
    drop(stream.ready(Interest::PRIORITY).await);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn logs_only_long_waits() {
        assert_eq!(long_wait(LONG_WAIT - Duration::from_millis(1), || 7), None);
        let line = long_wait(LONG_WAIT, || 7).unwrap();
        assert!(line.contains("for 5 s to be served, 7 at the moment"), "{line}");
    }

    #[tokio::test]
    async fn detects_a_disconnect_behind_unread_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(b"hello").await.unwrap();
        assert_eq!(stream.peek(&mut [0]).await.unwrap(), 1);
        let mut gone = Box::pin(hung_up(&stream));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(client);
        gone.await;
    }
}
