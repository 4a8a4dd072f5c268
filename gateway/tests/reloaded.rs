//! Changes of a pool, and passing time, during a decision: the result follows the pool that is served at the end.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use attest::EkDigest;
use attest_gateway::pools::live::{LivePools, ReloadCause};
use attest_machines::enrolment::{self, EkRecord};
use attest_store::{EntryKind, Store};

use crate::support::interleaving::after;
use crate::support::kubelet::{embedded, in_process};
use crate::support::{Answer, Gateway, POOL, bearer, next_boot, now, tpm};
use crate::torn;

const FULL: &str = "attested = \"full\"";
const REFUSE: &str = "attested = \"refuse\"";

/// Sends a request to a gateway whose pool gets the second of these grants before that step of a decision. Also returns whether that step
/// was reached.
async fn ask(gateway: &Gateway, grants: [&'static str; 2], steps: usize, request: impl AsyncFnOnce(&Gateway) -> Answer) -> (Answer, bool) {
    let pool = gateway.path("pools/worker/pool.toml");
    let text = fs::read_to_string(&pool).unwrap();
    let [before, later] = grants.map(|grant| text.replace(FULL, grant));
    fs::write(&pool, &before).unwrap();
    let store: Arc<dyn Store> = Arc::new(embedded(gateway));
    let (pools, done): (Arc<OnceLock<Arc<LivePools>>>, _) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let (served, count) = (Arc::clone(&pools), Arc::clone(&done));
    let stand_in = after(&store, steps, move |_| {
        let (served, count, pool, later) = (Arc::clone(&served), Arc::clone(&count), pool.clone(), later.clone());
        async move {
            fs::write(&pool, later).unwrap();
            served.get().unwrap().reload(ReloadCause::Signal, None).await;
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let inner = in_process(gateway, Arc::new(stand_in)).await;
    pools.set(Arc::clone(&inner.pools)).unwrap();
    let answer = request(gateway).await;
    assert_eq!(store.pending().await.unwrap(), [], "what is not given is not written");
    (answer, done.load(Ordering::Relaxed) == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_a_grant_withdrawn_during_the_decision_gives_nothing() {
    for steps in 0.. {
        let gateway = Gateway::init();
        let case = tpm();
        gateway.endorse(&case, &[]);
        let again = next_boot(&case);
        let (answer, done) = ask(&gateway, [FULL, REFUSE], steps, async |gateway| {
            gateway.attest(case, Some("worker-0")).await
        })
        .await;
        if !done {
            answer.ticket();
            // Before it is looked who vouches for its TPM, and before the transaction that decides.
            assert_eq!(steps, 2);
            break;
        }
        answer.refused(403, "attested-not-accepted");
        gateway.attest(again, Some("worker-0")).await.refused(403, "attested-not-accepted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_changed_during_the_decision_applies() {
    for steps in 0..2 {
        let gateway = Gateway::init();
        let case = tpm();
        gateway.endorse(&case, &[]);
        let attest = async |gateway: &Gateway| gateway.attest(case, None).await;
        let (answer, done) = ask(&gateway, [REFUSE, FULL], steps, attest).await;
        assert!(done);
        answer.ticket();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_checks_ticket_and_pool_in_one_snapshot() {
    let gateway = Gateway::init();
    let ek = gateway.endorse(&tpm(), &[]);
    let ticket = bearer(&torn::ticket(&gateway, ek.parse().unwrap()));
    let fetch = async |gateway: &Gateway| gateway.config("/config/worker", &[&ticket]).await;
    let (answer, done) = ask(&gateway, [FULL, REFUSE], 0, fetch).await;
    assert!(done);
    answer.check_retry();
    fetch(&gateway).await.refused(403, "attested-not-accepted");
    assert_eq!(gateway.records().len(), 1, "nothing was decided in between");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_a_retried_decision_uses_the_current_time() {
    for is_over in [false, true] {
        let gateway = Gateway::init();
        let case = tpm();
        let ek: EkDigest = gateway.endorse(&case, &[]).parse().unwrap();
        let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
        let mut challenge = gateway.challenge(&case, None);
        let later = now() + 2;
        challenge.expires = later + if is_over { 0 } else { 100 };
        let stand_in = after(&store, 1, move |store| async move {
            while now() <= later {
                tokio::task::yield_now().await;
            }
            let found = store.get(EntryKind::Ek, &ek.to_string()).await.unwrap().unwrap();
            let mut record: EkRecord = serde_json::from_str(&found.value).unwrap();
            record.added += 1;
            enrolment::allow(&*store, ek, record, false).await.unwrap();
        });
        in_process(&gateway, Arc::new(stand_in)).await;
        let answer = gateway.post("/v1/attest/evidence", &gateway.answer(case, &challenge)).await;
        if is_over {
            answer.refused(503, "unavailable");
            assert_eq!(gateway.records().len(), 0, "nothing is decided by a challenge that is over");
            continue;
        }
        answer.ticket();
        let record = gateway.records().pop().unwrap();
        assert!(record["at"].as_u64().unwrap() > later, "{record}");
        assert_eq!(record["pool"], POOL);
        let audit = gateway.command(&["log", "audit"]);
        assert!(audit.contains("1 as recorded, 0 different"), "{audit}");
    }
}
