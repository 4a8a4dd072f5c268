//! A client that has only the bootstrap credential, which a pool may give to anybody.

use std::time::Duration;

use super::*;
use crate::support::LIMIT;

const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";

/// Pool worker gives the bootstrap credential to unauthenticated clients.
fn give_credential(site: &Site) {
    let token = site.api.token(BOOTSTRAPPER.0, BOOTSTRAPPER.1);
    let kubeconfig = format!(
        "kind: Config\nclusters:\n- name: local\n  cluster: {{server: \"{}\"}}\nusers:\n- name: kubelet\n  user:\n    token: {token}\n",
        site.api.url()
    );
    let source = format!("data:;base64,{}", data_encoding::BASE64.encode(kubeconfig.as_bytes()));
    let file = json!({"path": KUBECONFIG, "mode": 420, "contents": {"source": source}});
    let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [file]}});
    let pool = site.gateway.path("pools/worker");
    fs::write(pool.join("pre-approved/kubeconfig.ign"), config.to_string()).unwrap();
    let found = site.gateway.try_command(&["check"]);
    let said = String::from_utf8_lossy(&[found.stdout, found.stderr].concat()).into_owned();
    // As the refusal names them.
    let findings = ["kubeconfig-credential", "token", "password"].map(|kind| format!("{kind} {KUBECONFIG}"));
    let findings: Vec<String> = findings.into_iter().filter(|finding| said.contains(finding)).collect();
    site.gateway
        .edit_pool("worker", "acknowledged = []", &format!("acknowledged = {findings:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_a_stranger_with_the_bootstrap_credential_is_not_approved_when_the_machine_attests() {
    let mut site = Site::with("[cluster.approval]\nenabled = true");
    give_credential(&site);
    site.gateway.run();
    // Without a TPM, somebody gets the credential and asks for the name of a machine that is about to boot.
    let given = site.gateway.config("/config/worker", &[]).await;
    assert!(
        given.status == 200 && String::from_utf8_lossy(&given.body).contains(KUBECONFIG),
        "{given:?}"
    );
    site.asks("before", NODE).await;
    site.wait_left("before", "csr-not-attested").await;
    // It attests, with a key for its kubelet.
    let key = KeyPair::generate().unwrap();
    site.attested_with(NODE, &key).await;
    site.asks("at-once", NODE).await;
    site.wait_left("at-once", "csr-key-not-attested").await;
    site.asks_for("own", NODE, &key);
    site.wait_approved("own").await;
    site.asks("later", NODE).await;
    site.wait_left("later", "csr-not-attested").await;
    // A machine that attests no key is approved for nobody.
    site.attested("worker-2").await;
    site.asks("without", "worker-2").await;
    let said = site.wait_left("without", "csr-key-not-attested").await;
    assert!(said.contains("attest-node"), "{said}");
    assert!(["before", "at-once", "later"].iter().all(|csr| !site.is_approved(csr)));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_any_key_is_refused_where_a_pool_gives_the_credential_to_anybody() {
    let site = Site::with("[cluster.approval]\nenabled = true\nkeys = \"any\"");
    site.gateway.command(&["check"]);
    give_credential(&site);
    let refused = |arguments: &[&str]| {
        let output = site.gateway.try_command(arguments);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            !output.status.success() && said.contains("cluster.approval.keys is \"any\", and pool worker gives"),
            "{arguments:?}: {said}"
        );
    };
    refused(&["check"]);
    refused(&["serve"]);
    site.gateway
        .edit_pool("worker", "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    site.gateway.command(&["check"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_a_pool_that_comes_to_give_the_credential_ends_the_approval_of_any_key() {
    let site = Site::start();
    give_credential(&site);
    site.gateway.line(|line| line.contains("pool worker: a new state is served"));
    site.attested(NODE).await;
    site.asks("csr-1", NODE).await;
    site.wait_left("csr-1", "csr-key-not-attested").await;
    site.gateway
        .line(|line| line.contains("pool worker gives the bootstrap credential to unauthenticated clients"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_a_csr_that_was_judged_before_the_attestation_is_never_approved_by_it() {
    let site = Site::start();
    site.asks("before", NODE).await;
    site.wait_left("before", "csr-not-attested").await;
    // Within the allowance for clocks.
    site.attested(NODE).await;
    let said = |event: &Value| {
        event["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("csr-before-attestation: "))
    };
    shown(&site.api, "it is left", || site.events("before").iter().any(said)).await;
    // Nor is it in the way of the machine's own.
    site.asks("own", NODE).await;
    site.wait_approved("own").await;
    assert!(!site.is_approved("before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_written_anew_while_its_csr_is_pending() {
    let site = Site::start();
    let mut pending = by_bootstrapper(client_csr("pending", NODE), &[]);
    // Three quarters of an hour after it was created, in a moment: an API removes events after an hour.
    let created = time::OffsetDateTime::now_utc() - Duration::from_secs(45 * 60 - 8);
    let text = created.format(&time::format_description::well_known::Rfc3339).unwrap();
    pending["metadata"]["creationTimestamp"] = json!(text);
    site.api.put(pending);
    let is_there = site.api.comes_to(LIMIT, || site.events("pending").len() == 2).await;
    let events = site.events("pending");
    assert!(is_there && events[0]["message"] == events[1]["message"], "{events:?}");
}

/// Returns whether discovery asks a node of this pool for the key of its kubelet.
async fn asks_for_key(site: &Site, pool: &str) -> bool {
    let url = site.gateway.url(&format!("/v1/attest?pool={pool}"));
    let answer = crate::support::Answer::of(site.gateway.client.get(url)).await;
    serde_json::from_slice::<Value>(&answer.body).unwrap()["kubelet_key"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_asked_for_the_key_where_only_attested_ones_are_approved() {
    let site = Site::by_default();
    assert!(asks_for_key(&site, "worker").await && !asks_for_key(&site, "infra").await);
    assert!(!asks_for_key(&Site::start(), "worker").await);
}
