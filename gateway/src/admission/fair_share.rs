//! Shares of a limited resource: connections, bytes of memory. A source may have all that no other source wants. When all is taken, the
//! network with most gives back, in it the smaller network, and in that the address ([`ClientSource::networks`]). It gives back what has waited
//! longest for its peer.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ClientSource;
use super::fair_queue::FairQueue;
use super::source::Network;

/// Time that a part waits for its peer before others of the same source take its place. A storm of good machines behind one address must
/// not push each other out. Their data arrives within milliseconds, so that something is wrong with an older one.
const GRACE: Duration = Duration::from_secs(1);
/// The same for sources that hold equal amounts: the longest that a client is waited for at all. A fleet that boots at once consists of
/// such sources. A node does not lose its part to the next one, which would make it start again: the next one waits.
const EQUALS_GRACE: Duration = Duration::from_secs(10);

/// Limited resource that is shared out among sources.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<FairShareState>,
    /// Queue for the amounts that are given back.
    waiting: Mutex<FairQueue<()>>,
}

#[derive(Debug)]
struct FairShareState {
    limit: usize,
    next_id: u64,
    parts: HashMap<u64, HeldShare>,
    /// The holdings of all sources, by their networks.
    all: ShareHolder,
}

/// The holdings of a network or an address.
#[derive(Debug, Default)]
struct ShareHolder {
    amount: usize,
    /// Number of parts.
    parts: usize,
    /// Number of parts that wait for their peer.
    waiting: usize,
    members: HashMap<Network, ShareHolder>,
    /// All members by what they have; the last one has most.
    by_amount: BTreeSet<(usize, Network)>,
    /// The parts that wait for their peer, by since when.
    by_wait: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct HeldShare {
    source: ClientSource,
    amount: usize,
    waiting_since: Option<Instant>,
    evicted: Arc<Notify>,
}

/// Part of the resource. It is given back when this is dropped.
#[derive(Debug)]
pub struct ShareGuard {
    shares: Shares,
    id: u64,
    evicted: Arc<Notify>,
}

/// Error: all is taken, and no other source has to give any back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

impl Shares {
    /// Creates a resource with this limit.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(FairShareState {
                limit,
                next_id: 0,
                parts: HashMap::new(),
                all: ShareHolder::default(),
            }),
            waiting: Mutex::default(),
        }))
    }

    /// Returns an empty share for this source.
    #[must_use]
    pub fn enter(&self, source: ClientSource) -> ShareGuard {
        let evicted = Arc::new(Notify::new());
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let part = HeldShare {
            source,
            amount: 0,
            waiting_since: None,
            evicted: Arc::clone(&evicted),
        };
        state.parts.insert(id, part);
        state.all.change(&mut source.networks(), |holder| holder.parts += 1);
        ShareGuard {
            shares: self.clone(),
            id,
            evicted,
        }
    }

    /// Returns the amount in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().all.amount
    }

    /// Evicts all shares, and gives no more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.limit = 0;
        let all: Vec<u64> = state.parts.keys().copied().collect();
        all.into_iter().for_each(|id| state.evict(id));
    }

    /// Takes until there is room: again when something was given back, and when others have waited for their peers for longer. Sources take turns.
    pub async fn acquire_with<T>(&self, source: ClientSource, mut take: impl FnMut() -> Result<T, NoRoom>) -> T {
        if let Ok(taken) = take() {
            return taken;
        }
        loop {
            // In the line before it looks, so that nothing is given back in between.
            let freed = self.freed(source);
            if let Ok(taken) = take() {
                // There may be more than that.
                self.wake_next();
                return taken;
            }
            freed.await;
        }
    }

    /// Completes when something was given back, or others have waited for their peers for longer.
    pub fn freed(&self, source: ClientSource) -> impl Future<Output = ()> + use<> {
        let freed = self.line().wait(source);
        async move { drop(tokio::time::timeout(GRACE, freed).await) }
    }

    /// Wakes the next source in the queue that still waits.
    fn wake_next(&self) {
        while let Some(next) = { self.line().next() } {
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, FairQueue<()>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, FairShareState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShareGuard {
    /// Takes that much more. Others are evicted for it where that is fair.
    ///
    /// # Errors
    /// [`NoRoom`]; what the share had before it has still, unless it was evicted itself.
    pub fn grow(&self, amount: usize, now: Instant) -> Result<(), NoRoom> {
        self.grow_leaving(amount, 0, now)
    }

    /// Like [`ShareGuard::grow`], but only if `left` remains afterwards.
    ///
    /// # Errors
    /// Those of [`ShareGuard::grow`].
    pub fn grow_leaving(&self, amount: usize, left: usize, now: Instant) -> Result<(), NoRoom> {
        let mut state = self.shares.lock();
        // Whoever takes something is not waiting at the moment.
        let source = state.set_waiting(self.id, None).ok_or(NoRoom)?;
        while state.all.amount.saturating_add(amount).saturating_add(left) > state.limit {
            let victim = state.all.victim(&mut source.networks(), amount, now).ok_or(NoRoom)?;
            state.evict(victim);
        }
        state.add(self.id, amount)
    }

    /// Marks the share as waiting for its peer since `since`: others may take its place.
    pub fn waits(&self, since: Instant) {
        self.shares.lock().set_waiting(self.id, Some(since));
    }

    /// Marks the share as one that the gateway works for: others cannot take its place.
    pub fn works(&self) {
        self.shares.lock().set_waiting(self.id, None);
    }

    /// Completes when another has taken its place.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        let part = self.shares.lock().remove(self.id);
        if part.is_some_and(|part| part.amount > 0) {
            self.shares.wake_next();
        }
    }
}

impl FairShareState {
    fn evict(&mut self, id: u64) {
        if let Some(part) = self.remove(id) {
            part.evicted.notify_one();
        }
    }

    /// Sets since when a share waits. Returns its source if it still exists: an evicted one has nothing that others could take.
    fn set_waiting(&mut self, id: u64, since: Option<Instant>) -> Option<ClientSource> {
        let part = self.parts.get_mut(&id)?;
        let before = std::mem::replace(&mut part.waiting_since, since);
        self.all.change(&mut part.source.networks(), |holder| {
            if let Some(before) = before {
                holder.by_wait.remove(&(before, id));
            }
            holder.by_wait.extend(since.map(|since| (since, id)));
        });
        Some(part.source)
    }

    fn add(&mut self, id: u64, amount: usize) -> Result<(), NoRoom> {
        let part = self.parts.get_mut(&id).ok_or(NoRoom)?;
        part.amount = part.amount.saturating_add(amount);
        self.all.change(&mut part.source.networks(), |holder| {
            holder.amount = holder.amount.saturating_add(amount);
        });
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Option<HeldShare> {
        let part = self.parts.remove(&id)?;
        self.all.change(&mut part.source.networks(), |holder| {
            if let Some(since) = part.waiting_since {
                holder.by_wait.remove(&(since, id));
            }
            holder.parts -= 1;
            holder.amount = holder.amount.saturating_sub(part.amount);
        });
        Some(part)
    }
}

impl ShareHolder {
    /// Changes the one at the end of these networks, and with it what the networks have. A network that has nothing left is forgotten.
    fn change(&mut self, networks: &mut impl Iterator<Item = Network>, change: impl FnOnce(&mut Self)) {
        let Some(network) = networks.next() else {
            change(self);
            self.waiting = self.by_wait.len();
            return;
        };
        let member = self.members.entry(network).or_default();
        let (amount, parts, waiting) = (member.amount, member.parts, member.waiting);
        member.change(networks, change);
        self.amount = (self.amount - amount).saturating_add(member.amount);
        self.parts = self.parts - parts + member.parts;
        self.waiting = self.waiting - waiting + member.waiting;
        self.by_amount.remove(&(amount, network));
        if member.parts == 0 {
            self.members.remove(&network);
        } else {
            self.by_amount.insert((member.amount, network));
        }
    }

    /// Returns the part to give back: of the members that can give, that with most; of an address, the part that has waited longest. It
    /// gives back only after [`GRACE`] or [`EQUALS_GRACE`], unless its network has more than the asking one will have. A network that has
    /// less never gives back.
    fn victim(&self, asking: &mut impl Iterator<Item = Network>, amount: usize, now: Instant) -> Option<u64> {
        let Some(own) = asking.next() else {
            let (since, id) = self.by_wait.first()?;
            return (now.saturating_duration_since(*since) >= GRACE).then_some(*id);
        };
        let (has, network) = self.gives_first()?;
        let most = self.members.get(network)?;
        if *network == own {
            return most.victim(asking, amount, now);
        }
        let (since, id) = most.oldest_of_most()?;
        let will_have = self.members.get(&own).map_or(0, |holder| holder.amount).saturating_add(amount);
        let waited = now.saturating_duration_since(since);
        let fair = will_have < *has || (will_have == *has && waited >= EQUALS_GRACE);
        fair.then_some(id)
    }

    /// Returns the member with most, of those that have something to give.
    fn gives_first(&self) -> Option<&(usize, Network)> {
        let gives = |network: &Network| self.members.get(network).is_some_and(|member| member.waiting > 0);
        self.by_amount.iter().rev().find(|(_, network)| gives(network))
    }

    /// Returns the part that this holder gives back, in the same order at every level.
    fn oldest_of_most(&self) -> Option<(Instant, u64)> {
        match self.gives_first() {
            Some((_, network)) => self.members.get(network)?.oldest_of_most(),
            None => self.by_wait.first().copied(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use futures_util::FutureExt;

    use super::*;

    const ATTACKER: u32 = 66;
    const NODE: u32 = 7;

    struct Case {
        shares: Shares,
        start: Instant,
    }

    fn case(limit: usize) -> Case {
        Case {
            shares: Shares::new(limit),
            start: Instant::now(),
        }
    }

    impl Case {
        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        fn take(&self, source: u32, amount: usize, millis: u64) -> Result<ShareGuard, NoRoom> {
            self.take_from(Ipv4Addr::from_bits(source).into(), amount, millis)
        }

        fn take_from(&self, source: ClientSource, amount: usize, millis: u64) -> Result<ShareGuard, NoRoom> {
            let share = self.shares.enter(source);
            share.grow(amount, self.at(millis))?;
            share.waits(self.at(millis));
            Ok(share)
        }

        fn total(&self) -> usize {
            self.shares.lock().all.amount
        }
    }

    fn is_evicted(share: &ShareGuard) -> bool {
        share.evicted().now_or_never().is_some()
    }

    #[test]
    fn evicts_the_largest_holder_for_smaller_sources() {
        let case = case(100);
        let held: Vec<ShareGuard> = (0..100).map(|number| case.take(ATTACKER, 1, number).unwrap()).collect();
        assert_eq!(case.take(ATTACKER, 1, 200).unwrap_err(), NoRoom, "its own are young");
        let mut nodes = Vec::new();
        for number in 0..10 {
            nodes.push(case.take(NODE + number, 3, 200).unwrap());
        }
        // The oldest went first, and no more of them than were needed.
        assert!(held[..30].iter().all(is_evicted));
        assert!(!held[30..].iter().any(is_evicted) && !nodes.iter().any(is_evicted));
        assert_eq!(case.total(), 100);
        drop((held, nodes));
        assert_eq!(case.total(), 0);
        assert!(case.shares.lock().all.members.is_empty() && case.shares.lock().all.by_amount.is_empty());
    }

    #[test]
    fn evicts_stalled_shares_of_the_same_source() {
        let case = case(2);
        let (stuck, young) = (case.take(ATTACKER, 1, 0).unwrap(), case.take(ATTACKER, 1, 500).unwrap());
        assert_eq!(case.take(ATTACKER, 1, 999).unwrap_err(), NoRoom);
        let node = case.take(ATTACKER, 1, 1000).unwrap();
        assert!(is_evicted(&stuck) && !is_evicted(&young) && !is_evicted(&node));
    }

    #[test]
    fn never_evicts_smaller_sources_for_a_larger_one() {
        let case = case(4);
        let node = case.take(NODE, 1, 0).unwrap();
        let held: Vec<ShareGuard> = (0..3).map(|_| case.take(ATTACKER, 1, 0).unwrap()).collect();
        held.iter().for_each(ShareGuard::works);
        assert_eq!(case.take(ATTACKER, 1, 60_000).unwrap_err(), NoRoom);
        assert!(!is_evicted(&node));
        // One that has as much gives what has waited too long, and nothing else.
        assert_eq!(case.take(8, 1, 9900).unwrap_err(), NoRoom);
        let other = case.take(8, 1, 10_000).unwrap();
        assert!(is_evicted(&node) && !is_evicted(&other));
    }

    #[test]
    fn never_evicts_a_share_in_progress() {
        let case = case(10);
        let held = case.take(ATTACKER, 10, 0).unwrap();
        held.works();
        assert_eq!(case.take(NODE, 1, 10_000).unwrap_err(), NoRoom);
        held.waits(case.at(0));
        assert!(case.take(NODE, 1, 10_000).is_ok());
        assert!(is_evicted(&held));
        // What was evicted gets nothing any more, and gives nothing back twice.
        assert_eq!(held.grow(1, case.at(10_001)), Err(NoRoom));
        held.waits(case.at(0));
        drop(held);
        assert_eq!(case.total(), 0);
    }

    #[test]
    fn a_share_that_grows_does_not_evict_itself() {
        let case = case(10);
        let held = case.take(ATTACKER, 8, 0).unwrap();
        assert_eq!(held.grow(3, case.at(5000)), Err(NoRoom));
        assert!(!is_evicted(&held));
        assert_eq!(held.grow(2, case.at(5000)), Ok(()));
        assert_eq!(case.total(), 10);
    }

    /// An address of 2001:db8::/32.
    fn six(number: u128) -> ClientSource {
        IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + number)).into()
    }

    /// In the same network of 64 bits, in another one of the same 48, and in another of those.
    const NEIGHBOURS: [u128; 3] = [7, (1 << 64) + 7, (1 << 80) + 7];

    #[test]
    fn attack_55_greedy_neighbours_in_64_bits_evict_no_node() {
        let case = case(100);
        let nodes = NEIGHBOURS.map(|node| case.take_from(six(node), 1, 0).unwrap());
        let of_one: Vec<ShareGuard> = (0..97).map(|_| case.take_from(six(66), 1, 0).unwrap()).collect();
        // More of it take what is its own, and nobody else's.
        let more: Vec<ShareGuard> = (0..50).map(|_| case.take_from(six(66), 1, 5000).unwrap()).collect();
        assert!(!nodes.iter().any(is_evicted) && of_one.iter().filter(|share| is_evicted(share)).count() == 50);
        // And each of their next ones has a place at once.
        let next: Vec<ShareGuard> = NEIGHBOURS.map(|node| case.take_from(six(node), 1, 5000).unwrap()).into();
        assert!(!nodes.iter().chain(&next).any(is_evicted));
        drop((of_one, more));
        drop((nodes, next));
        assert_eq!(case.total(), 0);
    }

    #[test]
    fn attack_55_many_neighbour_addresses_evict_no_other_network() {
        let case = case(1000);
        let known = ClientSource::proven(IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + 8)));
        let others = [six(NEIGHBOURS[1]), six(NEIGHBOURS[2]), known, Ipv4Addr::from_bits(NODE).into()];
        let nodes = others.map(|source| case.take_from(source, 1, 0).unwrap());
        let held: Vec<ShareGuard> = (0..996).map(|number| case.take_from(six(1000 + number), 1, 0).unwrap()).collect();
        let more = (0..1000).filter(|number| case.take_from(six(5000 + number), 1, 9_000).is_ok());
        assert_eq!(more.count(), 0, "they are equals, and have not waited for so long");
        let next = others.map(|source| case.take_from(source, 1, 9_000).unwrap());
        assert!(!nodes.iter().chain(&next).any(is_evicted));
        assert_eq!(held.iter().filter(|share| is_evicted(share)).count(), next.len());
        // A node beside them of which nothing is known waits as long as one of many equals does.
        assert_eq!(case.take_from(six(NEIGHBOURS[0]), 1, 9_999).unwrap_err(), NoRoom);
        let node = case.take_from(six(NEIGHBOURS[0]), 1, 10_000).unwrap();
        assert!(!nodes.iter().chain(&next).chain([&node]).any(is_evicted));
    }

    #[tokio::test]
    async fn wakes_waiting_sources_in_turn_when_room_appears() {
        let case = case(2);
        let take = |source| case.take(source, 1, 0);
        let wait = |source: u32| Box::pin(case.shares.acquire_with(Ipv4Addr::from_bits(source).into(), move || take(source)));
        let held = case.take(NODE, 2, 0).unwrap();
        held.works();
        let mut waiting: Vec<_> = [ATTACKER, ATTACKER, ATTACKER, NODE].map(wait).into();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        // One that goes is not told in another's place.
        drop(waiting.remove(0));
        drop(held);
        // There was room for two, so that who was told first has told the next one.
        let got: Vec<_> = waiting.iter_mut().map(|one| one.as_mut().now_or_never()).collect();
        assert_eq!(got.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
        drop(got);
        assert!(waiting[1].as_mut().now_or_never().is_some());
        drop(waiting);
        assert_eq!((case.total(), case.shares.line().length()), (0, 0));
    }

    #[tokio::test]
    async fn waiters_retry_eviction_without_a_release() {
        let case = case(1);
        let held = case.take(NODE, 1, 0).unwrap();
        let mut looked = 0;
        let taken = case.shares.acquire_with(Ipv4Addr::from_bits(NODE).into(), || {
            looked += 1;
            case.take(NODE, 1, if looked < 3 { 0 } else { 1000 })
        });
        drop(taken.await);
        assert!(looked == 3 && is_evicted(&held));
    }
}
