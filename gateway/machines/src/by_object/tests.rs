use std::path::Path;

use attest_store::Embedded;

use super::*;
use crate::enrolment::{allow, disallow, forget_name_of, give_name, names};
use crate::revocations::{list, machine, restore, revoke};

const OBJECT: &str = "tpm-ab";
const OTHER: &str = "tpm-abc";

fn store(folder: &Path) -> Embedded {
    Embedded::open(&folder.join("gateway.db")).unwrap()
}

fn ek(digits: &str) -> EkDigest {
    digits.repeat(32).parse().unwrap()
}

fn changed<const N: usize>(who: [&str; N]) -> EditResult {
    EditResult::Changed(who.iter().map(|who| (*who).to_owned()).collect())
}

async fn revoked(store: &Embedded) -> Vec<(String, Option<String>)> {
    let all = list(store).await.unwrap().into_iter();
    all.map(|(who, revocation)| (who, revocation.reason)).collect()
}

#[tokio::test]
async fn ban_revokes_all_identities_and_lifting_restores_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let tpm = NodeIdentity::from_ek(ek("ab"));
    give_name(&store, "worker-7", &tpm).await.unwrap();
    let done = ban(&store, tpm.as_str(), OBJECT, Some("sold"), 1).await.unwrap();
    assert_eq!(done, changed([tpm.as_str(), "worker-7"]));
    let why = Some("attestednode tpm-ab: sold".to_owned());
    assert_eq!(
        revoked(&store).await,
        [(tpm.to_string(), why.clone()), ("worker-7".to_owned(), why)]
    );
    assert_eq!(ban(&store, tpm.as_str(), OBJECT, None, 2).await.unwrap(), EditResult::Already);
    // Another object takes nothing of it back.
    assert_eq!(lift(&store, tpm.as_str(), OTHER).await.unwrap(), EditResult::ByCommand);
    assert_eq!(
        lift(&store, tpm.as_str(), OBJECT).await.unwrap(),
        changed([tpm.as_str(), "worker-7"])
    );
    assert!(revoked(&store).await.is_empty());
    assert_eq!(lift(&store, tpm.as_str(), OBJECT).await.unwrap(), EditResult::Already);
}

#[tokio::test]
async fn attack_46_lifting_a_ban_keeps_revocations_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let tpm = NodeIdentity::from_ek(ek("ab"));
    give_name(&store, "worker-7", &tpm).await.unwrap();
    // Before: the ban leaves it a command's.
    let all = machine(&store, tpm.as_str()).await.unwrap().all;
    revoke(&store, &all, 1, Some("sold")).await.unwrap();
    assert_eq!(ban(&store, tpm.as_str(), OBJECT, None, 2).await.unwrap(), EditResult::Already);
    assert_eq!(lift(&store, tpm.as_str(), OBJECT).await.unwrap(), EditResult::ByCommand);
    assert_eq!(revoked(&store).await.len(), 2);
    // A part of it before: the rest is the object's.
    restore(&store, tpm.as_str(), true).await.unwrap();
    assert_eq!(ban(&store, tpm.as_str(), OBJECT, None, 3).await.unwrap(), changed([tpm.as_str()]));
    assert_eq!(lift(&store, tpm.as_str(), OBJECT).await.unwrap(), changed([tpm.as_str()]));
    assert_eq!(revoked(&store).await, [("worker-7".to_owned(), Some("sold".to_owned()))]);
    // Since: it is a command's from then on, also without a reason.
    restore(&store, "worker-7", false).await.unwrap();
    ban(&store, tpm.as_str(), OBJECT, None, 4).await.unwrap();
    revoke(&store, &all, 5, None).await.unwrap();
    assert_eq!(lift(&store, tpm.as_str(), OBJECT).await.unwrap(), EditResult::ByCommand);
    assert_eq!(revoked(&store).await.len(), 2);
}

#[test]
fn revocation_reason_names_its_object() {
    let by = |reason: Option<&str>| {
        let revocation = Revocation {
            at: 1,
            reason: reason.map(str::to_owned),
            with: BTreeSet::new(),
        };
        is_by(&revocation, OBJECT)
    };
    assert!(by(Some("attestednode tpm-ab")) && by(Some("attestednode tpm-ab: sold")));
    for reason in [
        None,
        Some(""),
        Some("sold"),
        Some("tpm-ab"),
        Some("attestednode tpm-abc"),
        Some("attestednode tpm-a"),
        Some(" attestednode tpm-ab"),
        Some("attestednode tpm-ab sold"),
    ] {
        assert!(!by(reason), "{reason:?}");
    }
}

#[tokio::test]
async fn repeated_ban_covers_identities_bound_later() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let tpm = NodeIdentity::from_ek(ek("ab"));
    assert_eq!(ban(&store, tpm.as_str(), OBJECT, None, 1).await.unwrap(), changed([tpm.as_str()]));
    give_name(&store, "worker-7", &tpm).await.unwrap();
    assert_eq!(ban(&store, tpm.as_str(), OBJECT, None, 2).await.unwrap(), changed(["worker-7"]));
    assert_eq!(
        lift(&store, tpm.as_str(), OBJECT).await.unwrap(),
        changed([tpm.as_str(), "worker-7"])
    );
}

async fn listed(store: &Embedded, ek: EkDigest) -> Option<EkRecord> {
    let listed: Result<_, StoreError> = store.read(move |transaction| allowlisted(transaction, ek)).await;
    listed.unwrap()
}

#[tokio::test]
async fn attack_46_object_does_not_restore_a_removed_ek() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let worker = ["worker".to_owned()];
    let tpm = NodeIdentity::from_ek(ek("ab"));
    let approved = |pools: &'static [&'static str]| {
        let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        let store = &store;
        async move { approve(store, ek("ab"), None, &pools, 7).await.unwrap() }
    };
    assert_eq!(
        approve(&store, ek("ab"), Some("worker-7"), &worker, 1).await.unwrap(),
        changed([tpm.as_str()])
    );
    assert_eq!(names(&store).await.unwrap(), [("worker-7".to_owned(), tpm.to_string())]);
    // Without a name it keeps the one that it has; and when it was added.
    assert_eq!(approved(&["worker"]).await, EditResult::Already);
    assert_eq!(approved(&["infra"]).await, changed([tpm.as_str()]));
    let record = listed(&store, ek("ab")).await.unwrap();
    assert_eq!(
        (record.name.as_deref(), record.added, &*record.pools),
        (Some("worker-7"), 1, &["infra".to_owned()][..])
    );
    disallow(&store, &ek("ab").identity(), 3).await.unwrap();
    assert_eq!(approved(&["worker"]).await, EditResult::ByCommand);
    assert_eq!(listed(&store, ek("ab")).await.unwrap().removed, Some(3));
}

#[tokio::test]
async fn attack_46_edit_cannot_take_a_name_of_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let (worker, tpm) = (["worker".to_owned()], NodeIdentity::from_ek(ek("ab")));
    give_name(&store, "worker-7", &tpm).await.unwrap();
    let other = approve(&store, ek("cd"), Some("worker-7"), &worker, 1).await;
    assert!(matches!(other, Err(EnrolmentError::NameTaken { .. })), "{other:?}");
    assert_eq!(listed(&store, ek("cd")).await, None);
    let second = approve(&store, ek("ab"), Some("worker-8"), &worker, 1).await;
    assert!(matches!(second, Err(EnrolmentError::OtherName { .. })), "{second:?}");
    // Nor is one freed that is another's by now.
    assert!(!forget_name_of(&store, "worker-7", Some("tpm:other")).await.unwrap());
    assert!(!forget_name_of(&store, "worker-9", Some(tpm.as_str())).await.unwrap());
    assert_eq!(names(&store).await.unwrap().len(), 1);
    assert!(forget_name_of(&store, "worker-7", Some(tpm.as_str())).await.unwrap());
    assert!(names(&store).await.unwrap().is_empty());
    // By a command that has listed the name, it stays listed.
    let record = EkRecord {
        name: Some("worker-9".to_owned()),
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    };
    allow(&store, ek("ef"), record, false).await.unwrap();
    assert_eq!(
        approve(&store, ek("ef"), None, &worker, 2).await.unwrap(),
        changed([NodeIdentity::from_ek(ek("ef")).as_str()])
    );
    assert_eq!(listed(&store, ek("ef")).await.unwrap().name.as_deref(), Some("worker-9"));
}
