//! Changes of the store between any two transactions of a request: the state at the decision determines the result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use attest::{EkDigest, Kind};
use attest_gateway::credentials::tokens;
use attest_machines::{enrolment, instances, revocations};
use attest_store::{EntryKind, Store, StoreEntry};
use serde_json::json;

use super::machine::Machine;
use super::site::{self, GCP, TPM};
use crate::support::interleaving::after;
use crate::support::kubelet::{embedded, in_process};
use crate::support::{Answer, Gateway, digest, next_boot, tpm};

const IDENTITY: &str = "gcp:example-project/152986662232938449";
const NAME: &str = "worker-0";

/// Change made by another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    RevokeTpm,
    RevokeName,
    RevokeInstance,
    TakeOffTheList,
    /// Forgets the name, which an attested node still has without notice of the change.
    Forget,
    Release,
    RevokeToken,
    /// The instance goes over to another.
    Supersede,
}

impl Step {
    async fn is_done(self, store: &dyn Store, ek: EkDigest) {
        let revoke = async |who: &str| {
            let all = BTreeSet::from([who.to_owned()]);
            revocations::revoke(store, &all, 1, None).await.unwrap();
        };
        match self {
            Self::RevokeTpm => revoke(&format!("tpm:{ek}")).await,
            Self::RevokeName => revoke(NAME).await,
            Self::RevokeInstance => revoke(IDENTITY).await,
            Self::TakeOffTheList => assert!(enrolment::disallow(store, &ek.identity(), 1).await.unwrap()),
            Self::Forget => drop(enrolment::forget_name(store, NAME).await.unwrap()),
            Self::Release => drop(instances::release(store, IDENTITY).await.unwrap()),
            Self::RevokeToken => assert_eq!(tokens::revoke(store, "t").await.unwrap(), 1),
            Self::Supersede => {
                let entry = StoreEntry {
                    id: IDENTITY.to_owned(),
                    value: json!({ "holder": "tpm:other", "at": 1, "peer": "::1" }).to_string(),
                };
                store.put(EntryKind::Instance, entry).await.unwrap();
            }
        }
    }
}

/// Result of a machine whose evidence is appraised while a step is done after a number of transactions.
struct Interleaved {
    gateway: Gateway,
    store: Arc<dyn Store>,
    answer: Answer,
    done: bool,
}

async fn attest(accepts: &str, rules: &[&str], kinds: &[Kind], step: Step, steps: usize) -> Interleaved {
    let gateway = site::init(accepts, rules);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let ek: EkDigest = digest(&case).parse().unwrap();
    let node = Machine::new().but(|machine| {
        machine.token = gateway.token(&["--name", "t", "--uses", "1"]);
        if kinds.contains(&Kind::Token) {
            machine.name = Some(NAME.to_owned());
        }
        machine.tpm = Some(case);
    });
    let (store, count): (Arc<dyn Store>, _) = (Arc::new(embedded(&gateway)), Arc::new(AtomicUsize::new(0)));
    let done = Arc::clone(&count);
    // The challenge's own transaction is left alone.
    let stand_in = after(&store, steps + 1, move |store| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            step.is_done(&*store, ek).await;
        }
    });
    in_process(&gateway, Arc::new(stand_in)).await;
    let answer = node.attest(&gateway, kinds).await;
    let done = done.load(Ordering::Relaxed) == 1;
    if answer.status != 200 {
        // What is refused takes nothing; what another has stays his.
        let left = [EntryKind::Name, EntryKind::NameOf, EntryKind::Clock];
        for kind in left {
            assert_eq!(store.list(kind).await.unwrap(), [], "{step:?} after {steps}");
        }
        assert_eq!(
            store.list(EntryKind::Instance).await.unwrap().len(),
            usize::from(step == Step::Supersede)
        );
    }
    Interleaved {
        gateway,
        store,
        answer,
        done,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_revocation_between_a_requests_transactions_takes_effect() {
    use Step::*;
    let kinds = [Kind::Tpm, Kind::Gcp, Kind::Token];
    for (step, code) in [
        (RevokeTpm, "node-revoked"),
        (RevokeName, "node-revoked"),
        (RevokeInstance, "node-revoked"),
        (TakeOffTheList, "ek-not-endorsed"),
        (RevokeToken, "token-invalid"),
        (Supersede, "instance-claimed"),
        (Forget, ""),
        (Release, ""),
    ] {
        let mut steps = 0;
        loop {
            let meanwhile = attest(r#"[["tpm", "gcp", "token"]]"#, &[TPM, GCP], &kinds, step, steps).await;
            let Interleaved {
                gateway,
                store,
                answer,
                done,
            } = &meanwhile;
            if !done {
                break;
            }
            steps += 1;
            if code.is_empty() {
                // It has all of it again.
                site::gets_the_full_config(gateway, answer).await;
                assert_eq!(enrolment::names(&**store).await.unwrap().len(), 1, "{step:?} after {steps}");
                let held = instances::list(&**store).await.unwrap();
                assert!(matches!(held.as_slice(), [(instance, _)] if instance == IDENTITY), "{held:?}");
                assert_eq!(instances::tpms(&**store).await.unwrap().len(), 1, "{step:?} after {steps}");
            } else {
                answer.refused(403, code);
            }
        }
        // It is looked who vouches for its TPM, and what the token is called; then it is decided.
        assert!(steps >= 3, "{step:?}: {steps} transactions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_claimless_evidence_is_checked_against_final_state() {
    for (step, code) in [(Step::RevokeTpm, "node-revoked"), (Step::TakeOffTheList, "ek-not-endorsed")] {
        for steps in 0..2 {
            let meanwhile = attest(r#"[["tpm"]]"#, &[TPM], &[Kind::Tpm], step, steps).await;
            assert!(meanwhile.done, "{step:?}");
            meanwhile.answer.refused(403, code);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_losing_an_instance_during_attestation_earns_nothing() {
    for steps in 0..3 {
        let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP]);
        gateway.run();
        let pod = Machine::another();
        drop(pod.attest(&gateway, &[Kind::Gcp]).await.ticket());
        gateway.kill();
        let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
        let ek = digest(&tpm()).parse().unwrap();
        let stand_in = after(
            &store,
            steps,
            move |store| async move { Step::Supersede.is_done(&*store, ek).await },
        );
        in_process(&gateway, Arc::new(stand_in)).await;
        pod.attest(&gateway, &[Kind::Gcp]).await.refused(403, "instance-claimed");
    }
}

/// Number of transactions in one attestation: its challenge, the endorsement of its TPM, the token's name, and the decision.
const TRANSACTIONS_OF_ONE: usize = 4;

/// A TPM's counters that ran backwards are reported although the evidence is appraised again.
#[tokio::test(flavor = "multi_thread")]
async fn attack_07_decreasing_counters_raise_alerts_despite_retries() {
    let gateway = site::init(r#"[["tpm", "token"]]"#, &[TPM]);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let token = gateway.token(&["--name", "t"]);
    let node = |case| {
        Machine::new().but(|machine| {
            machine.token.clone_from(&token);
            machine.tpm = Some(case);
        })
    };
    let ek: EkDigest = digest(&case).parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    // The second time, the allowlist's entry is another when it is decided: it says when the machine was added.
    let stand_in = after(&store, 2 * TRANSACTIONS_OF_ONE - 1, move |store| async move {
        let found = store.get(EntryKind::Ek, &ek.to_string()).await.unwrap().unwrap();
        let mut record: enrolment::EkRecord = serde_json::from_str(&found.value).unwrap();
        record.added += 1;
        enrolment::allow(&*store, ek, record, false).await.unwrap();
    });
    in_process(&gateway, Arc::new(stand_in)).await;
    let later = next_boot(&case).but(|next| next.quoted.clock.reset_count += 1);
    drop(node(later).attest(&gateway, &[Kind::Tpm, Kind::Token]).await.ticket());
    drop(node(case).attest(&gateway, &[Kind::Tpm, Kind::Token]).await.ticket());
    let record = gateway.records().pop().unwrap();
    assert!(record["alerts"][0].as_str().unwrap().contains("ran backwards"), "{record}");
}
