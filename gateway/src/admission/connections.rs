//! Connections: those that wait, which cost a socket and no more, and those that have a place. One more than there may be takes the place of one
//! on which nothing is being done.

use std::sync::Arc;
use std::time::Instant;

use super::ClientSource;
use super::fair_share::{NoRoom, ShareGuard, Shares};
use crate::metrics::LimitUsage;

/// Maximum number of connections of balancers that have not named their client yet. A storm brings as many at once, as each lasts until the
/// balancer's next few bytes. Each costs a socket and no more.
const UNNAMED_LIMIT: usize = 1024;

/// Divisor of the number of places: one part of so many is reserved for known sources. If many clients are slow, a source that has proven
/// something does not wait behind them for its next step.
const KNOWN_PART: usize = 4;

/// All connections, with and without a place.
#[derive(Debug)]
pub struct Connections {
    places: Shares,
    at_once: usize,
    waiting: Shares,
    unnamed: Shares,
}

/// A connection that has been accepted, and has no place yet.
#[derive(Debug)]
pub struct WaitingConnection {
    places: Shares,
    /// Number of places reserved for known sources.
    known_places: usize,
    source: ClientSource,
    waits: ShareGuard,
}

/// Connection of a balancer that has not named its client yet.
#[derive(Debug)]
pub struct Unnamed(ShareGuard);

/// Place of one connection. It is given back with the last copy.
#[derive(Debug, Clone)]
pub struct ConnectionSlot(Arc<ShareGuard>);

/// Guard of a connection that the gateway works for: while it exists, its place cannot be taken.
#[derive(Debug)]
pub struct Working<'p>(&'p ConnectionSlot);

impl Connections {
    /// Allows `at_once` connections with a place, and `waiting` without.
    #[must_use]
    pub fn new(at_once: usize, waiting: usize) -> Self {
        Self {
            places: Shares::new(at_once),
            at_once,
            waiting: Shares::new(waiting),
            unnamed: Shares::new(UNNAMED_LIMIT),
        }
    }

    /// Adds a balancer's connection that has not named its client yet. It takes no place: the source that it counts for is unknown.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn enter_unnamed(&self, balancer: ClientSource) -> Result<Unnamed, NoRoom> {
        let (share, now) = (self.unnamed.enter(balancer), Instant::now());
        share.grow(1, now)?;
        share.waits(now);
        Ok(Unnamed(share))
    }

    /// Adds a connection of this source, which waits from then on. The call itself does not wait. If all is full, the source with most
    /// waiting connections gives up the one that has waited longest.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn enter(&self, source: ClientSource) -> Result<WaitingConnection, NoRoom> {
        let (waits, now) = (self.waiting.enter(source), Instant::now());
        waits.grow(1, now)?;
        waits.waits(now);
        Ok(WaitingConnection {
            places: self.places.clone(),
            known_places: self.at_once / KNOWN_PART,
            source,
            waits,
        })
    }

    /// Returns the number of connections with a place, of those that wait for one, and of places.
    #[must_use]
    pub fn usage(&self) -> LimitUsage {
        LimitUsage {
            used: self.places.used(),
            waiting: self.waiting.used(),
            most: self.at_once,
        }
    }

    /// Evicts all connections that wait, and lets no others wait.
    pub fn close(&self) {
        self.waiting.close();
        self.unnamed.close();
    }
}

impl WaitingConnection {
    /// Returns the source of the connection.
    #[must_use]
    pub const fn source(&self) -> ClientSource {
        self.source
    }

    /// Completes when this connection has lost its turn to wait.
    pub async fn evicted(&self) {
        self.waits.evicted().await;
    }

    /// Takes a place for the connection: the source with most gives up the connection that has been idle longest. Idle are also those whose
    /// handshake, request or reading of an answer is waited for.
    ///
    /// # Errors
    /// [`NoRoom`], at the moment.
    pub fn place(&self, known: bool) -> Result<ConnectionSlot, NoRoom> {
        let (share, now) = (self.places.enter(self.source), Instant::now());
        share.grow_leaving(1, if known { 0 } else { self.known_places }, now)?;
        share.waits(now);
        Ok(ConnectionSlot(Arc::new(share)))
    }

    /// Completes when there may be a place: one was given back, or others have been idle for longer.
    pub async fn room(&self) {
        self.places.freed(self.source).await;
    }
}

impl Unnamed {
    /// Completes when this connection has lost its turn to name its client.
    pub async fn evicted(&self) {
        self.0.evicted().await;
    }
}

impl ConnectionSlot {
    /// Marks the connection as one that the gateway works for.
    #[must_use]
    pub fn working(&self) -> Working<'_> {
        self.0.works();
        Working(self)
    }

    /// Completes when another connection has taken this one's place.
    pub async fn taken(&self) {
        self.0.evicted().await;
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.0.waits(Instant::now());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    const ATTACKER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
    const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

    async fn place(connections: &Connections, source: Ipv4Addr) -> ConnectionSlot {
        let waiting = connections.enter(source.into()).unwrap();
        loop {
            match waiting.place(true) {
                Ok(place) => return place,
                Err(NoRoom) => waiting.room().await,
            }
        }
    }

    /// Returns whether this source's next connection gets a place at once.
    fn has_place(connections: &Connections, source: Ipv4Addr) -> bool {
        connections.enter(source.into()).unwrap().place(true).is_ok()
    }

    #[tokio::test]
    async fn number_of_waiting_connections_is_limited() {
        const MOST: usize = 100;
        let connections = Connections::new(1, MOST);
        let waiting: Vec<_> = (0..MOST).map(|_| connections.enter(ATTACKER.into()).unwrap()).collect();
        assert_eq!(connections.enter(ATTACKER.into()).unwrap_err(), NoRoom);
        // Another source waits instead of one of them.
        let node = connections.enter(NODE.into()).unwrap();
        let sent_away = waiting.iter().filter(|waiting| waiting.evicted().now_or_never().is_some());
        assert_eq!(sent_away.count(), 1);
        assert!(node.evicted().now_or_never().is_none());
        // What has a place does not wait any longer.
        drop(waiting);
        let place = node.place(true).unwrap();
        drop(node);
        let waiting: Vec<_> = (0..MOST).map(|_| connections.enter(NODE.into()).unwrap()).collect();
        connections.close();
        let sent_away = waiting.iter().filter(|waiting| waiting.evicted().now_or_never().is_some());
        assert_eq!(sent_away.count(), MOST);
        // Nor does one of whom a balancer has only just said whose it is.
        drop(waiting);
        assert_eq!(connections.enter(NODE.into()).unwrap_err(), NoRoom);
        assert_eq!(connections.enter_unnamed(NODE.into()).unwrap_err(), NoRoom);
        assert!(place.taken().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_waiting_connection_gets_a_freed_slot() {
        let connections = Connections::new(2, 100);
        let busy = [place(&connections, ATTACKER).await, place(&connections, ATTACKER).await];
        let working: Vec<_> = busy.iter().map(ConnectionSlot::working).collect();
        assert!(!has_place(&connections, ATTACKER) && !has_place(&connections, NODE));
        let node = connections.enter(NODE.into()).unwrap();
        assert_eq!(node.place(true).unwrap_err(), NoRoom);
        // Who has found none leaves nothing behind that others would take for one that was given back.
        let mut room = Box::pin(node.room());
        assert!(room.as_mut().now_or_never().is_none());
        drop(working);
        drop(busy);
        assert!(room.now_or_never().is_some());
        node.place(true).unwrap();
    }

    #[tokio::test]
    async fn connections_without_proxy_header_take_no_slot() {
        let connections = Connections::new(1, 100);
        let silent: Vec<_> = (0..UNNAMED_LIMIT)
            .map(|_| connections.enter_unnamed(ATTACKER.into()).unwrap())
            .collect();
        assert_eq!(connections.enter_unnamed(ATTACKER.into()).unwrap_err(), NoRoom);
        assert!(has_place(&connections, NODE) && has_place(&connections, ATTACKER));
        let balancer = connections.enter_unnamed(NODE.into()).unwrap();
        let evicted = silent.iter().filter(|silent| silent.evicted().now_or_never().is_some());
        assert_eq!(evicted.count(), 1);
        assert!(balancer.evicted().now_or_never().is_none());
        // What is given back is there again.
        drop(silent);
        connections.enter_unnamed(ATTACKER.into()).unwrap();
    }

    #[test]
    fn reserves_connection_slots_for_trusted_sources() {
        let connections = Connections::new(8, 100);
        let take = |last: u8, known| connections.enter(Ipv4Addr::new(198, 51, 100, last).into()).unwrap().place(known);
        let strangers: Vec<_> = (0..6).map(|last| take(last, false).unwrap()).collect();
        assert_eq!(take(6, false).unwrap_err(), NoRoom);
        let known = [take(7, true).unwrap(), take(8, true).unwrap()];
        assert_eq!(take(9, true).unwrap_err(), NoRoom);
        // A stranger's place goes to a stranger once so many are left.
        drop(strangers);
        take(6, false).unwrap();
        drop(known);
        // Who is known may have more than that.
        let known: Vec<_> = (0..8).map(|last| take(last, true).unwrap()).collect();
        assert_eq!((known.len(), take(9, true).unwrap_err()), (8, NoRoom));
    }

    #[tokio::test]
    async fn attack_38_idle_connections_make_room_for_others() {
        let connections = Connections::new(10, 100);
        let mut idle = Vec::new();
        for _ in 0..10 {
            idle.push(place(&connections, ATTACKER).await);
        }
        // The oldest is busy, so that the next one goes.
        let busy = idle[0].working();
        let node = place(&connections, NODE).await;
        let taken: Vec<usize> = (0..10).filter(|place| idle[*place].taken().now_or_never().is_some()).collect();
        assert_eq!(taken, [1]);
        // More of the attacker's do not take the node's.
        drop(busy);
        for _ in 0..5 {
            idle.push(place(&connections, ATTACKER).await);
        }
        assert!(node.taken().now_or_never().is_none());
    }
}
