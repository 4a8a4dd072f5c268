use attest::protocol::HexDigest;
use attest_store::Embedded;

use super::*;

fn pending(decision: &str) -> Pending {
    let decision = decision.to_owned();
    Pending { decision, at: 1 }
}

fn ek(byte: u8) -> EkDigest {
    HexDigest::from([byte; 32]).try_into().unwrap()
}

fn node(byte: u8) -> NodeIdentity {
    NodeIdentity::of_tpm(ek(byte))
}

fn named(name: &str) -> EkRecord {
    EkRecord {
        name: Some(name.to_owned()),
        added: 0,
        pools: Vec::new(),
        removed: None,
    }
}

fn store() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

#[tokio::test]
async fn attack_33_a_name_that_another_may_not_get_is_waited_for_and_not_refused() {
    for comes_to_nothing in [true, false] {
        let (_folder, store) = store();
        let claim = async |name, byte, decision| claim_name(&mut Reading::of(&store), name, &node(byte), &pending(decision)).await;
        claim("a", 1, "d1").await.unwrap();
        // Another machine asks for its name, and it for another name.
        for (name, byte) in [("a", 2), ("b", 1)] {
            let undecided = claim(name, byte, "d2").await;
            assert!(matches!(undecided, Err(EnrolmentError::Undecided { .. })), "{undecided:?}");
            store.give_back("d2").await.unwrap();
        }
        if comes_to_nothing {
            store.give_back("d1").await.unwrap();
            claim("a", 2, "d3").await.unwrap();
        } else {
            store.settle("d1");
            assert!(matches!(claim("a", 2, "d3").await, Err(EnrolmentError::NameTaken { .. })));
            assert!(matches!(claim("b", 1, "d3").await, Err(EnrolmentError::OtherName { .. })));
        }
    }
}

#[tokio::test]
async fn a_name_stays_with_whom_it_was_given_to_and_nobody_collects_names() {
    let (_folder, store) = store();
    give_name(&store, "a", &node(1)).await.unwrap();
    give_name(&store, "a", &node(1)).await.unwrap();
    assert!(matches!(
        give_name(&store, "a", &node(2)).await,
        Err(EnrolmentError::NameTaken { .. })
    ));
    assert!(matches!(
        give_name(&store, "b", &node(1)).await,
        Err(EnrolmentError::OtherName { .. })
    ));
    give_name(&store, "b", &node(2)).await.unwrap();
    assert!(forget_name(&store, "a").await.unwrap());
    assert!(!forget_name(&store, "a").await.unwrap());
    give_name(&store, "a", &node(3)).await.unwrap();
    give_name(&store, "c", &node(1)).await.unwrap();
    let owners: Vec<String> = names(&store).await.unwrap().into_iter().map(|(_, identity)| identity).collect();
    assert_eq!(owners, [node(3).to_string(), node(2).to_string(), node(1).to_string()]);
}

#[tokio::test]
async fn a_second_name_that_a_crash_has_left_is_forgotten_alone() {
    let (_folder, store) = store();
    give_name(&store, "a", &node(1)).await.unwrap();
    let half = Entry {
        id: "b".to_owned(),
        value: node(1).to_string(),
    };
    store.insert(EntryKind::Name, half).await.unwrap();
    assert!(forget_name(&store, "b").await.unwrap());
    assert!(matches!(
        give_name(&store, "c", &node(1)).await,
        Err(EnrolmentError::OtherName { .. })
    ));
    give_name(&store, "b", &node(2)).await.unwrap();
}

#[tokio::test]
async fn a_name_from_the_administrator_is_taken_at_once_and_moves_only_when_told() {
    let (_folder, store) = store();
    allow(&store, ek(1), named("a"), false).await.unwrap();
    assert!(matches!(
        give_name(&store, "a", &node(2)).await,
        Err(EnrolmentError::NameTaken { .. })
    ));
    assert!(matches!(
        allow(&store, ek(2), named("a"), false).await,
        Err(EnrolmentError::NameTaken { .. })
    ));
    assert!(
        allowlisted(&mut Reading::of(&store), ek(2)).await.unwrap().is_none(),
        "a refused entry is none"
    );
    give_name(&store, "b", &node(2)).await.unwrap();
    allow(&store, ek(2), named("a"), true).await.unwrap();
    let settled = |ek: u8, record: &'static str, asked: Option<&'static str>| {
        let store = &store;
        async move {
            let settled = settle_name(&mut Reading::of(store), Some(&named(record)), asked, &node(ek), &pending("d")).await;
            store.settle("d");
            settled
        }
    };
    assert_eq!(settled(2, "a", None).await.unwrap().as_deref(), Some("a"));
    assert!(matches!(settled(2, "a", Some("b")).await, Err(EnrolmentError::OtherName { .. })));
    assert!(
        matches!(settled(1, "a", None).await, Err(EnrolmentError::NameTaken { .. })),
        "its old machine"
    );
    give_name(&store, "b", &node(3)).await.unwrap();
}

#[tokio::test]
async fn a_name_that_the_administrator_gives_stays_though_a_claim_of_it_comes_to_nothing() {
    let (_folder, store) = store();
    claim_name(&mut Reading::of(&store), "a", &node(1), &pending("d")).await.unwrap();
    allow(&store, ek(1), named("a"), false).await.unwrap();
    store.give_back("d").await.unwrap();
    assert_eq!(names(&store).await.unwrap(), [("a".to_owned(), node(1).to_string())]);
    assert!(matches!(
        give_name(&store, "b", &node(1)).await,
        Err(EnrolmentError::OtherName { .. })
    ));
    // Who has a name already, and claims another that the administrator gives to nobody else, takes it from nobody.
    assert!(matches!(
        claim_name(&mut Reading::of(&store), "b", &node(1), &pending("d")).await,
        Err(EnrolmentError::OtherName { .. })
    ));
    assert_eq!(store.get(EntryKind::Name, "b").await.unwrap(), None);
    assert_eq!(store.pending().await.unwrap(), []);
    give_name(&store, "b", &node(2)).await.unwrap();
}
