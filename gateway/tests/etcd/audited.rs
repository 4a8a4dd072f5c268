//! Logs of gateways that share a store on etcd are held against what the store says was signed.

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
async fn attack_34_the_log_of_one_replica_that_was_shortened_is_named_by_what_the_store_says() {
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
    std::fs::write(&keys, [&one, &two].map(|gateway| gateway.command(&["log", "key"])).concat()).unwrap();
    let audit = || {
        let logs = [log(&one), log(&two)];
        let [first, second] = logs.each_ref().map(|log| log.to_str().unwrap());
        one.try_command(&[
            "audit",
            "--log",
            first,
            "--log",
            second,
            "--log-key",
            keys.to_str().unwrap(),
            "--whole",
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
