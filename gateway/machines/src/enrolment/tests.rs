use attest::protocol::HexDigest;
use attest_store::Embedded;

use super::*;

fn ek(byte: u8) -> EkDigest {
    HexDigest::from([byte; 32]).try_into().unwrap()
}

fn node(byte: u8) -> NodeIdentity {
    NodeIdentity::from_ek(ek(byte))
}

fn named(name: &str) -> EkRecord {
    EkRecord {
        name: Some(name.to_owned()),
        added: 0,
        pools: Vec::new(),
        note: None,
        removed: None,
    }
}

fn store() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

#[tokio::test]
async fn name_stays_with_its_owner_one_per_machine() {
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
async fn second_name_after_a_crash_is_forgotten_separately() {
    let (_folder, store) = store();
    give_name(&store, "a", &node(1)).await.unwrap();
    let half = StoreEntry {
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
async fn reserved_name_moves_only_if_requested() {
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
    assert!(allowlist(&store).await.unwrap().len() == 1, "a refused entry is none");
    give_name(&store, "b", &node(2)).await.unwrap();
    allow(&store, ek(2), named("a"), true).await.unwrap();
    let given: Vec<Option<String>> = allowlist(&store)
        .await
        .unwrap()
        .into_iter()
        .map(|(_, record)| record.name)
        .collect();
    assert_eq!(given, [None, Some("a".to_owned())], "the allowlist gives a name to one machine");
    let settled = async |byte: u8, record: &str, asked: Option<&'static str>| {
        let record = named(record);
        let settled = store.transact(move |transaction| settle_name(transaction, Some(&record), asked, &node(byte)));
        settled.await
    };
    assert_eq!(settled(2, "a", None).await.unwrap().as_deref(), Some("a"));
    assert!(matches!(settled(2, "a", Some("b")).await, Err(EnrolmentError::OtherName { .. })));
    assert!(
        matches!(settled(1, "a", None).await, Err(EnrolmentError::NameTaken { .. })),
        "its old machine"
    );
    give_name(&store, "b", &node(3)).await.unwrap();
}
