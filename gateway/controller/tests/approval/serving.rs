//! Serving certificates of nodes.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn approved_node_gets_a_serving_certificate() {
    let site = Site::start();
    site.attested(NODE).await;
    site.asks("csr-1", NODE).await;
    site.wait_approved("csr-1").await;
    site.api.put(node(NODE));
    site.api.put(machine(NODE, "worker", Some(NODE)));
    site.api.put(machine("worker-0", "worker", Some("worker-0")));
    site.api.put(serving_csr("own", NODE, [10, 0, 0, 7]));
    site.api.put(serving_csr("anothers", NODE, [10, 0, 0, 8]));
    site.api.put(serving_csr("not-approved-here", "worker-0", [10, 0, 0, 7]));
    site.wait_approved("own").await;
    site.wait_left("anothers", "csr-address").await;
    site.wait_left("not-approved-here", "csr-client-not-approved-here").await;
    // OVN-Kubernetes has given the node an egress address, which no Machine object lists.
    let assigned = json!([{"node": NODE, "egressIP": "10.0.0.99"}, {"node": "worker-0", "egressIP": "10.0.0.98"}]);
    site.api.put(json!({
        "apiVersion": "k8s.ovn.org/v1", "kind": "EgressIP", "metadata": {"name": "egress"},
        "spec": {"egressIPs": ["10.0.0.98", "10.0.0.99"], "namespaceSelector": {}}, "status": {"items": assigned},
    }));
    site.api.put(serving_csr("egress", NODE, [10, 0, 0, 99]));
    site.api.put(serving_csr("anothers-egress", NODE, [10, 0, 0, 98]));
    site.wait_approved("egress").await;
    site.wait_left("anothers-egress", "csr-address").await;
    site.revoke(NODE, "stolen").await;
    site.api.put(serving_csr("revoked", NODE, [10, 0, 0, 7]));
    site.wait_left("revoked", "csr-revoked").await;
}
