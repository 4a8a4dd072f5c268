//! An API that is away, and gateways that are killed or restarted.

use super::*;
use crate::support::pending::{evidence, is_recorded_late};

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_away_or_forgets_its_history_delays_it() {
    let site = Site::start();
    site.attested(NODE).await;
    for history in [History::Kept, History::Lost] {
        site.api.disturb(Disturbance::Down);
        let name = format!("csr-{history:?}").to_lowercase();
        let node = if history == History::Kept { NODE } else { "worker-2" };
        if history == History::Lost {
            site.attested(node).await;
        }
        site.api.put(by_bootstrapper(client_csr(&name, node), &[]));
        site.api.restart(history);
        site.wait_approved(&name).await;
    }
    site.api.disturb(Disturbance::Status(503));
    site.attested("worker-3").await;
    site.api.put(machine("worker-3", "worker", None));
    site.api.put(by_bootstrapper(client_csr("csr-3", "worker-3"), &[]));
    site.api.recover();
    site.wait_approved("csr-3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_spent_and_not_told_is_told_when_the_api_takes_it_also_after_a_restart() {
    let mut site = Site::start();
    site.attested(NODE).await;
    let roles: Vec<Value> = rights().into_iter().filter(|object| object["kind"] == "ClusterRole").collect();
    let mut less = roles[0].clone();
    let rules = less["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"] != json!(["signers"]));
    assert!(rules.len() < roles[0]["rules"].as_array().unwrap().len());
    site.api.put(less);
    site.asks("csr-1", NODE).await;
    site.gateway
        .line(|line| line.contains("CSRs are not approved at the moment") && line.contains("signerName"));
    assert!(!site.is_approved("csr-1"));
    site.gateway.wait_for_acts(1, "csr.approve");
    site.gateway.terminate();
    assert!(site.gateway.wait().success());
    site.api.put(roles[0].clone());
    site.gateway.run();
    site.wait_approved("csr-1").await;
    assert_eq!(site.gateway.acts("csr.approve").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_killed_with_a_record_or_without_it_knows_who_has_attested() {
    let mut site = Site::start();
    let recorded = site.attested(NODE).await;
    let unrecorded = tpm();
    site.gateway.endorse(&unrecorded, &["--name", "worker-2"]);
    let at = site.gateway.records()[0]["at"].as_u64().unwrap();
    site.gateway.kill();
    // As it is when it is killed before anything of the store is settled: with the line in the log, and before that.
    let store = Embedded::open(&site.gateway.path("state/gateway.db")).unwrap();
    let (identity, attested) = attested::list(&store).await.unwrap().pop().unwrap();
    assert!(store.remove(EntryKind::Attested, &identity).await.unwrap());
    let decided = async |case: &Case, attested: Attested, at: u64| {
        let ek = crate::support::digest(case).parse().unwrap();
        let decided = evidence(&attested.decision, at, ek);
        let id = attested.decision.clone();
        let written = store.decide(&id, move |transaction| {
            attested::note(transaction, &NodeIdentity::of_tpm(ek), &attested)?;
            transaction.decide(decided.clone())
        });
        let written: Result<(), StoreError> = written.await;
        written.unwrap();
    };
    decided(&recorded, attested.clone(), at).await;
    let unanswered = "ab".repeat(16);
    let never = Attested {
        name: Some("worker-2".to_owned()),
        decision: unanswered.clone(),
        ..attested
    };
    decided(&unrecorded, never, at + 5).await;
    drop(store);
    site.gateway.run();
    site.asks("csr-1", NODE).await;
    site.asks("csr-2", "worker-2").await;
    site.wait_approved("csr-1").await;
    // It was trusted, and only its answer did not reach it: the line says so by then.
    site.wait_approved("csr-2").await;
    let records = site.gateway.records();
    let late: Vec<_> = records.iter().filter(|record| record["id"] == *unanswered).collect();
    assert_eq!(late.len(), 1, "{records:?}");
    is_recorded_late(late[0]);
    let of_recorded = records.iter().filter(|record| record["id"] == records[0]["id"]);
    assert_eq!(of_recorded.count(), 1);
}
