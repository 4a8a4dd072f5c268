//! Connections: one more than there may be takes the place of one on which nothing is being done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Source;
use super::shares::{GRACE, NoRoom, Share, Shares};

/// Connections that wait for a place, all together: as many as a storm behind one address brings while what is there before it is young. Each
/// costs a socket and no more.
const WAITING_LIMIT: usize = 256;
/// How long one waits for a place. Its client waits as long for a handshake, and then comes again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections of balancers that have not said yet whose they are, all together: as many as a storm brings at once, as each lasts until the
/// balancer's next few bytes. Each costs a socket and no more.
const UNNAMED_LIMIT: usize = 1024;

/// All connections.
#[derive(Debug)]
pub struct Connections {
    places: Shares,
    waiting: Shares,
    unnamed: Shares,
}

/// A connection that has been accepted, with a place or without.
#[derive(Debug)]
pub struct Entered {
    places: Shares,
    share: Share,
    /// While it has no place.
    waits: Option<Share>,
}

/// A balancer's connection, which has not said yet whose it is.
#[derive(Debug)]
pub struct Unnamed(Share);

/// One connection's place. It is given back with the last copy of this.
#[derive(Debug, Clone)]
pub struct Place(Arc<Share>);

/// While this is there, nobody takes the connection's place: the gateway works for it.
#[derive(Debug)]
pub struct Working<'p>(&'p Place);

impl Connections {
    /// So many at once.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self {
            places: Shares::new(at_once),
            waiting: Shares::new(WAITING_LIMIT),
            unnamed: Shares::new(UNNAMED_LIMIT),
        }
    }

    /// A connection of a balancer, until it has said whose it is. It holds none of the places: whose it takes cannot be said yet.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn enter_unnamed(&self, balancer: Source) -> Result<Unnamed, NoRoom> {
        let (share, now) = (self.unnamed.enter(balancer), Instant::now());
        share.grow(1, now)?;
        share.waits(now);
        Ok(Unnamed(share))
    }

    /// One more connection of this source. It has a place at once if there is one: the source with most connections gives up the one that has
    /// been idle longest. Idle are also those whose handshake, request or reading of an answer is waited for. Otherwise it may wait for one,
    /// by the same rules. Nobody else waits for it here.
    ///
    /// # Errors
    /// [`NoRoom`], not even to wait.
    pub fn enter(&self, source: Source) -> Result<Entered, NoRoom> {
        let (share, now) = (self.places.enter(source), Instant::now());
        let waits = match share.grow(1, now) {
            Ok(()) => {
                share.waits(now);
                None
            }
            Err(NoRoom) => {
                let waits = self.waiting.enter(source);
                waits.grow(1, now)?;
                waits.waits(now);
                Some(waits)
            }
        };
        Ok(Entered {
            places: self.places.clone(),
            share,
            waits,
        })
    }
}

impl Entered {
    /// The connection's place, as soon as it has one.
    ///
    /// # Errors
    /// [`NoRoom`]: there was none in time, or others wait instead.
    pub async fn place(self) -> Result<Place, NoRoom> {
        if let Some(waits) = &self.waits {
            tokio::select! {
                () = self.until_there_is_one() => {}
                () = waits.evicted() => return Err(NoRoom),
                () = tokio::time::sleep(PATIENCE) => return Err(NoRoom),
            }
        }
        Ok(Place(Arc::new(self.share)))
    }

    async fn until_there_is_one(&self) {
        loop {
            let now = Instant::now();
            if self.share.grow(1, now).is_ok() {
                return self.share.waits(now);
            }
            tokio::select! {
                () = self.places.freed() => {}
                () = tokio::time::sleep(GRACE) => {}
            }
        }
    }
}

impl Unnamed {
    /// Completes when others are to say whose they are instead.
    pub async fn evicted(&self) {
        self.0.evicted().await;
    }
}

impl Place {
    /// From now on the gateway works for this connection.
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

    async fn place(connections: &Connections, source: Ipv4Addr) -> Place {
        connections.enter(source.into()).unwrap().place().await.unwrap()
    }

    /// Whether this source's next connection has a place, or has to wait.
    fn has_place(connections: &Connections, source: Ipv4Addr) -> bool {
        let entered = connections.enter(source.into()).unwrap();
        entered.place().now_or_never().is_some()
    }

    #[tokio::test]
    async fn who_has_no_place_waits_for_one_and_not_many_do() {
        let connections = Connections::new(2);
        let busy = [place(&connections, ATTACKER).await, place(&connections, ATTACKER).await];
        let working: Vec<_> = busy.iter().map(Place::working).collect();
        assert!(!has_place(&connections, ATTACKER) && !has_place(&connections, NODE));
        let waiting: Vec<_> = (0..WAITING_LIMIT).map(|_| connections.enter(ATTACKER.into()).unwrap()).collect();
        assert_eq!(connections.enter(ATTACKER.into()).unwrap_err(), NoRoom);
        // Another source waits instead of one of them.
        let node = connections.enter(NODE.into()).unwrap();
        let sent_away = waiting.into_iter().filter_map(|waiting| waiting.place().now_or_never());
        assert_eq!(sent_away.collect::<Vec<_>>().len(), 1);
        drop(working);
        drop(busy);
        node.place().await.unwrap();
    }

    #[tokio::test]
    async fn who_does_not_say_whose_its_connections_are_takes_no_place_and_no_other_balancers_turn() {
        let connections = Connections::new(1);
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

    #[tokio::test]
    async fn attack_38_idle_connections_make_room_for_others() {
        let connections = Connections::new(10);
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
