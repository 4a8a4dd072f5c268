//! Connections: one more than there may be takes the place of one on which nothing is being done.

use std::sync::Arc;
use std::time::Instant;

use super::Source;
use super::shares::{GRACE, Share, Shares};

/// All connections.
#[derive(Debug)]
pub struct Connections(Shares);

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
        Self(Shares::new(at_once))
    }

    /// A place for a connection of this source, as soon as there is one: the source with most connections gives up the one that has been idle
    /// longest. Idle are also those whose handshake, request or reading of an answer is waited for.
    pub async fn place(&self, source: Source) -> Place {
        let share = self.0.enter(source);
        loop {
            let now = Instant::now();
            if share.grow(1, now).is_ok() {
                share.waits(now);
                return Place(Arc::new(share));
            }
            tokio::select! {
                () = self.0.freed() => {}
                () = tokio::time::sleep(GRACE) => {}
            }
        }
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
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    const ATTACKER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
    const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

    #[tokio::test]
    async fn attack_38_idle_connections_make_room_for_others() {
        let connections = Connections::new(10);
        let mut idle = Vec::new();
        for _ in 0..10 {
            idle.push(connections.place(ATTACKER.into()).await);
        }
        // The oldest is busy, so that the next one goes.
        let busy = idle[0].working();
        let node = connections.place(NODE.into()).await;
        let taken: Vec<usize> = (0..10).filter(|place| idle[*place].taken().now_or_never().is_some()).collect();
        assert_eq!(taken, [1]);
        // More of the attacker's do not take the node's.
        drop(busy);
        for _ in 0..5 {
            idle.push(connections.place(ATTACKER.into()).await);
        }
        assert!(node.taken().now_or_never().is_none());
    }
}
