//! A store that commits and reports a failure: the use that a decision took is free again, because no client got anything for it.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use attest_store::engine::{Engine, Work};
use attest_store::engine_layer::EngineLayer;
use attest_store::{
    DecisionRecord, Embedded, EntryKind, Pending, Spend, Spendable, Store, StoreEntry, StoreError, Transact, UseHolder, UseOccasion,
};

use crate::conformance::{decided, pending, try_use, use_for, without_use};

/// Engine that loses its next answer.
#[derive(Debug)]
pub(crate) struct Doubting {
    pub(crate) engine: Embedded,
    pub(crate) lost: AtomicBool,
}

/// Engine that is unavailable for the next request.
#[derive(Debug)]
struct Away {
    engine: Embedded,
    away: AtomicBool,
}

fn unavailable() -> StoreError {
    StoreError::Engine {
        engine: "away",
        place: "here".to_owned(),
        problem: "it does not answer".to_owned(),
        advice: String::new(),
    }
}

#[async_trait]
impl EngineLayer for Away {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        match self.away.swap(false, Ordering::Relaxed) {
            false => Engine::transact(&self.engine, work).await,
            true => Err(unavailable()),
        }
    }
}

#[async_trait]
impl EngineLayer for Doubting {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        Engine::transact(&self.engine, work).await?;
        match self.lost.swap(false, Ordering::Relaxed) {
            false => Ok(()),
            true => Err(StoreError::Engine {
                engine: "doubting",
                place: "here".to_owned(),
                problem: "it is unknown whether the transaction was committed".to_owned(),
                advice: String::new(),
            }),
        }
    }
}

fn token() -> Spendable {
    Spendable {
        kind: EntryKind::TokenUse,
        id: "t".to_owned(),
        limit: 1,
        remember_until: 1000,
    }
}

/// Uses the token, and claims an instance, for a decision.
async fn use_and_claim(store: &dyn Store, decided: DecisionRecord, value: &'static str) -> Result<Option<Spend>, StoreError> {
    let id = decided.decision.clone();
    let done = store.decide(&id, move |transaction| {
        if transaction.get(EntryKind::Instance, "i")?.is_some_and(|entry| entry.value != value) {
            return Ok(None);
        }
        let (id, value) = ("i".to_owned(), value.to_owned());
        transaction.put(EntryKind::Instance, StoreEntry { id, value })?;
        let found = transaction.spend(&token(), &UseOccasion::Any, decided.at)?;
        transaction.decide(decided.clone())?;
        Ok::<_, StoreError>(Some(found))
    });
    done.await
}

#[tokio::test]
async fn attack_33_frees_a_use_whose_commit_answer_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = Doubting {
        engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        lost: AtomicBool::new(false),
    };
    let by = |id: &str| {
        UseOccasion::By(UseHolder {
            id: id.to_owned(),
            seconds: 100,
            repeats: 1,
        })
    };
    let mut lost: Vec<Pending> = Vec::new();
    for (decision, occasion) in [("d1", UseOccasion::Any), ("d3", by("a"))] {
        store.lost.store(true, Ordering::Relaxed);
        try_use(&store, token(), occasion, decided(decision)).await.unwrap_err();
        let again = use_for(&store, token(), by("b"), decided("d2")).await;
        assert_eq!(again, Spend::Granted { use_number: 1 });
        // It may stand all the same, and is recorded in time: it has no use any more.
        lost.push(without_use(decision));
        let mut expected = lost.clone();
        expected.insert(1, pending("d2"));
        assert_eq!(store.pending().await.unwrap(), expected);
        assert!(store.give_back("d2").await.unwrap());
        store.settle("d2");
    }
    // What it claimed stands: it was written.
    store.lost.store(true, Ordering::Relaxed);
    use_and_claim(&store, decided("d4"), "1").await.unwrap_err();
    assert_eq!(use_and_claim(&store, decided("d5"), "2").await.unwrap(), None);
    // Whoever has it comes again.
    let again = use_and_claim(&store, decided("d6"), "1").await.unwrap();
    assert_eq!(again, Some(Spend::Granted { use_number: 1 }));
}

#[tokio::test]
async fn attack_33_retries_giving_back_a_use_without_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Away {
        engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        away: AtomicBool::new(false),
    };
    let first = use_and_claim(&store, decided("d1"), "1").await.unwrap();
    assert_eq!(first, Some(Spend::Granted { use_number: 1 }));
    let meanwhile = use_for(&store, token(), UseOccasion::Any, decided("d0")).await;
    assert_eq!(meanwhile, Spend::Exhausted);
    store.away.store(true, Ordering::Relaxed);
    store.give_back("d1").await.unwrap_err();
    let again = use_and_claim(&store, decided("d2"), "1").await.unwrap();
    assert_eq!(again, Some(Spend::Granted { use_number: 1 }));
    assert_eq!(store.pending().await.unwrap(), [without_use("d1"), pending("d2")]);
}
