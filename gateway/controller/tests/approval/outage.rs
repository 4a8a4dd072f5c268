//! An API that is away, and a controller that is restarted.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn approval_resumes_after_api_outage_or_lost_history() {
    let site = Site::start();
    site.attested(NODE).await;
    for history in [RestartHistory::Kept, RestartHistory::Lost] {
        site.api.disturb(Disturbance::Down);
        let name = format!("csr-{history:?}").to_lowercase();
        let node = if history == RestartHistory::Kept { NODE } else { "worker-2" };
        if history == RestartHistory::Lost {
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
async fn spent_approval_is_sent_after_refusal_or_restart() {
    let mut site = Site::start();
    site.attested(NODE).await;
    let roles: Vec<Value> = rights().into_iter().filter(|object| object["kind"] == "ClusterRole").collect();
    let mut less = roles[0].clone();
    let rules = less["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"] != json!(["signers"]));
    assert!(rules.len() < roles[0]["rules"].as_array().unwrap().len());
    site.api.put(less);
    site.asks("csr-1", NODE).await;
    site.controller
        .line(|line| line.contains("cannot approve CSRs") && line.contains("signerName"));
    assert!(!site.is_approved("csr-1"));
    assert_eq!(site.acts("csr.approve").await.len(), 1);
    site.controller.kill();
    site.api.put(roles[0].clone());
    site.controller.run();
    site.wait_approved("csr-1").await;
    assert_eq!(site.acts("csr.approve").await.len(), 1);
}
