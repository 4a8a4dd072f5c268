//! Audits of logs of gateways with a common store on etcd against the store's checkpoints.

use std::path::PathBuf;

use super::gateways::gateway;
use super::*;
use crate::support::{Gateway, POOL, bearer};

fn named(site: &Site, name: &str) -> Gateway {
    gateway(site, &format!("[attestation_log]\nname = \"{name}\"\ncheckpoint_records = 4\n"))
}

fn log(gateway: &Gateway) -> PathBuf {
    gateway.path("state/attestation.jsonl")
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_34_audit_names_the_replica_whose_log_was_shortened() {
    let site = Site::start();
    let (mut one, mut two) = (named(&site, "gw-1"), named(&site, "gw-2"));
    let full = one.rendered(POOL, "full");
    let token = one.token(&["--name", "rack7", "--uses", "99"]);
    for gateway in [&one, &two] {
        for _ in 0..6 {
            gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
        }
    }
    for gateway in [&mut one, &mut two] {
        gateway.terminate();
        assert!(gateway.wait().success());
    }
    let keys = one.path("keys.pem");
    std::fs::write(&keys, [&one, &two].map(|gateway| gateway.command(&["log", "show-key"])).concat()).unwrap();
    let audit = || {
        let logs = [log(&one), log(&two)];
        let [first, second] = logs.each_ref().map(|log| log.to_str().unwrap());
        one.try_command(&[
            "log",
            "audit",
            "--log",
            first,
            "--log",
            second,
            "--log-key",
            keys.to_str().unwrap(),
            "--checkpoints",
            &one.checkpoints(),
        ])
    };
    let whole = audit();
    let said = String::from_utf8(whole.stdout).unwrap();
    assert!(whole.status.success(), "{said}{}", String::from_utf8_lossy(&whole.stderr));

    let text = std::fs::read_to_string(log(&two)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let chain = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["chain"]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (of_one, of_two) = (std::fs::read_to_string(log(&one)).unwrap(), chain(lines[0]));
    let shortened: String = lines[..lines.len() - 2].iter().flat_map(|line| [*line, "\n"]).collect();
    std::fs::write(log(&two), shortened).unwrap();
    let found = audit();
    let said = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.status.code(), Some(1), "{said}");
    let named: Vec<&str> = said.lines().filter(|line| line.contains("shortened after line")).collect();
    assert_eq!(named.len(), 1, "{said}");
    assert!(named[0].contains(&of_two[..8]), "{said}");
    assert!(!named[0].contains(&chain(of_one.lines().next().unwrap())[..8]), "{said}");
}

fn chain(gateway: &Gateway) -> String {
    let text = std::fs::read_to_string(log(gateway)).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    last["chain"]["id"].as_str().unwrap().to_owned()
}

/// Gives up this chain at a gateway as soon as the chain's own gateway no longer serves.
fn give_up_when_its_lease_is_over(gateway: &Gateway, chain: &str) {
    let begun = std::time::Instant::now();
    loop {
        let output = gateway.try_command(&["log", "abandon", chain]);
        if output.status.success() {
            return;
        }
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("gateway gw-2 runs"), "{said}");
        assert!(begun.elapsed() < LIMIT, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_52_audit_shows_a_chain_abandoned_by_another_host() {
    let site = Site::start();
    let (one, mut two) = (named(&site, "gw-1"), named(&site, "gw-2"));
    let full = one.rendered(POOL, "full");
    let token = one.token(&["--name", "rack7", "--uses", "99"]);
    for gateway in [&one, &two] {
        for _ in 0..6 {
            gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
        }
    }
    let lost = chain(&two);
    let whole = || {
        let log = log(&one);
        let audited = one.try_command(&["log", "audit", "--checkpoints", &one.checkpoints(), "--log", log.to_str().unwrap()]);
        (audited.status.success(), String::from_utf8(audited.stdout).unwrap())
    };
    let refused = one.try_command(&["log", "abandon", &lost]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("gateway gw-2 runs"), "{said}");
    two.kill();
    std::fs::remove_dir_all(two.path("state")).unwrap();
    let (sound, said) = whole();
    assert!(
        !sound && said.contains(&format!("chain {} of gateway gw-2: missing", &lost[..8])),
        "{said}"
    );
    // A host that is lost for good can be abandoned; who has done that, and to what, is shown for ever.
    give_up_when_its_lease_is_over(&one, &lost);
    let begun = std::time::Instant::now();
    while one.acts("log.abandon").iter().all(|act| !act["admin"]["refused"].is_null()) {
        assert!(begun.elapsed() < LIMIT);
    }
    let (sound, said) = whole();
    let shown = said.contains(&format!("chain {lost} of gateway gw-2, signed up to line")) && said.contains("was abandoned on");
    assert!(sound && shown, "{said}");
    assert!(one.command(&["log", "status"]).contains("abandoned on"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_52_no_gateway_records_abandoning_its_own_chain() {
    let site = Site::start();
    let (mut one, mut two) = (named(&site, "gw-1"), named(&site, "gw-2"));
    let lost = chain(&two);
    two.terminate();
    two.wait();
    one.terminate();
    one.wait();
    // Nobody serves; then the one of that chain comes back first, and is the only one.
    give_up_when_its_lease_is_over(&one, &lost);
    two.run();
    two.token(&["--name", "rack7", "--uses", "9"]);
    two.wait_for_acts(1, "token.create");
    let abandoned = |gateway: &Gateway| {
        let acts = gateway.acts("log.abandon").into_iter();
        acts.filter(|act| act["admin"]["refused"].is_null()).count()
    };
    assert_eq!(abandoned(&two), 0, "the record would be lost with the chain");
    let status = two.command(&["log", "status"]);
    assert!(!status.contains("abandoned on"), "it is signed on, and required again: {status}");
    one.run();
    let begun = std::time::Instant::now();
    while abandoned(&one) == 0 {
        assert!(begun.elapsed() < LIMIT);
    }
    assert_eq!(abandoned(&two), 0);
}
