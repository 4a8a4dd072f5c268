//! Exports of several chains: they say where they have to be cut, and the pieces can be verified.

use std::fs;
use std::process::Command;

use crate::support::{Gateway, POOL};

async fn written() -> Gateway {
    let mut gateway = Gateway::start();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.terminate();
    gateway.wait();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn export_of_several_chains_says_where_to_split() {
    let (one, other) = (written().await, written().await);
    let path = |name: &str| one.path(name).to_str().unwrap().to_owned();
    let folders = [path("state"), other.path("state").to_str().unwrap().to_owned()];
    fs::write(path("other.pub"), other.command(&["log", "show-key"])).unwrap();
    fs::write(path("one.pub"), one.command(&["log", "show-key"])).unwrap();
    let keys = ["--log-key", &path("one.pub"), "--log-key", &path("other.pub")].map(str::to_owned);
    let exported = one.try_command(&["log", "export", "--out", &path("both"), "--log", &folders[0], &folders[1]]);
    let said = String::from_utf8(exported.stderr).unwrap();
    let (_, cut) = said.split_once("before line ").unwrap();
    let line: String = cut.chars().take_while(char::is_ascii_digit).collect();
    assert!(
        exported.status.success() && said.contains(&format!("`csplit FILE {line}`")),
        "{said}"
    );
    let audit = |logs: &[String]| {
        let logs = logs.iter().flat_map(|log| ["--log", log]);
        let keys = keys.iter().map(String::as_str);
        one.try_command(&["log", "audit"].into_iter().chain(keys).chain(logs).collect::<Vec<_>>())
    };
    assert!(!audit(&[path("both")]).status.success());
    let pieces = path("piece");
    let cut = Command::new("csplit")
        .args(["-s", "-f", &pieces, &path("both"), &line])
        .status()
        .unwrap();
    assert!(cut.success());
    let audited = audit(&[format!("{pieces}00"), format!("{pieces}01")]);
    assert!(audited.status.success(), "{}", String::from_utf8_lossy(&audited.stdout));
    // Of one chain nothing is said.
    let exported = one.try_command(&["log", "export", "--log", &folders[0]]);
    assert!(exported.status.success() && exported.stderr.is_empty());
}
