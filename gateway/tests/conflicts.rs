//! A gateway that pauses between verification and the transaction that decides, while another process changes the data of the verification.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::interleaving::interleave;
use crate::support::kubelet::{self, Cluster, PATH, embedded, in_process};
use crate::support::{Answer, Gateway, POOL, digest, tpm};
use attest::EkDigest;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::revocations;
use attest_store::{EntryKind, Store};

const NAME: &str = "worker-0";

async fn revoke(store: Arc<dyn Store>, who: String) {
    revocations::revoke(&*store, &BTreeSet::from([who]), 1, None).await.unwrap();
}

/// Sends evidence that asks for a name, and runs a step before each deciding transaction, `times` times.
async fn attest<F: Future<Output = ()> + Send + 'static>(
    times: usize,
    step: impl Fn(Arc<dyn Store>, EkDigest) -> F + Send + Sync + 'static,
) -> (Gateway, Arc<dyn Store>, Answer) {
    let gateway = Gateway::init();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let ek: EkDigest = digest(&case).parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    in_process(&gateway, Arc::new(interleave(&store, times, move |store| step(store, ek)))).await;
    let answer = gateway.attest(case, Some(NAME)).await;
    assert!(
        answer.status == 200 || store.list(EntryKind::Name).await.unwrap().is_empty(),
        "what is refused claims nothing"
    );
    assert_eq!(store.pending().await.unwrap().len(), 0);
    (gateway, store, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_reappraises_evidence_after_a_concurrent_revocation() {
    let (gateway, _, answer) = attest(1, |store, ek| revoke(store, format!("tpm:{ek}"))).await;
    answer.refused(403, "node-revoked");
    let (by_name, _, answer) = attest(1, |store, _| revoke(store, NAME.to_owned())).await;
    answer.refused(403, "node-revoked");
    let (off, _, answer) = attest(1, |store, ek| async move {
        assert!(enrolment::disallow(&*store, &ek.identity(), 1).await.unwrap());
    })
    .await;
    answer.refused(403, "ek-not-endorsed");
    for gateway in [gateway, by_name, off] {
        assert_eq!(gateway.records().len(), 1, "it is decided once");
        let table = gateway.command(&["log", "audit"]);
        assert!(table.contains("1 as recorded, 0 different"), "{table}");
    }
}

/// Writes another allowlist entry that lets the machine join as before.
async fn rewrite_entry(store: Arc<dyn Store>, ek: EkDigest) {
    let found = store.get(EntryKind::Ek, &ek.to_string()).await.unwrap().unwrap();
    let mut record: EkRecord = serde_json::from_str(&found.value).unwrap();
    record.added += 1;
    enrolment::allow(&*store, ek, record, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_a_conflicting_attestation_with_a_limit() {
    let (gateway, store, answer) = attest(1, rewrite_entry).await;
    answer.ticket();
    let names = enrolment::names(&*store).await.unwrap();
    assert_eq!(names.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), [NAME]);
    let records = gateway.records();
    assert_eq!(records.len(), 1);
    assert_eq!((&records[0]["verdict"], &records[0]["name"]), (&"trusted".into(), &NAME.into()));
    let (gateway, _, answer) = attest(usize::MAX, rewrite_entry).await;
    answer.refused(503, "unavailable");
    assert_eq!(gateway.records().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_refuses_a_kubelet_revoked_during_the_decision() {
    let cluster = Cluster::new();
    for (who, served) in [("worker-1", false), ("worker-2", true)] {
        let gateway = kubelet::init(&cluster);
        let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
        in_process(
            &gateway,
            Arc::new(interleave(&store, 1, move |store| revoke(store, who.to_owned()))),
        )
        .await;
        let answer = kubelet::get(&gateway, &cluster.kubelet("worker-1"), PATH).await;
        match served {
            true => answer.is_config(&gateway.rendered(POOL, "full")),
            false => answer.refused(403, "node-revoked"),
        }
    }
}
