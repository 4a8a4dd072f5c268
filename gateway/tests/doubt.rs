//! A store that has done something and says that it has not: what a decision took of it is free again, as nobody got anything for it.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use attest_store::engine::{Engine, Work};
use attest_store::through::Through;
use attest_store::{Claim, Embedded, Entry, EntryKind, Holder, Occasion, Pending, Spend, Spendable, Store, StoreError};

/// An engine that loses its next answer.
#[derive(Debug)]
pub(crate) struct Doubting {
    pub(crate) engine: Embedded,
    pub(crate) lost: AtomicBool,
}

/// An engine that is away for what is asked for next.
#[derive(Debug)]
struct Away {
    engine: Embedded,
    away: AtomicBool,
}

fn away() -> StoreError {
    StoreError::Engine {
        engine: "away",
        place: "here".to_owned(),
        problem: "it does not answer".to_owned(),
        advice: String::new(),
    }
}

#[async_trait]
impl Through for Away {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        match self.away.swap(false, Ordering::Relaxed) {
            false => self.engine.transact(work).await,
            true => Err(away()),
        }
    }
}

#[async_trait]
impl Through for Doubting {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.engine.transact(work).await?;
        match self.lost.swap(false, Ordering::Relaxed) {
            false => Ok(()),
            true => Err(StoreError::Engine {
                engine: "doubting",
                place: "here".to_owned(),
                problem: "whether it was done is not known".to_owned(),
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

fn pending(decision: &str) -> Pending {
    Pending {
        decision: decision.to_owned(),
        at: 10,
    }
}

#[tokio::test]
async fn attack_33_a_use_whose_answer_was_lost_is_free_again_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Doubting {
        engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        lost: AtomicBool::new(false),
    };
    let by = |id: &str| {
        Occasion::By(Holder {
            id: id.to_owned(),
            seconds: 100,
            repeats: 1,
        })
    };
    for occasion in [Occasion::Any, by("a")] {
        store.lost.store(true, Ordering::Relaxed);
        store.spend_for(token(), occasion, pending("d1").into()).await.unwrap_err();
        let again = store.spend_for(token(), by("b"), pending("d2").into()).await.unwrap();
        assert_eq!(again, Spend::Granted { use_number: 1 });
        assert_eq!(store.pending().await.unwrap(), [pending("d2")]);
        assert!(store.give_back("d2").await.unwrap());
    }
    // And what it claimed.
    let claim = |value: &str| Claim {
        entry: Entry {
            id: "i".to_owned(),
            value: value.to_owned(),
        },
        instead_of: None,
    };
    store.lost.store(true, Ordering::Relaxed);
    store
        .claim(EntryKind::Instance, claim("1"), pending("d3").into())
        .await
        .unwrap_err();
    assert_eq!(
        store.claim(EntryKind::Instance, claim("2"), pending("d4").into()).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn attack_33_what_could_not_be_given_back_is_given_back_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Away {
        engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        away: AtomicBool::new(false),
    };
    let claim = |value: &str| Claim {
        entry: Entry {
            id: "i".to_owned(),
            value: value.to_owned(),
        },
        instead_of: None,
    };
    store.spend_for(token(), Occasion::Any, pending("d1").into()).await.unwrap();
    assert_eq!(
        store.claim(EntryKind::Instance, claim("1"), pending("d1").into()).await.unwrap(),
        None
    );
    store.away.store(true, Ordering::Relaxed);
    store.give_back("d1").await.unwrap_err();
    let again = store.spend_for(token(), Occasion::Any, pending("d2").into()).await.unwrap();
    assert_eq!(again, Spend::Granted { use_number: 1 });
    assert_eq!(
        store.claim(EntryKind::Instance, claim("2"), pending("d2").into()).await.unwrap(),
        None
    );
    assert_eq!(store.pending().await.unwrap(), [pending("d2")]);
}
