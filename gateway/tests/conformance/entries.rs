//! Entries that are written and read.

use super::*;

pub async fn a_change_is_made_only_of_what_was_expected<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    store.put(EntryKind::Token, entry("a", "1")).await.unwrap();
    let change = |expected: &[(&str, &str)], write: &[(&str, &str)]| {
        let entries = |pairs: &[(&str, &str)]| pairs.iter().map(|(id, value)| entry(id, value)).collect();
        store.change(EntryKind::Token, entries(expected), entries(write))
    };
    assert!(!change(&[("a", "2")], &[("a", "3"), ("b", "3")]).await.unwrap(), "another value");
    assert!(!change(&[("a", "1"), ("b", "1")], &[("a", "3")]).await.unwrap(), "one is missing");
    assert_eq!(store.list(EntryKind::Token).await.unwrap(), [entry("a", "1")]);
    assert!(change(&[("a", "1")], &[("a", "2"), ("b", "1")]).await.unwrap());
    assert!(!change(&[("a", "1")], &[("a", "3")]).await.unwrap(), "somebody was faster");
    assert!(change(&[], &[("c", "1")]).await.unwrap());
    let all = store.list(EntryKind::Token).await.unwrap();
    assert_eq!(all, [entry("a", "2"), entry("b", "1"), entry("c", "1")]);
}

pub async fn entries_of_any_kinds_are_written_together_or_not_at_all<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    let rewrite = async |refused: bool| {
        let rewritten = store.transact(move |transaction| {
            assert!(transaction.remove(EntryKind::Name, "a")?);
            transaction.put(EntryKind::NameOf, entry("b", "2"))?;
            transaction.put(EntryKind::Ek, entry("a", "3"))?;
            assert!(!transaction.remove(EntryKind::Token, "never there")?);
            // It sees what it has written.
            assert_eq!(transaction.get(EntryKind::Name, "a")?, None);
            assert_eq!(transaction.get(EntryKind::Ek, "a")?, Some(entry("a", "3")));
            if refused { Err(StoreError::Random) } else { Ok(()) }
        });
        rewritten.await
    };
    for _ in 0..2 {
        let refused = rewrite(true).await;
        assert!(matches!(refused, Err(StoreError::Random)), "{refused:?}");
        assert_eq!(store.list(EntryKind::Name).await.unwrap(), [entry("a", "1")]);
        assert_eq!(store.list(EntryKind::NameOf).await.unwrap(), []);
        assert_eq!(store.list(EntryKind::Ek).await.unwrap(), []);
    }
    rewrite(false).await.unwrap();
    for (kind, there) in [
        (EntryKind::Name, vec![]),
        (EntryKind::NameOf, vec![entry("b", "2")]),
        (EntryKind::Ek, vec![entry("a", "3")]),
    ] {
        assert_eq!(store.list(kind).await.unwrap(), there);
    }
}

pub async fn attack_18_of_many_that_change_the_same_one_writes<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    stores[0].put(EntryKind::Token, entry("a", "0")).await.unwrap();
    for round in 0..5 {
        let (before, after) = (round.to_string(), (round + 1).to_string());
        let racing: Vec<_> = (0..8)
            .flat_map(|_| stores.clone())
            .map(|store| {
                let (expected, write) = (vec![entry("a", &before)], vec![entry("a", &after), entry("b", &after)]);
                tokio::spawn(async move { store.change(EntryKind::Token, expected, write).await.unwrap() })
            })
            .collect();
        let mut written = 0;
        for change in racing {
            written += u32::from(change.await.unwrap());
        }
        assert_eq!(written, 1, "round {round}");
    }
}

pub async fn the_first_entry_stays_until_it_is_put_or_removed<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(store.insert(EntryKind::Name, entry("a", "1")).await.unwrap(), None);
    assert_eq!(store.insert(EntryKind::Name, entry("a", "2")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.get(EntryKind::Ek, "a").await.unwrap(), None);
    store.put(EntryKind::Name, entry("a", "3")).await.unwrap();
    store.put(EntryKind::Name, entry("0", "x")).await.unwrap();
    assert_eq!(store.list(EntryKind::Name).await.unwrap(), [entry("0", "x"), entry("a", "3")]);
    assert!(store.remove(EntryKind::Name, "a").await.unwrap());
    assert!(!store.remove(EntryKind::Name, "a").await.unwrap());
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), None);
}

pub async fn ids_are_told_apart_whatever_is_in_them<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let mut ids = [
        "",
        "a",
        "a/",
        "a/b",
        "a%2Fb",
        "/",
        "//",
        "%",
        "a\0",
        "a\u{1}",
        "a\u{7f}",
        "ä",
        "\u{10ffff}",
        "a b",
        "..",
        "name",
        "0",
        "A",
    ];
    for kind in [EntryKind::Name, EntryKind::NameOf] {
        for id in ids {
            assert_eq!(store.insert(kind, entry(id, id)).await.unwrap(), None, "{id:?}");
        }
    }
    for id in ids {
        assert_eq!(store.spend(thing(id, 1, 10)).await.unwrap(), granted(1), "{id:?}");
        assert_eq!(spend_for(&*store, id, 2, &format!("decision {id}")).await, granted(2), "{id:?}");
        assert_eq!(store.uses(EntryKind::Ticket, id).await.unwrap(), 2, "{id:?}");
    }
    place.close(store).await;
    let store = place.open().await;
    ids.sort_unstable();
    let all: Vec<_> = ids.iter().map(|id| entry(id, id)).collect();
    assert_eq!(store.list(EntryKind::Name).await.unwrap(), all);
    assert!(store.remove(EntryKind::Name, "a").await.unwrap());
    assert_eq!(store.list(EntryKind::Name).await.unwrap().len(), ids.len() - 1);
    assert_eq!(store.list(EntryKind::NameOf).await.unwrap(), all);
    assert_eq!(decisions(&*store).await, ids.map(|id| format!("decision {id}")));
    for id in ids {
        assert!(store.give_back(&format!("decision {id}")).await.unwrap());
        assert_eq!(store.uses(EntryKind::Ticket, id).await.unwrap(), 1, "{id:?}");
    }
}

pub async fn a_hundred_thousand_entries_are_listed_by_id<P: Place>() {
    const ENTRIES: usize = 100_000;
    const AT_ONCE: usize = 50;
    let place = P::empty().await;
    let store = place.open().await;
    let id = |number: usize| format!("{number:06}");
    let mut writing = tokio::task::JoinSet::new();
    for first in (0..ENTRIES).step_by(AT_ONCE) {
        let entries: Vec<_> = (first..first + AT_ONCE)
            .map(|number| entry(&id(number), &number.to_string()))
            .collect();
        let store = store.clone();
        writing.spawn(async move { store.change(EntryKind::Name, Vec::new(), entries).await.unwrap() });
        while writing.len() >= 64 {
            assert!(writing.join_next().await.unwrap().unwrap());
        }
    }
    assert!(writing.join_all().await.into_iter().all(|written| written));
    store.put(EntryKind::NameOf, entry("another kind", "1")).await.unwrap();
    let all = store.list(EntryKind::Name).await.unwrap();
    assert_eq!(all.len(), ENTRIES);
    let mut in_order = all.iter().enumerate();
    assert!(in_order.all(|(number, found)| *found == entry(&id(number), &number.to_string())));
}

pub async fn what_is_written_raises_the_mark_and_what_is_read_does_not<P: Place>() {
    let place = P::empty().await;
    let (store, other) = (place.open().await, place.open().await);
    let mark = async |store: &dyn Store| {
        store.get(EntryKind::Name, "a").await.unwrap();
        store.store_mark().unwrap()
    };
    let first = mark(&*store).await;
    store.remove(EntryKind::Name, "a").await.unwrap();
    store.list(EntryKind::Name).await.unwrap();
    store.pending().await.unwrap();
    would_spend(&*store, thing("a", 1, 10), UseOccasion::Any, 5).await.unwrap();
    assert_eq!(mark(&*store).await, first);
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    let put = mark(&*store).await;
    store.spend(thing("a", 1, 10)).await.unwrap();
    let spent = mark(&*store).await;
    assert!(first.mark < put.mark && put.mark < spent.mark, "{first} {put} {spent}");
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    assert_eq!(mark(&*store).await, spent, "nothing was written");
    other.put(EntryKind::Name, entry("b", "1")).await.unwrap();
    let others = mark(&*store).await;
    assert!(others.mark > spent.mark, "another process has written");
    assert_eq!(others.id, first.id);
    store.keep_mark().await.unwrap();
}
