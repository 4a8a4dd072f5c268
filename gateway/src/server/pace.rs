//! Limit for clients that read too slowly: an answer that does not leave holds memory here and in the kernel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Time in which a peer that lags has to take the next [`LEAST_BYTES`].
const WINDOW: Duration = Duration::from_secs(10);
/// Least bytes that a peer has to take in that time: 50 kbit/s. A large config then takes some minutes.
const LEAST_BYTES: usize = 64 * 1024;

/// Stream whose peer has to read fast enough.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    pause: Duration,
    window: Pin<Box<Sleep>>,
    /// Bytes that the peer has taken in this window; `None` while it does not lag.
    taken: Option<usize>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self::within(stream, WINDOW)
    }

    fn within(stream: S, pause: Duration) -> Self {
        Self {
            stream,
            pause,
            window: Box::pin(sleep_until(Instant::now() + pause)),
            taken: None,
        }
    }

    /// Fails a pending write with `TimedOut` if the peer has taken too little in its window.
    fn keep_pace(&mut self, written: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.taken = self.taken.map(|taken| taken.saturating_add(*bytes));
        }
        if written.is_ready() {
            return written;
        }
        let next = Instant::now() + self.pause;
        let taken = *self.taken.get_or_insert_with(|| {
            self.window.as_mut().reset(next);
            0
        });
        ready!(self.window.as_mut().poll(context));
        if taken < LEAST_BYTES {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
        }
        self.taken = Some(0);
        self.window.as_mut().reset(next);
        // So that this is called again when the next window is over.
        let _ = self.window.as_mut().poll(context);
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.keep_pace(written, context)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffers: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.keep_pace(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        // Everything that there was is gone: whatever comes next begins anew.
        self.taken = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn attack_38_a_client_that_stops_reading_is_disconnected() {
        let (stream, peer) = duplex(LEAST_BYTES / 2);
        let mut paced = Paced::within(stream, Duration::from_millis(10));
        let error = paced.write_all(&vec![7; 10 * LEAST_BYTES]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(peer);
    }

    #[tokio::test]
    async fn a_reading_client_survives_idle_periods() {
        let (stream, mut peer) = duplex(1024);
        let mut paced = Paced::within(stream, Duration::from_secs(60));
        let sent = vec![7; 10 * LEAST_BYTES];
        for _ in 0..3 {
            let mut read = vec![0; sent.len()];
            let send = async {
                paced.write_all(&sent).await.unwrap();
                paced.flush().await.unwrap();
            };
            let (received, ()) = tokio::join!(peer.read_exact(&mut read), send);
            assert_eq!(received.unwrap(), sent.len());
            assert_eq!(paced.taken, None, "what comes next begins anew");
        }
    }
}
