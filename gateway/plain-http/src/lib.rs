//! The port for health and metrics: plain HTTP, for monitoring and for the kubelet.
//!
//! Clients of the port are unauthenticated, so the number of connections is limited. Beyond the limit, each new connection closes the
//! oldest one. A response takes milliseconds, so idle connections are closed first, and no number of them keeps monitoring out.

#![deny(unreachable_pub)]

mod exposition;
mod process;
mod table;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use exposition::exposition;
pub use process::ProcessMetrics;
pub use prometheus_client::registry::Registry;
pub use table::{Instrument, Metric, MetricKind, MetricRow, Series};

/// Maximum number of open connections.
pub const CONNECTION_LIMIT: usize = 64;

/// Serves requests for as long as it is polled.
///
/// # Errors
/// None is known of: a connection that cannot be accepted is tried again.
pub async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    let limited = Limited {
        listener,
        places: Arc::new(Semaphore::new(CONNECTION_LIMIT)),
        open: VecDeque::new(),
    };
    axum::serve(limited, router).await
}

/// A listener with at most [`CONNECTION_LIMIT`] connections.
struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// Handles of the connections, the oldest first: dropping one ends its connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|connection| !connection.is_closed());
        if self.places.available_permits() == 0 {
            self.open.pop_front();
        }
        let place = Arc::clone(&self.places).acquire_owned().await;
        let (sender, ended) = oneshot::channel();
        self.open.push_back(sender);
        let connection = Connection {
            stream,
            ended,
            // Nobody closes the semaphore.
            _place: place.ok(),
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its handle is dropped.
struct Connection {
    stream: TcpStream,
    ended: oneshot::Receiver<()>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Returns the stream, unless the handle was dropped; the task is woken when it is.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        match pin!(&mut self.ended).poll(context) {
            Poll::Ready(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    /// Longer than any answer takes.
    const LIMIT: Duration = Duration::from_secs(60);

    async fn listening() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // Larger than what the kernel holds of an answer that nobody reads.
        let large = || async { "x".repeat(16 << 20) };
        let router = Router::new().route("/healthz", get(async || "well")).route("/large", get(large));
        tokio::spawn(serve(listener, router));
        address
    }

    /// Opens a connection and writes the request.
    async fn opened(address: SocketAddr, request: &[u8]) -> TcpStream {
        let mut stream = timeout(LIMIT, TcpStream::connect(address)).await.unwrap().unwrap();
        // A connection that was ended is no failure here.
        let _ = stream.write_all(request).await;
        stream
    }

    async fn answer(address: SocketAddr) -> String {
        let mut stream = opened(address, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let mut answer = String::new();
        timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    /// Returns whether the server has ended the connection.
    async fn is_ended(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        let read = timeout(Duration::from_millis(1), stream.read(&mut byte)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn idle_connections_do_not_block_requests() {
        for request in [&b""[..], b"GET /hea", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let address = listening().await;
            let mut idle = Vec::new();
            for _ in 0..1000 {
                idle.push(opened(address, request).await);
            }
            assert!(answer(address).await.ends_with("well"));
            if request.starts_with(b"GET /large") {
                // What is left of an answer stands before the end.
                continue;
            }
            let mut open = 0;
            for stream in &mut idle {
                open += usize::from(!is_ended(stream).await);
            }
            assert!((1..=CONNECTION_LIMIT).contains(&open), "{open} are open");
        }
    }

    #[tokio::test]
    async fn connections_below_the_limit_stay_open() {
        let address = listening().await;
        let mut idle = Vec::new();
        for _ in 1..CONNECTION_LIMIT {
            idle.push(opened(address, b"").await);
        }
        for _ in 0..200 {
            assert!(answer(address).await.ends_with("well"));
        }
        for stream in &mut idle {
            assert!(!is_ended(stream).await);
        }
    }
}
