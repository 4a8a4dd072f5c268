//! Idempotent retries: uses that their holder can make again.

use attest_store::UseHolder;

use super::*;

/// Store with the token `t`.
struct Case<P> {
    /// Dropped first, because its shutdown needs the place.
    store: Arc<dyn Store>,
    place: P,
}

fn token(limit: u32) -> Spendable {
    Spendable {
        kind: EntryKind::TokenUse,
        ..thing("t", limit, 1_000_000)
    }
}

fn by(who: &str) -> UseOccasion {
    UseOccasion::By(UseHolder {
        id: who.to_owned(),
        seconds: HOUR,
        repeats: 2,
    })
}

const fn repeated(use_number: u32) -> Spend {
    Spend::Again { use_number }
}

impl<P: Place> Case<P> {
    async fn new() -> Self {
        let place = P::empty().await;
        let store = place.open().await;
        Self { store, place }
    }

    async fn spend(&self, limit: u32, who: &str, decision: &str, at: u64) -> Spend {
        let would = would_spend(&*self.store, token(limit), by(who), at).await.unwrap();
        let found = use_for(&*self.store, token(limit), by(who), decided_at(decision, at)).await;
        assert_eq!(would, found);
        found
    }

    async fn recorded(&self, limit: u32, who: &str, decision: &str, at: u64) -> Spend {
        let found = self.spend(limit, who, decision, at).await;
        self.store.settle(decision);
        found
    }

    /// Returns the decisions whose uses count and can be given back.
    async fn with_use(&self) -> Vec<String> {
        let pending = self.store.pending().await.unwrap().into_iter();
        let with_use = pending.filter(|pending| pending.has_use);
        with_use.map(|pending| pending.decided.decision).collect()
    }

    async fn crash_and_open(&mut self) {
        let opened = self.place.open().await;
        crash(std::mem::replace(&mut self.store, opened));
    }

    async fn close_and_open(self) -> Self {
        self.place.close(self.store).await;
        let store = self.place.open().await;
        Self { store, place: self.place }
    }
}

pub async fn who_comes_again_makes_the_same_use_for_a_while_and_not_without_end<P: Place>() {
    let case = Case::<P>::new().await;
    assert_eq!(case.recorded(1, "a", "d1", 100).await, granted(1));
    assert_eq!(case.recorded(1, "b", "d2", 100).await, Spend::Exhausted, "somebody else");
    assert_eq!(case.recorded(1, "a", "d3", 100 + HOUR).await, repeated(1));
    assert_eq!(case.recorded(1, "a", "d4", 101 + HOUR).await, Spend::Exhausted, "too late");
    // What the clock says counts, and what it said; one that was set back has no more repeats.
    assert_eq!(case.recorded(1, "a", "d5", 7).await, repeated(1));
    assert_eq!(case.recorded(1, "a", "d6", 100).await, Spend::Exhausted, "too often");
    let case = case.close_and_open().await;
    assert_eq!(case.recorded(1, "a", "d7", 100).await, Spend::Exhausted, "a start changes nothing");
    // Where there are uses left, it is one more, which can be made again in its turn.
    assert_eq!(case.recorded(2, "a", "d8", 200 + HOUR).await, granted(2));
    assert_eq!(case.recorded(2, "a", "d9", 200 + HOUR).await, repeated(2));
    // What goes with the token goes whole.
    case.store.remove(EntryKind::Token, "t").await.unwrap();
    assert_eq!(case.recorded(1, "b", "d10", 200 + HOUR).await, granted(1));
    assert_eq!(case.recorded(1, "a", "d11", 200 + HOUR).await, Spend::Exhausted);
}

pub async fn attack_33_a_use_that_comes_to_nothing_is_nobodys_also_after_a_crash<P: Place>() {
    let mut case = Case::<P>::new().await;
    assert_eq!(case.spend(1, "a", "d1", 100).await, granted(1));
    case.crash_and_open().await;
    assert!(case.store.give_back("d1").await.unwrap());
    assert_eq!(case.recorded(1, "b", "d2", 100).await, granted(1));
    let before = case.recorded(1, "a", "d3", 100).await;
    assert_eq!(before, Spend::Exhausted, "it has not made the use that is another's now");
    assert_eq!(case.recorded(1, "b", "d4", 100).await, repeated(1));
}

pub async fn attack_33_a_repeat_that_comes_to_nothing_is_no_repeat_also_after_a_crash<P: Place>() {
    let case = Case::<P>::new().await;
    case.recorded(1, "a", "d", 100).await;
    let mut case = case.close_and_open().await;
    for decision in ["d1", "d2", "d3", "d4"] {
        assert_eq!(case.spend(1, "a", decision, 100).await, repeated(1));
        case.crash_and_open().await;
        assert_eq!(case.with_use().await, [decision]);
        assert!(case.store.give_back(decision).await.unwrap());
        assert!(!case.store.give_back(decision).await.unwrap(), "once");
    }
    assert_eq!(case.store.uses(EntryKind::TokenUse, "t").await.unwrap(), 1);
    for (decision, found) in [("d5", repeated(1)), ("d6", repeated(1)), ("d7", Spend::Exhausted)] {
        assert_eq!(case.recorded(1, "a", decision, 100).await, found);
    }
    for decision in ["d1", "d2", "d3", "d4"] {
        case.store.settle(decision);
    }
    let case = case.close_and_open().await;
    assert!(case.store.pending().await.unwrap().is_empty());
}

/// Two decisions share a use: one of their answers may have been delivered, and it is unknown which one.
pub async fn attack_18_a_use_that_its_holder_has_made_again_since_stays_used<P: Place>() {
    // In whatever order they come to nothing, and whichever is recorded.
    for (back, settled, is_free) in [
        (["d1", "d2"].as_slice(), [].as_slice(), false),
        (&["d2", "d1"], &[], true),
        (&["d1"], &["d2"], false),
        (&["d2"], &["d1"], false),
    ] {
        for settled_first in [true, false] {
            let case = Case::<P>::new().await;
            assert_eq!(case.spend(1, "a", "d1", 100).await, granted(1));
            assert_eq!(case.spend(1, "a", "d2", 100).await, repeated(1));
            let settle = || settled.iter().for_each(|decision| case.store.settle(decision));
            if settled_first {
                settle();
            }
            for decision in back {
                assert_eq!(case.spend(1, "b", "other", 100).await, Spend::Exhausted, "{back:?} {settled:?}");
                case.store.give_back(decision).await.unwrap();
            }
            settle();
            let free = case.spend(1, "b", "d3", 100).await == granted(1);
            assert_eq!(free, is_free, "{back:?} {settled:?}");
            let has = case.spend(1, "a", "d4", 100).await == repeated(1);
            assert_eq!(has, !is_free, "{back:?} {settled:?}");
        }
    }
}

pub async fn whose_use_was_forgotten_has_none<P: Place>() {
    let case = Case::<P>::new().await;
    case.store.put(EntryKind::Token, entry("t", "{}")).await.unwrap();
    assert_eq!(case.spend(1, "a", "d1", 100).await, granted(1));
    assert!(case.store.remove(EntryKind::Token, "t").await.unwrap());
    assert_eq!(decisions(&*case.store).await, ["d1"], "its decision is pending still");
    // The same number, by somebody else: who had it before gives nothing back of that.
    assert_eq!(case.spend(1, "b", "d2", 100).await, granted(1));
    assert!(!case.store.give_back("d1").await.unwrap());
    assert_eq!(case.spend(1, "a", "d3", 100).await, Spend::Exhausted);
    assert_eq!(case.spend(1, "b", "d4", 100).await, repeated(1));
}
