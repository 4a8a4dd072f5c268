//! Bodies of requests, read before anything that others need is held: bounded in memory, in time, and in how slow a sender may be.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt;
use tokio::time::Instant;

use super::ClientSource;
use super::fair_share::{NoRoom, ShareGuard, Shares};

/// Time that a sender may take for a body of any size. A node sends its body at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum rate after that, in bytes per second: the largest body over a line of half a megabit takes half a minute.
const RATE_BYTES: u64 = 64 * 1024;

/// All bodies under way, and those that are worked on.
#[derive(Debug)]
pub struct Bodies {
    memory: Shares,
    /// Limit for a whole body, however fast it arrives.
    limit: Duration,
}

/// A body that is there whole, and the room that it takes.
#[derive(Debug)]
pub struct ReadBody {
    pub bytes: Bytes,
    /// Given back with it.
    pub room: Option<ShareGuard>,
    /// Time that it has waited for memory.
    pub waited: Duration,
}

/// Reason why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBody {
    /// It is larger than it may be.
    TooLarge,
    /// The connection ended before it did.
    Broken,
    /// It did not come in time.
    TooSlow,
    /// There is not enough memory for it.
    NoRoom,
}

impl From<NoRoom> for NoBody {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl Bodies {
    /// Limits all bodies to `bytes` in total, and each to `limit`.
    #[must_use]
    pub fn new(bytes: usize, limit: Duration) -> Self {
        Self {
            memory: Shares::new(bytes),
            limit,
        }
    }

    /// Returns the memory in use, in bytes.
    #[must_use]
    pub fn used(&self) -> usize {
        self.memory.used()
    }

    /// Reads a body of at most `most` bytes; with 0 it reads nothing, whatever was sent. A body that is too large is read up to that. It is
    /// not refused for its announced length: a client that still sends would not see the answer. If memory is short for the announced
    /// length, it waits up to `patience` for some; meanwhile the kernel buffers what the client sends. A body of unknown length takes
    /// memory as it arrives.
    ///
    /// # Errors
    /// [`NoBody`].
    pub async fn read(&self, source: ClientSource, body: Body, most: usize, patience: Duration) -> Result<ReadBody, NoBody> {
        if body.is_end_stream() || most == 0 {
            return Ok(ReadBody {
                bytes: Bytes::new(),
                room: None,
                waited: Duration::ZERO,
            });
        }
        let asked = Instant::now();
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(most).min(most);
        let taken = self.memory.acquire_with(source, || self.take(source, announced));
        let Ok(room) = tokio::time::timeout(patience, taken).await else {
            return Err(NoBody::NoRoom);
        };
        let start = Instant::now();
        let mut bytes: Vec<u8> = Vec::with_capacity(announced);
        let mut stream = body.into_data_stream();
        loop {
            room.waits(start.into_std());
            let chunk = tokio::select! {
                biased;
                () = room.evicted() => return Err(NoBody::NoRoom),
                chunk = tokio::time::timeout_at(self.deadline(start, bytes.len()), stream.next()) => chunk,
            };
            room.works();
            let chunk = match chunk {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(_))) => return Err(NoBody::Broken),
                Ok(None) => break,
                Err(_) => return Err(NoBody::TooSlow),
            };
            let length = bytes.len().saturating_add(chunk.len());
            if length > most {
                return Err(NoBody::TooLarge);
            }
            if length > bytes.capacity() {
                // Doubled, so that a long body is not copied again for each piece of it.
                let capacity = length.max(bytes.capacity().saturating_mul(2).min(most));
                room.grow(capacity - bytes.capacity(), Instant::now().into_std())?;
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(ReadBody {
            bytes: bytes.into(),
            room: Some(room),
            waited: start - asked,
        })
    }

    fn take(&self, source: ClientSource, bytes: usize) -> Result<ShareGuard, NoRoom> {
        let room = self.memory.enter(source);
        room.grow(bytes, Instant::now().into_std())?;
        Ok(room)
    }

    fn deadline(&self, start: Instant, arrived: usize) -> Instant {
        let earned = Duration::from_secs(u64::try_from(arrived).unwrap_or(u64::MAX) / RATE_BYTES);
        start + PATIENCE.saturating_add(earned).min(self.limit)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::Error;
    use futures_util::{FutureExt, stream};
    use hyper::body::{Frame, SizeHint};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const MOST: usize = 1000;

    fn source(number: u32) -> ClientSource {
        Ipv4Addr::from_bits(number).into()
    }

    fn body(pieces: &[usize]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|size| Ok::<_, Error>(Bytes::from(vec![7; *size]))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    /// Returns a body whose last piece never comes.
    fn unfinished(size: usize) -> Body {
        let first = stream::iter([Ok::<_, Error>(Bytes::from(vec![7; size]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn reads_a_body_up_to_its_limit() {
        let bodies = Bodies::new(10 * MOST, LONG);
        for (pieces, expected) in [
            (&[][..], Ok(0)),
            (&[1], Ok(1)),
            (&[MOST], Ok(MOST)),
            (&[MOST / 2, MOST / 2], Ok(MOST)),
            (&[MOST + 1], Err(NoBody::TooLarge)),
            (&[MOST, 1], Err(NoBody::TooLarge)),
        ] {
            let read = bodies.read(source(1), body(pieces), MOST, LONG).await;
            assert_eq!(read.map(|whole| whole.bytes.len()), expected, "{pieces:?}");
        }
        let broken = Body::from_stream(stream::iter([Ok(Bytes::from_static(b"{")), Err(Error::new("reset"))]));
        assert_eq!(bodies.read(source(1), broken, MOST, LONG).await.unwrap_err(), NoBody::Broken);
        let whole = bodies.read(source(1), body(&[MOST]), MOST, LONG).await.unwrap();
        assert!(bodies.memory.enter(source(2)).grow(10 * MOST, Instant::now().into_std()).is_err());
        drop(whole);
        assert!(bodies.memory.enter(source(2)).grow(10 * MOST, Instant::now().into_std()).is_ok());
    }

    #[tokio::test]
    async fn aborts_a_stalled_body() {
        let bodies = Bodies::new(10 * MOST, Duration::from_millis(1));
        assert_eq!(
            bodies.read(source(1), unfinished(9), MOST, LONG).await.unwrap_err(),
            NoBody::TooSlow
        );
    }

    #[test]
    fn body_deadline_grows_with_received_bytes() {
        let bodies = Bodies::new(MOST, Duration::from_secs(30));
        let start = Instant::now();
        let check = |arrived: usize, seconds: u64| assert_eq!(bodies.deadline(start, arrived) - start, Duration::from_secs(seconds));
        check(0, 10);
        check(64 * 1024, 11);
        check(1024 * 1024, 26);
        check(2 * 1024 * 1024, 30);
    }

    /// Returns a body that announces `length` bytes, of which `come` arrive.
    fn announced(length: usize, come: usize) -> Body {
        struct Announced(usize, usize);
        impl HttpBody for Announced {
            type Data = Bytes;
            type Error = Error;
            fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
                match std::mem::take(&mut self.1) {
                    0 if self.0 == 0 => Poll::Ready(None),
                    0 => Poll::Pending,
                    come => {
                        self.0 -= come;
                        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; come])))))
                    }
                }
            }
            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(u64::try_from(self.0).unwrap())
            }
        }
        Body::new(Announced(length, come))
    }

    #[tokio::test]
    async fn reserves_the_announced_content_length_before_reading() {
        let bodies = Bodies::new(10 * MOST, LONG);
        let (most, half) = (10 * MOST, 5 * MOST);
        let first = bodies.read(source(1), announced(half + 1, half + 1), most, LONG).await.unwrap();
        assert_eq!(
            (
                first.bytes.len(),
                bodies.memory.enter(source(2)).grow(half, Instant::now().into_std())
            ),
            (half + 1, Err(NoRoom))
        );
        // None of it is read before there is room for all of it: what two have halves of is nobody's.
        let mut second = Box::pin(bodies.read(source(2), announced(half, half), most, LONG));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.now_or_never().unwrap().unwrap();
        assert_eq!(second.bytes.len(), half);
        // Which is a part of the time that its sender has.
        assert!(second.waited > Duration::ZERO);
        drop(second);
        // Nobody has more for it than it may have, whatever it announces.
        let whole = bodies.read(source(2), announced(100 * MOST, MOST + 1), MOST, LONG).await;
        assert_eq!(whole.unwrap_err(), NoBody::TooLarge);
    }

    #[tokio::test]
    async fn refuses_a_body_without_memory_in_time() {
        let bodies = Bodies::new(MOST, LONG);
        let held = bodies.read(source(1), announced(1, 1), MOST, LONG).await.unwrap();
        let refused = bodies.read(source(1), announced(MOST, MOST), MOST, Duration::from_millis(1)).await;
        assert_eq!(refused.unwrap_err(), NoBody::NoRoom);
        drop(held);
    }

    #[tokio::test]
    async fn attack_40_large_content_lengths_without_data_block_no_node() {
        let bodies = std::sync::Arc::new(Bodies::new(10 * MOST, LONG));
        let mut held = Vec::new();
        for source_number in 0..5 {
            let bodies = std::sync::Arc::clone(&bodies);
            held.push(tokio::spawn(async move {
                bodies.read(source(source_number), announced(2 * MOST, 0), 2 * MOST, LONG).await
            }));
            tokio::task::yield_now().await;
        }
        let node = bodies.read(source(7), announced(MOST, MOST), MOST, LONG).now_or_never();
        assert_eq!(node.unwrap().unwrap().bytes.len(), MOST);
        tokio::task::yield_now().await;
        assert_eq!(held.iter().filter(|one| one.is_finished()).count(), 1);
    }

    #[tokio::test]
    async fn attack_40_unfinished_bodies_make_room_for_others() {
        let bodies = std::sync::Arc::new(Bodies::new(3 * MOST, LONG));
        let mut held = Vec::new();
        for _ in 0..3 {
            let bodies = std::sync::Arc::clone(&bodies);
            held.push(tokio::spawn(
                async move { bodies.read(source(66), unfinished(MOST), MOST, LONG).await },
            ));
            // On one thread, it has read what there is when it is this one's turn again.
            tokio::task::yield_now().await;
        }
        let whole = bodies.read(source(7), body(&[MOST]), MOST, LONG).await.unwrap();
        assert_eq!(whole.bytes.len(), MOST);
        assert_eq!(held.remove(0).await.unwrap().unwrap_err(), NoBody::NoRoom);
        assert!(held.iter().all(|one| !one.is_finished()));
    }
}
