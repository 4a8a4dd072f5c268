//! Transactions of decisions are atomic, and see a single state.

use std::collections::BTreeSet;

use attest::{EkDigest, NodeIdentity};
use attest_machines::enrolment::{self, EnrolmentError};
use attest_store::EntryTransaction;

use super::*;

const KIND: EntryKind = EntryKind::Instance;

pub async fn attack_33_a_decision_that_is_refused_leaves_nothing<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    store.put(EntryKind::Name, entry("n", "1")).await.unwrap();
    store.spend(thing("b", 1, 10)).await.unwrap();
    let before = store.store_mark().unwrap().mark;
    let refused = store.decide("d", |transaction| {
        assert_eq!(transaction.spend(&thing("a", 1, 10), &UseOccasion::Any, 5)?, granted(1));
        assert!(transaction.remove(EntryKind::Name, "n")?);
        transaction.put(KIND, entry("i", "1"))?;
        transaction.decide(decided("d"))?;
        match transaction.spend(&thing("b", 1, 10), &UseOccasion::Any, 5)? {
            Spend::Exhausted => Err(StoreError::Random),
            found => panic!("{found:?}"),
        }
    });
    let refused: Result<(), StoreError> = refused.await;
    assert!(matches!(refused, Err(StoreError::Random)), "{refused:?}");
    for store in [&store, &place.open().await] {
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
        assert_eq!(store.list(EntryKind::Name).await.unwrap(), [entry("n", "1")]);
        assert_eq!(store.list(KIND).await.unwrap(), []);
        assert_eq!(store.pending().await.unwrap(), []);
        assert!(!store.give_back("d").await.unwrap());
        assert_eq!(store.store_mark().unwrap().mark, before, "nothing was written");
    }
}

pub async fn an_error_of_the_work_writes_nothing_and_is_returned<P: Place>() {
    #[derive(Debug, PartialEq)]
    enum Refused {
        Here(u32),
        ByStore,
    }
    impl From<StoreError> for Refused {
        fn from(_: StoreError) -> Self {
            Self::ByStore
        }
    }
    let place = P::empty().await;
    let store = place.open().await;
    let work = |transaction: &mut EntryTransaction<'_>| {
        let found = transaction.get(KIND, "a")?.map_or(0, |entry| entry.value.parse().unwrap());
        transaction.put(KIND, entry("a", "7"))?;
        Err::<(), _>(Refused::Here(found))
    };
    assert_eq!(store.transact(work).await, Err(Refused::Here(0)));
    assert_eq!(store.decide("d", work).await, Err(Refused::Here(0)));
    store.put(KIND, entry("a", "3")).await.unwrap();
    // Others of the same commit are none the worse for it.
    let (refused, decided, other) = tokio::join!(store.transact(work), store.decide("d", work), store.put(KIND, entry("b", "1")));
    assert_eq!((refused, decided), (Err(Refused::Here(3)), Err(Refused::Here(3))));
    other.unwrap();
    assert_eq!(store.list(KIND).await.unwrap(), [entry("a", "3"), entry("b", "1")]);
}

pub async fn attack_44_what_a_transaction_reads_stood_there_at_one_moment<P: Place>() {
    const IDS: [&str; 3] = ["a", "b", "c"];
    let place = P::empty().await;
    let (store, other) = (place.open().await, place.open().await);
    let write = async |store: &dyn Store, value: usize| {
        let entries = IDS.map(|id| entry(id, &value.to_string())).to_vec();
        assert!(store.change(KIND, Vec::new(), entries).await.unwrap());
    };
    write(&*store, 0).await;
    let writes = {
        let store = store.clone();
        tokio::spawn(async move {
            for value in 1..=40 {
                write(&*store, value).await;
            }
        })
    };
    let mut number = 0;
    while !writes.is_finished() {
        // Read one after the other, and together; by a decision, and by who only reads.
        for (together, only_reads) in [(false, false), (false, true), (true, false), (true, true)] {
            let work = move |transaction: &mut EntryTransaction<'_>| {
                if together {
                    transaction.fetch(IDS.map(|id| (KIND, id)))?;
                }
                let mut found = BTreeSet::new();
                for id in IDS {
                    found.extend(transaction.get(KIND, id)?.map(|entry| entry.value));
                }
                Ok::<_, StoreError>(found)
            };
            let found = if only_reads {
                other.read(work).await.unwrap()
            } else {
                number += 1;
                let id = format!("d{number}");
                let decided = decided(&id);
                let found = other.decide(&id, move |transaction| {
                    let found = work(transaction)?;
                    transaction.decide(decided.clone())?;
                    Ok::<_, StoreError>(found)
                });
                found.await.unwrap()
            };
            assert_eq!(found.len(), 1, "{together} {only_reads}: {found:?}");
        }
    }
    writes.await.unwrap();
}

pub async fn attack_44_of_decisions_that_race_each_sees_what_the_others_have_written<P: Place>() {
    const EACH: usize = 20;
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    let racing: Vec<_> = (0..EACH)
        .flat_map(|_| stores.clone())
        .enumerate()
        .map(|(index, store)| {
            let id = format!("d{index}");
            tokio::spawn(async move {
                let decided = decided(&id);
                let counted = store.decide(&id, move |transaction| {
                    let found: usize = transaction.get(KIND, "a")?.map_or(0, |entry| entry.value.parse().unwrap());
                    transaction.put(KIND, entry("a", &(found + 1).to_string()))?;
                    transaction.spend(&thing("t", 1000, 10), &UseOccasion::Any, 5)?;
                    transaction.decide(decided.clone())?;
                    Ok::<_, StoreError>(found)
                });
                counted.await.unwrap()
            })
        })
        .collect();
    let mut seen = Vec::new();
    for one in racing {
        seen.push(one.await.unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..2 * EACH).collect::<Vec<_>>());
    assert_eq!(stores[1].get(KIND, "a").await.unwrap(), Some(entry("a", "40")));
    assert_eq!(stores[1].uses(EntryKind::Ticket, "t").await.unwrap(), 40);
    assert_eq!(stores[0].pending().await.unwrap().len(), 2 * EACH);
}

pub async fn attack_13_of_many_that_claim_the_same_one_has_it<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    let racing: Vec<_> = (0..30)
        .flat_map(|_| stores.clone())
        .enumerate()
        .map(|(index, store)| {
            let value = index.to_string();
            tokio::spawn(async move {
                let id = format!("d{value}");
                let decided = decided(&id);
                let claimed = store.decide(&id, move |transaction| {
                    if transaction.get(KIND, "a")?.is_some() {
                        return Ok::<_, StoreError>(false);
                    }
                    transaction.put(KIND, entry("a", &value))?;
                    transaction.decide(decided.clone())?;
                    Ok(true)
                });
                claimed.await.unwrap()
            })
        })
        .collect();
    let mut winners = Vec::new();
    for (index, claim) in racing.into_iter().enumerate() {
        if claim.await.unwrap() {
            winners.push(index.to_string());
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(decisions(&*stores[0]).await, [format!("d{}", winners[0])]);
    let holder = stores[0].get(KIND, "a").await.unwrap().map(|entry| entry.value);
    assert_eq!(holder, winners.pop());
}

pub async fn attack_13_of_two_decisions_about_one_name_exactly_one_gets_it<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    let machines = ["aa", "bb"].map(|byte| NodeIdentity::from_ek(byte.repeat(32).parse::<EkDigest>().unwrap()));
    for round in 0..20 {
        let name = format!("worker-{round}");
        let claims = |who: usize| {
            let (store, machine, name) = (stores[who].clone(), machines[who].clone(), name.clone());
            async move {
                let id = format!("{name} {who}");
                let decided = decided(&id);
                let claimed = store.decide(&id, move |transaction| {
                    let settled = enrolment::settle_name(transaction, None, Some(&name), &machine)?;
                    transaction.decide(decided.clone())?;
                    Ok::<_, EnrolmentError>(settled)
                });
                claimed.await
            }
        };
        let claimed: [Result<_, EnrolmentError>; 2] = tokio::join!(claims(0), claims(1)).into();
        let winner = usize::from(claimed[1].is_ok());
        assert_eq!(claimed[winner].as_ref().unwrap().as_deref(), Some(&*name));
        match &claimed[1 - winner] {
            Err(EnrolmentError::NameTaken { owner, claimant, .. }) => {
                assert_eq!((&**owner, &**claimant), (machines[winner].as_str(), machines[1 - winner].as_str()));
            }
            other => panic!("round {round}: {other:?}"),
        }
        // The name from both sides, and nothing of who was refused.
        let names = enrolment::names(&*stores[0]).await.unwrap();
        assert_eq!(names, [(name.clone(), machines[winner].to_string())]);
        let known = stores[1].list(EntryKind::NameOf).await.unwrap();
        assert_eq!(known, [entry(machines[winner].as_str(), &name)]);
        let decision = format!("{name} {winner}");
        assert_eq!(decisions(&*stores[winner]).await, [&*decision]);
        stores[winner].settle(&decision);
        assert!(enrolment::forget_name(&*stores[winner], &name).await.unwrap());
    }
}

pub async fn what_a_decision_has_written_stands_whatever_becomes_of_its_use<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let written = store.decide("d", |transaction| {
        transaction.put(KIND, entry("i", "1"))?;
        transaction.spend(&thing("a", 1, 10), &UseOccasion::Any, 5)?;
        transaction.decide(decided("d"))
    });
    written.await.unwrap();
    // Others meet it from then on.
    assert_eq!(store.insert(KIND, entry("i", "2")).await.unwrap(), Some(entry("i", "1")));
    assert!(store.give_back("d").await.unwrap());
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    assert_eq!(store.get(KIND, "i").await.unwrap(), Some(entry("i", "1")));
    place.close(store).await;
    let store = place.open().await;
    assert_eq!(store.get(KIND, "i").await.unwrap(), Some(entry("i", "1")));
    assert_eq!(store.pending().await.unwrap(), [without_use("d")], "until it is recorded");
}
