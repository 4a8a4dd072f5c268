//! Shares of what there is only so much of: connections, bytes of memory. A source may have all that nobody else wants. When there is no room
//! left, the source that has most gives back what has waited longest for its peer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Source;
use super::line::Line;

/// How long something waits for its peer before others of the same source take its place. A storm of good machines behind one address must
/// not push each other out: what they send arrives within milliseconds, so that something is wrong with whoever is older than this.
const GRACE: Duration = Duration::from_secs(1);
/// The same for others of sources that have as much: as long as a client is waited for at all. A fleet that boots at once is of such sources, and
/// what one of its nodes was given is not taken from it for the next one, which would have it begin anew: the next one waits.
const EQUALS_GRACE: Duration = Duration::from_secs(10);

/// So much of it.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Those who wait for some of it to be given back.
    waiting: Mutex<Line<()>>,
}

#[derive(Debug)]
struct State {
    limit: usize,
    total: usize,
    next_id: u64,
    sources: HashMap<Source, Holder>,
    /// All sources by what they have; the last one has most.
    by_amount: BTreeSet<(usize, Source)>,
}

#[derive(Debug, Default)]
struct Holder {
    amount: usize,
    parts: BTreeMap<u64, Part>,
    /// The parts that wait for their peer, by since when.
    waiting: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Part {
    amount: usize,
    waiting_since: Option<Instant>,
    evicted: Arc<Notify>,
}

/// A part of it. It is given back when this is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    source: Source,
    id: u64,
    evicted: Arc<Notify>,
}

/// There is none left, and nobody who has to give any back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

impl Shares {
    /// So much of it.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                limit,
                total: 0,
                next_id: 0,
                sources: HashMap::new(),
                by_amount: BTreeSet::new(),
            }),
            waiting: Mutex::default(),
        }))
    }

    /// A share for this source, of nothing yet.
    #[must_use]
    pub fn enter(&self, source: Source) -> Share {
        let evicted = Arc::new(Notify::new());
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let part = Part {
            amount: 0,
            waiting_since: None,
            evicted: Arc::clone(&evicted),
        };
        let holder = state.sources.entry(source).or_default();
        holder.parts.insert(id, part);
        let amount = holder.amount;
        state.by_amount.insert((amount, source));
        Share {
            shares: self.clone(),
            source,
            id,
            evicted,
        }
    }

    /// Takes everything back, and gives nothing any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.limit = 0;
        let parts = |(source, holder): (&Source, &Holder)| holder.parts.keys().map(|id| (*source, *id)).collect::<Vec<_>>();
        let all: Vec<_> = state.sources.iter().flat_map(parts).collect();
        all.into_iter().for_each(|(source, id)| state.evict(source, id));
    }

    /// Takes until there is room: again when something was given back, and when others have waited for their peers for longer. Sources take turns.
    pub async fn when_there_is_room<T>(&self, source: Source, mut take: impl FnMut() -> Result<T, NoRoom>) -> T {
        if let Ok(taken) = take() {
            return taken;
        }
        loop {
            // In the line before it looks, so that nothing is given back in between.
            let freed = self.freed(source);
            if let Ok(taken) = take() {
                // There may be more than that.
                self.tell_next();
                return taken;
            }
            freed.await;
        }
    }

    /// Completes when something was given back, or others have waited for their peers for longer.
    pub fn freed(&self, source: Source) -> impl Future<Output = ()> + use<> {
        let freed = self.line().wait(source);
        async move { drop(tokio::time::timeout(GRACE, freed).await) }
    }

    /// Tells who is next of those who wait, and still there.
    fn tell_next(&self) {
        while let Some(next) = { self.line().next() } {
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<()>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes that much more. Others are evicted for it where that is fair.
    ///
    /// # Errors
    /// [`NoRoom`]; what the share had before it has still, unless it was evicted itself.
    pub fn grow(&self, amount: usize, now: Instant) -> Result<(), NoRoom> {
        self.grow_leaving(amount, 0, now)
    }

    /// As [`Share::grow`], if so much is left then.
    ///
    /// # Errors
    /// As [`Share::grow`].
    pub fn grow_leaving(&self, amount: usize, left: usize, now: Instant) -> Result<(), NoRoom> {
        let mut state = self.shares.lock();
        // Whoever takes something is not waiting at the moment.
        if !state.set_waiting(self.source, self.id, None) {
            return Err(NoRoom);
        }
        while state.total.saturating_add(amount).saturating_add(left) > state.limit {
            let (source, id) = state.victim(self.source, amount, now).ok_or(NoRoom)?;
            state.evict(source, id);
        }
        state.add(self.source, self.id, amount)
    }

    /// From now on its peer is waited for, and has been since `since`: others may take its place.
    pub fn waits(&self, since: Instant) {
        self.shares.lock().set_waiting(self.source, self.id, Some(since));
    }

    /// From now on nobody takes its place: the gateway has something to do for it.
    pub fn works(&self) {
        self.shares.lock().set_waiting(self.source, self.id, None);
    }

    /// Completes when another has taken its place.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let part = self.shares.lock().remove(self.source, self.id);
        if part.is_some_and(|part| part.amount > 0) {
            self.shares.tell_next();
        }
    }
}

impl State {
    /// Who gives back: of all sources that have something to give, the one with most; of what it has, what has waited longest. Not before
    /// its [`GRACE`] or [`EQUALS_GRACE`] is over, unless its source has more than the one that asks will have; and never one that has less.
    fn victim(&self, asking: Source, amount: usize, now: Instant) -> Option<(Source, u64)> {
        let (has, source, since, id) = self.by_amount.iter().rev().find_map(|(has, source)| {
            let (since, id) = self.sources.get(source)?.waiting.first()?;
            Some((*has, *source, *since, *id))
        })?;
        let will_have = self.sources.get(&asking).map_or(0, |holder| holder.amount).saturating_add(amount);
        let waited = now.saturating_duration_since(since);
        let fair = if source == asking {
            waited >= GRACE
        } else {
            will_have < has || (will_have == has && waited >= EQUALS_GRACE)
        };
        fair.then_some((source, id))
    }

    fn evict(&mut self, source: Source, id: u64) {
        if let Some(part) = self.remove(source, id) {
            part.evicted.notify_one();
        }
    }

    /// Whether there is such a share still: one that was evicted has nothing that others could take.
    fn set_waiting(&mut self, source: Source, id: u64, since: Option<Instant>) -> bool {
        let Some(holder) = self.sources.get_mut(&source) else {
            return false;
        };
        let Some(part) = holder.parts.get_mut(&id) else { return false };
        if let Some(before) = part.waiting_since.take() {
            holder.waiting.remove(&(before, id));
        }
        if let Some(since) = since {
            part.waiting_since = Some(since);
            holder.waiting.insert((since, id));
        }
        true
    }

    fn add(&mut self, source: Source, id: u64, amount: usize) -> Result<(), NoRoom> {
        let holder = self.sources.get_mut(&source).ok_or(NoRoom)?;
        let part = holder.parts.get_mut(&id).ok_or(NoRoom)?;
        self.by_amount.remove(&(holder.amount, source));
        part.amount = part.amount.saturating_add(amount);
        holder.amount = holder.amount.saturating_add(amount);
        self.total = self.total.saturating_add(amount);
        self.by_amount.insert((holder.amount, source));
        Ok(())
    }

    fn remove(&mut self, source: Source, id: u64) -> Option<Part> {
        let holder = self.sources.get_mut(&source)?;
        let part = holder.parts.remove(&id)?;
        if let Some(since) = part.waiting_since {
            holder.waiting.remove(&(since, id));
        }
        self.by_amount.remove(&(holder.amount, source));
        holder.amount = holder.amount.saturating_sub(part.amount);
        self.total = self.total.saturating_sub(part.amount);
        if holder.parts.is_empty() {
            self.sources.remove(&source);
        } else {
            self.by_amount.insert((holder.amount, source));
        }
        Some(part)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;

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

        fn take(&self, source: u32, amount: usize, millis: u64) -> Result<Share, NoRoom> {
            let share = self.shares.enter(Ipv4Addr::from_bits(source).into());
            share.grow(amount, self.at(millis))?;
            share.waits(self.at(millis));
            Ok(share)
        }

        fn total(&self) -> usize {
            self.shares.lock().total
        }
    }

    fn is_evicted(share: &Share) -> bool {
        share.evicted().now_or_never().is_some()
    }

    #[test]
    fn one_source_may_have_everything_and_gives_back_to_who_has_less() {
        let case = case(100);
        let held: Vec<Share> = (0..100).map(|number| case.take(ATTACKER, 1, number).unwrap()).collect();
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
        assert!(case.shares.lock().sources.is_empty() && case.shares.lock().by_amount.is_empty());
    }

    #[test]
    fn behind_one_address_what_has_waited_too_long_makes_room() {
        let case = case(2);
        let (stuck, young) = (case.take(ATTACKER, 1, 0).unwrap(), case.take(ATTACKER, 1, 500).unwrap());
        assert_eq!(case.take(ATTACKER, 1, 999).unwrap_err(), NoRoom);
        let node = case.take(ATTACKER, 1, 1000).unwrap();
        assert!(is_evicted(&stuck) && !is_evicted(&young) && !is_evicted(&node));
    }

    #[test]
    fn who_has_less_gives_nothing_to_who_has_more() {
        let case = case(4);
        let node = case.take(NODE, 1, 0).unwrap();
        let held: Vec<Share> = (0..3).map(|_| case.take(ATTACKER, 1, 0).unwrap()).collect();
        held.iter().for_each(Share::works);
        assert_eq!(case.take(ATTACKER, 1, 60_000).unwrap_err(), NoRoom);
        assert!(!is_evicted(&node));
        // One that has as much gives what has waited too long, and nothing else.
        assert_eq!(case.take(8, 1, 9900).unwrap_err(), NoRoom);
        let other = case.take(8, 1, 10_000).unwrap();
        assert!(is_evicted(&node) && !is_evicted(&other));
    }

    #[test]
    fn what_the_gateway_works_on_is_nobody_elses() {
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

    #[tokio::test]
    async fn who_waits_for_room_is_told_of_it_and_sources_take_turns() {
        let case = case(2);
        let take = |source| case.take(source, 1, 0);
        let wait = |source: u32| {
            Box::pin(
                case.shares
                    .when_there_is_room(Ipv4Addr::from_bits(source).into(), move || take(source)),
            )
        };
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
    async fn who_waits_looks_again_though_nobody_gives_anything_back() {
        let case = case(1);
        let held = case.take(NODE, 1, 0).unwrap();
        let mut looked = 0;
        let taken = case.shares.when_there_is_room(Ipv4Addr::from_bits(NODE).into(), || {
            looked += 1;
            case.take(NODE, 1, if looked < 3 { 0 } else { 1000 })
        });
        drop(taken.await);
        assert!(looked == 3 && is_evicted(&held));
    }
}
