//! Tests with a client that has only the bootstrap credential, which a pool may give to unauthenticated clients.

use super::*;

/// Pool worker may give the bootstrap credential to unauthenticated clients.
fn give_credential(site: &Site) {
    site.controller.pool("worker", "[grants]\nnothing = \"pre-approved\"\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_bootstrap_credential_alone_gets_no_approval() {
    let mut site = Site::with(DEFAULT);
    give_credential(&site);
    site.controller.run();
    // Without a TPM, somebody gets the credential and asks for the name of a machine that is about to boot.
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
async fn attack_49_rejects_any_key_if_credential_is_public() {
    let site = Site::with(ANY_KEY);
    assert!(site.controller.output("check").status.success());
    give_credential(&site);
    for command in ["check", "serve"] {
        let output = site.controller.output(command);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            !output.status.success() && said.contains("approval.keys is \"any\", and pool worker may give"),
            "{command}: {said}"
        );
    }
    site.controller.pool("worker", "[grants]\nnothing = \"refuse\"\n");
    assert!(site.controller.output("check").status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_approval_of_any_key_ends_once_credential_public() {
    let site = Site::start();
    give_credential(&site);
    // The files are read again every five seconds, and a pass is made while a CSR is pending.
    site.asks("another", "worker-2").await;
    site.controller
        .line(|line| line.contains("pool worker gives the bootstrap credential to unauthenticated clients"));
    site.attested(NODE).await;
    site.asks("csr-1", NODE).await;
    site.wait_left("csr-1", "csr-key-not-attested").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_does_not_approve_a_csr_judged_before_attestation() {
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
async fn event_is_renewed_while_its_csr_is_pending() {
    let site = Site::start();
    let mut pending = by_bootstrapper(client_csr("pending", NODE), &[]);
    // Three quarters of an hour after it was created, in a moment: an API removes events after an hour.
    let text = attest_system::clock::rfc3339(now() - (45 * 60 - 8));
    pending["metadata"]["creationTimestamp"] = json!(text);
    site.api.put(pending);
    let is_there = site.api.comes_to(LIMIT, || site.events("pending").len() == 2).await;
    let events = site.events("pending");
    assert!(is_there && events[0]["message"] == events[1]["message"], "{events:?}");
}
