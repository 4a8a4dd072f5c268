//! Fair queue. Networks take turns, in each of them its smaller networks, and in those the addresses ([`ClientSource::networks`]). One with a
//! thousand entries makes another wait for one of them and not for all.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::ClientSource;
use super::source::Network;

/// Minimum length of a queue from which abandoned entries are removed; it must also be twice as long as after the last removal. Each of
/// these entries may be of an address of its own.
const SWEEP_LENGTH: usize = 1024;

/// Queue for a `T`. Its length is bounded by the number of clients: a connection asks for one thing at a time.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    networks: SourceQueue<T>,
    length: usize,
    /// Length from which abandoned entries are removed.
    sweep_at: usize,
}

/// The part of the line that belongs to one network or address.
#[derive(Debug)]
struct SourceQueue<T> {
    waiting: VecDeque<oneshot::Sender<T>>,
    members: HashMap<Network, SourceQueue<T>>,
    /// The members, each once; the next one first.
    order: VecDeque<Network>,
}

impl<T> Default for SourceQueue<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            members: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            networks: SourceQueue::default(),
            length: 0,
            sweep_at: SWEEP_LENGTH,
        }
    }
}

impl<T> FairQueue<T> {
    /// Returns the length of the queue, including some abandoned entries.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Appends an entry for this source.
    pub(super) fn wait(&mut self, source: ClientSource) -> oneshot::Receiver<T> {
        if self.length >= self.sweep_at {
            self.length = self.networks.sweep();
            self.sweep_at = self.length.saturating_mul(2).max(SWEEP_LENGTH);
        }
        let (sender, receiver) = oneshot::channel();
        let mut turns = &mut self.networks;
        for network in source.networks() {
            if !turns.members.contains_key(&network) {
                turns.order.push_back(network);
            }
            turns = turns.members.entry(network).or_default();
        }
        // Those who have gone would only be counted.
        while turns.waiting.back().is_some_and(oneshot::Sender::is_closed) {
            turns.waiting.pop_back();
            self.length -= 1;
        }
        turns.waiting.push_back(sender);
        self.length += 1;
        receiver
    }

    /// Takes the next entry, which may be abandoned.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<T>> {
        let (next, passed_over) = self.networks.next();
        self.length -= passed_over + usize::from(next.is_some());
        next
    }
}

impl<T> SourceQueue<T> {
    /// Returns the next one that waits, and how many were passed over because they have gone.
    fn next(&mut self) -> (Option<oneshot::Sender<T>>, usize) {
        let Some(network) = self.order.pop_front() else {
            let mut passed_over = 0;
            while self.waiting.front().is_some_and(oneshot::Sender::is_closed) && self.waiting.len() > 1 {
                self.waiting.pop_front();
                passed_over += 1;
            }
            return (self.waiting.pop_front(), passed_over);
        };
        let Some(member) = self.members.get_mut(&network) else {
            return (None, 0);
        };
        let next = member.next();
        if member.is_empty() {
            self.members.remove(&network);
        } else {
            self.order.push_back(network);
        }
        next
    }

    /// Removes abandoned entries; returns how many are left.
    fn sweep(&mut self) -> usize {
        self.waiting.retain(|sender| !sender.is_closed());
        let mut stay = self.waiting.len();
        self.members.retain(|_, member| {
            stay += member.sweep();
            !member.is_empty()
        });
        self.order.retain(|network| self.members.contains_key(network));
        stay
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.members.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    fn source(number: u32) -> ClientSource {
        Ipv4Addr::from_bits(number).into()
    }

    /// Returns the order of service when these have asked in sequence, and some have gone.
    fn order(asked: &[u32], gone: &[usize]) -> Vec<u32> {
        let mut line = FairQueue::default();
        let mut receivers: Vec<_> = asked.iter().map(|number| Some(line.wait(source(*number)))).collect();
        assert_eq!(line.length(), asked.len());
        gone.iter().for_each(|place| receivers[*place] = None);
        let mut served = Vec::new();
        while let Some(next) = line.next() {
            if next.send(()).is_ok() {
                let place = receivers
                    .iter_mut()
                    .position(|receiver| receiver.as_mut().is_some_and(|receiver| receiver.try_recv().is_ok()));
                served.push(asked[place.unwrap()]);
            }
        }
        assert!(line.length() == 0 && line.networks.is_empty() && line.networks.order.is_empty());
        served
    }

    #[test]
    fn sources_take_turns() {
        assert_eq!(order(&[1, 1, 1, 1, 2, 3, 3], &[]), [1, 2, 3, 1, 3, 1, 1]);
    }

    #[test]
    fn skips_cancelled_waiters() {
        assert_eq!(order(&[1, 1, 1, 2], &[0]), [1, 2, 1]);
        assert!(order(&[1, 2, 3], &[0, 1, 2]).is_empty());
        assert_eq!(order(&[1, 2, 3], &[1]), [1, 3]);
    }

    #[test]
    fn cancelled_waiters_do_not_accumulate() {
        let mut line = FairQueue::<()>::default();
        let first = line.wait(source(1));
        for _ in 0..1000 {
            drop(line.wait(source(1)));
        }
        assert!(line.length() <= 2);
        // Nor from an address of its own each time.
        for number in 0..100_000 {
            drop(line.wait(source(number)));
        }
        assert!(line.length() <= SWEEP_LENGTH && line.networks.order.len() <= SWEEP_LENGTH);
        drop(first);
    }

    /// Returns how many are served before this source, which came last.
    fn before(neighbours: impl Iterator<Item = IpAddr>, last: ClientSource) -> usize {
        let mut line = FairQueue::default();
        let neighbours: Vec<_> = neighbours.map(|address| line.wait(address.into())).collect();
        let mut last = line.wait(last);
        let mut served = 0;
        while last.try_recv().is_err() {
            line.next().unwrap().send(()).unwrap();
            served += 1;
        }
        drop(neighbours);
        served - 1
    }

    #[test]
    fn attack_55_addresses_of_one_64_bit_network_share_turns() {
        let address = |number: u128| IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + number));
        let from_one = || (0..1000).map(|_| address(66));
        let from_many = || (0..1000).map(|number| address(0x1_0000 + number));
        let in_another = |bits: u32| ClientSource::from(address(1 << bits));
        assert_eq!(before(from_one(), address(7).into()), 1);
        for other in [in_another(64), in_another(80), source(7), ClientSource::proven(address(7))] {
            assert_eq!((before(from_one(), other), before(from_many(), other)), (1, 1), "{other}");
        }
        // Among a thousand addresses of one network, of which nothing else is known, it is one.
        assert_eq!(before(from_many(), address(7).into()), 1000);
    }
}
