//! Changes stay in the outbox until they are recorded. A change and its outbox entry are committed together or not at all.

use std::sync::Arc;

use attest_store::{EntryChange, EntryKind, Store, StoreError, Transact, Witness};

use super::{Place, entry};

/// Witness that puts all changes into the outbox unmodified, and fails for one kind.
#[derive(Debug)]
struct Tells(EntryKind);

impl Tells {
    fn on(store: &Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::clone(store).witnessed(Arc::new(Self(EntryKind::Revoked)))
    }
}

impl Witness for Tells {
    fn outbox_entry(&self, changes: &[EntryChange]) -> Result<Option<String>, StoreError> {
        if changes.is_empty() {
            return Ok(None);
        }
        if changes.iter().any(|change| change.kind == self.0.as_str()) {
            return Err(StoreError::Random);
        }
        let one = |EntryChange { kind, id, before, after }: &EntryChange| {
            let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
            format!("{kind} {id} {} {}", value(before), value(after))
        };
        Ok(Some(changes.iter().map(one).collect::<Vec<_>>().join("; ")))
    }
}

async fn outbox_texts(store: &dyn Store) -> Vec<String> {
    let waiting = store.outbox(None, 1000).await.unwrap().into_iter();
    waiting.map(|waiting| waiting.value).collect()
}

pub async fn each_change_is_told_of_once_with_what_was_and_what_is<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let hands = Tells::on(&store);
    hands.put(EntryKind::Ek, entry("e/1", "1")).await.unwrap();
    // What is not otherwise than before is no change.
    hands.put(EntryKind::Ek, entry("e/1", "1")).await.unwrap();
    assert!(hands.insert(EntryKind::Ek, entry("e/1", "2")).await.unwrap().is_some());
    assert!(!hands.remove(EntryKind::Ek, "e/2").await.unwrap());
    let (before, after) = (vec![entry("e/1", "1")], vec![entry("e/1", "2"), entry("e/2", "3")]);
    assert!(hands.change(EntryKind::Ek, before.clone(), after.clone()).await.unwrap());
    assert!(!hands.change(EntryKind::Ek, before, after).await.unwrap());
    assert!(hands.remove(EntryKind::Ek, "e/1").await.unwrap());
    // What a refused transaction would have changed was not changed.
    let refused = hands.transact(|transaction| {
        transaction.put(EntryKind::Ek, entry("e/4", "1"))?;
        Err::<(), _>(StoreError::Random)
    });
    assert!(matches!(refused.await, Err(StoreError::Random)));
    hands.append_to_outbox("said".to_owned()).await.unwrap();
    // Whoever has nobody to tell of it changes what he changes.
    store.put(EntryKind::Ek, entry("e/3", "1")).await.unwrap();
    let all = ["ek e/1 - 1", "ek e/1 1 2; ek e/2 - 3", "ek e/1 2 -", "said"];
    assert_eq!(outbox_texts(&*place.open().await).await, all);
}

pub async fn what_cannot_be_told_of_is_not_done<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let hands = Tells::on(&store);
    store.put(EntryKind::Revoked, entry("a", "1")).await.unwrap();
    hands.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    hands.put(EntryKind::Revoked, entry("b", "1")).await.unwrap_err();
    hands.remove(EntryKind::Revoked, "a").await.unwrap_err();
    assert_eq!(store.list(EntryKind::Revoked).await.unwrap(), [entry("a", "1")]);
    assert_eq!(outbox_texts(&*store).await, ["name a - 1"]);
}

pub async fn what_waits_is_taken_in_order_and_page_by_page<P: Place>() {
    const CHANGES: usize = 300;
    let place = P::empty().await;
    let (store, other) = (place.open().await, place.open().await);
    let hands = [Tells::on(&store), Tells::on(&other)];
    for number in 0..CHANGES {
        let hands = &hands[number % 2];
        hands.put(EntryKind::Name, entry("a", &number.to_string())).await.unwrap();
    }
    let (mut found, mut last): (Vec<String>, Option<String>) = (Vec::new(), None);
    loop {
        let page = store.outbox(last.as_deref(), 70).await.unwrap();
        let Some(end) = page.last() else { break };
        assert!(last.as_ref().is_none_or(|last| *last < end.id));
        last = Some(end.id.clone());
        found.extend(page.into_iter().map(|waiting| waiting.value));
    }
    let value = |number: usize| number.checked_sub(1).map_or_else(|| "-".to_owned(), |before| before.to_string());
    let all: Vec<_> = (0..CHANGES).map(|number| format!("name a {} {number}", value(number))).collect();
    assert_eq!(found, all);
    let ids: Vec<_> = store
        .outbox(None, CHANGES)
        .await
        .unwrap()
        .into_iter()
        .map(|waiting| waiting.id)
        .collect();
    let (first, rest) = ids.split_at(CHANGES - 1);
    other.recorded(first.to_vec()).await.unwrap();
    other.recorded(first.to_vec()).await.unwrap();
    let left = store.outbox(None, CHANGES).await.unwrap();
    assert_eq!(left.into_iter().map(|waiting| waiting.id).collect::<Vec<_>>(), rest);
}
