//! By POST.

use std::fs;

use super::receiver::{Answer, Receiver, until};
use super::{begin_with, fetch, has_all, lines};
use crate::support::{Gateway, POOL, program};

const TOKEN: &str = "a-very-secret-token";

/// A gateway that sends to it, and does not run yet.
fn gateway(receiver: &Receiver, scheme: &str, more: &str) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(&format!(
        "[[attestation_log.forward]]\nname = \"siem\"\nto = \"{}?key=QUERY-SECRET\"\n{more}\n[log]\nfilter = \"debug\"",
        receiver.url(scheme)
    ));
    gateway
}

fn count(gateway: &Gateway, said: &str) -> usize {
    gateway.output().matches(said).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_away_gets_all_it_missed_in_order() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&receiver, "https", "ca = \"tls/mcs-ca.crt\"\ntoken_file = \"siem.token\"");
    fs::write(gateway.path("siem.token"), format!("{TOKEN}\n")).unwrap();
    begin_with(&gateway, 1200, "");
    gateway.run();
    gateway.line(|line| line.contains("WARN") && line.contains("siem does not take the attestation log: "));
    for _ in 0..3 {
        fetch(&gateway).await;
    }
    receiver.begin_tls(&gateway).await;
    has_all(&gateway, || receiver.lines()).await;
    gateway.line(|line| line.contains("INFO") && line.contains("siem has all of the attestation log again"));
    fetch(&gateway).await;
    has_all(&gateway, || receiver.lines()).await;
    // It is said once, however often it was tried.
    assert_eq!(count(&gateway, "WARN siem does not take"), 1, "{}", gateway.output());
    let requests = receiver.requests();
    assert!(requests.iter().all(|headers| headers["authorization"] == format!("Bearer {TOKEN}")));
    assert!(requests.iter().all(|headers| headers["content-type"] == "application/x-ndjson"));
    let chain = "c".repeat(32);
    assert_eq!(requests[0]["attest-batch"], format!("{chain}:1-{chain}:500"));
    // Nothing secret is on the console, also not at its most talkative.
    let said = gateway.output();
    assert!(!said.contains(TOKEN) && !said.contains("QUERY-SECRET"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_taken_is_given_again_and_nothing_is_given_before_it() {
    let mut receiver = Receiver::away();
    receiver.begin().await;
    receiver.will(&[Answer::Status(500), Answer::Status(302), Answer::AtMost(70)]);
    let mut gateway = gateway(&receiver, "http", "");
    begin_with(&gateway, 600, "");
    gateway.run();
    has_all(&gateway, || receiver.lines()).await;
    assert!(receiver.requests().len() > 8);
    // A single record that is refused is not passed over.
    receiver.relents();
    receiver.will(&[Answer::Status(413), Answer::Status(400)]);
    fetch(&gateway).await;
    has_all(&gateway, || receiver.lines()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_waits_for_a_receiver() {
    let mut receiver = Receiver::away();
    receiver.begin().await;
    receiver.will(&[Answer::Never]);
    let mut gateway = gateway(&receiver, "http", "");
    gateway.run();
    until(|| receiver.requests().len() == 1).await;
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    for _ in 0..20 {
        gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    }
    // All of them were decided, recorded and answered while it said nothing.
    assert_eq!((receiver.requests().len(), receiver.lines().len()), (1, 0));
    assert!(lines(&gateway).len() >= 21);
    // Nor does anybody wait for it when the gateway stops; what it lacks comes at the next start.
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.run();
    has_all(&gateway, || receiver.lines()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_whose_certificate_is_anothers_gets_nothing() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&receiver, "https", "ca = \"tls/mcs-ca.crt\"\ntoken_file = \"siem.token\"");
    fs::write(gateway.path("siem.token"), TOKEN).unwrap();
    receiver.begin_tls(&Gateway::init()).await;
    gateway.run();
    gateway.line(|line| line.contains("siem does not take the attestation log: ") && line.contains("certificate"));
    assert!(receiver.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_whose_certificate_is_for_another_host_gets_nothing() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&receiver, "https", "ca = \"tls/mcs-ca.crt\"");
    // By the right CA.
    gateway.command(&["certificate", "renew", "--host", "other.example"]);
    receiver.begin_tls(&gateway).await;
    gateway.run();
    gateway.line(|line| line.contains("siem does not take the attestation log: ") && line.contains("other.example"));
    assert!(receiver.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_proxy_of_the_environment_is_asked() {
    let (mut receiver, mut proxy) = (Receiver::away(), Receiver::away());
    receiver.begin().await;
    proxy.begin().await;
    let mut gateway = gateway(&receiver, "http", "");
    let mut command = program();
    command.arg("serve").arg("--config").arg(gateway.path("gateway.toml"));
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, proxy.url("http"));
    }
    command.env_remove("no_proxy").env_remove("NO_PROXY");
    gateway.run_as(command);
    has_all(&gateway, || receiver.lines()).await;
    assert!(proxy.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_there_yet_holds_up_no_node() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&receiver, "https", "ca = \"tls/mcs-ca.crt\"\ntoken_file = \"siem.token\"");
    receiver.begin_tls(&gateway).await;
    for (token, expected) in [(None, "siem.token: No such file"), (Some("two words"), "holds no token")] {
        if let Some(token) = token {
            fs::write(gateway.path("siem.token"), token).unwrap();
        }
        let check = gateway.try_command(&["check"]);
        let said = String::from_utf8([check.stdout, check.stderr].concat()).unwrap();
        assert!(
            said.contains("DEGRADED") && said.contains(expected) && !said.contains("records go to"),
            "{said}"
        );
    }
    gateway.run();
    gateway.line(|line| line.contains("ERROR") && line.contains("it is sent nothing until that is there"));
    fetch(&gateway).await;
    gateway.line(|line| line.contains("siem does not take the attestation log: ") && line.contains("holds no token"));
    assert!(receiver.requests().is_empty());
    // It is read for each delivery.
    fs::write(gateway.path("siem.token"), TOKEN).unwrap();
    has_all(&gateway, || receiver.lines()).await;
}

#[test]
fn what_cannot_be_used_keeps_the_gateway_from_serving_and_says_why() {
    let receiver = Receiver::away();
    let check = |scheme: &str, more: &str, expected: &str| {
        let gateway = gateway(&receiver, scheme, more);
        for command in ["check", "serve"] {
            let output = gateway.try_command(&[command]);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.code(), Some(1), "{command} {more}: {said}");
            assert!(
                said.contains(expected) && !said.contains("QUERY-SECRET"),
                "{command} {more}: {said}"
            );
        }
    };
    check("https", "ca = \"nowhere.pem\"", "nowhere.pem");
    check("https", "ca = \"gateway.toml\"", "gateway.toml");
    check("https", "", "attestation_log.forward.ca is not set");
    let gateway = Gateway::init();
    gateway.settings("[[attestation_log.forward]]\nname = \"siem\"\nto = \"http://logs.example.com/\"");
    let said = gateway.command(&["check"]);
    assert!(said.contains("can read who was attested"), "{said}");
}
