//! How far a receiver has come, over crashes, and when that is lost, older, newer or nonsense.

use std::collections::BTreeSet;
use std::fs;

use attest_gateway::audit::LineHash;
use serde_json::{Value, json};

use super::receiver::{Receiver, until};
use super::{begin_with, fetch, has_all, lines};
use crate::support::Gateway;

const PLACE: &str = "state/forward/siem.json";

async fn gateway(receiver: &mut Receiver) -> Gateway {
    receiver.begin().await;
    let gateway = Gateway::init();
    gateway.settings(&format!(
        "[[attestation_log.forward]]\nname = \"siem\"\nto = \"{}\"",
        receiver.url("http")
    ));
    gateway
}

/// What is kept names the log's last line: then nothing is sent again.
async fn is_kept(gateway: &Gateway) {
    let kept = || serde_json::from_str::<Value>(&fs::read_to_string(gateway.path(PLACE)).unwrap_or_default()).unwrap_or_default();
    let last = || {
        let text = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
        let line = text.lines().last().unwrap().to_owned();
        (text.len() - line.len() - 1, LineHash::of(line.as_bytes()).to_string())
    };
    until(|| {
        let (offset, sha256) = last();
        kept()["last"]["position"] == json!({"offset": offset, "sha256": sha256})
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_kills_nothing_is_lost_and_little_is_doubled() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&mut receiver).await;
    begin_with(&gateway, 3000, "");
    for kill_after in [1, 600, 1600, 2600] {
        gateway.run();
        until(|| receiver.lines().len() >= kill_after).await;
        gateway.kill();
    }
    gateway.run();
    fetch(&gateway).await;
    // Without its doubles, which are what was on its way: the log.
    let once = || {
        let mut known = BTreeSet::new();
        let mut lines = receiver.lines();
        lines.retain(|line| known.insert(line.clone()));
        lines
    };
    has_all(&gateway, once).await;
    let (received, once) = (receiver.lines().len(), once().len());
    assert!(received - once <= 4 * 500, "{received} of {once}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_sends_nothing_again_and_a_lost_place_everything() {
    let mut receiver = Receiver::away();
    let mut gateway = gateway(&mut receiver).await;
    begin_with(&gateway, 3, "");
    gateway.run();
    has_all(&gateway, || receiver.lines()).await;
    is_kept(&gateway).await;
    gateway.terminate();
    gateway.wait();
    gateway.run();
    has_all(&gateway, || receiver.lines()).await;
    is_kept(&gateway).await;
    let good = fs::read_to_string(gateway.path(PLACE)).unwrap();
    // Lost; nonsense; of a line that this log does not have, because it is older than what is kept.
    let altered = good.replace("\"offset\":", "\"offset\":9");
    for (place, said) in [
        (None, "from its first line on"),
        (Some("{\"v\":1"), "is sent all of the attestation log again"),
        (Some(altered.as_str()), "does not hold the line that siem took last"),
    ] {
        gateway.kill();
        match place {
            None => fs::remove_file(gateway.path(PLACE)).unwrap(),
            Some(text) => fs::write(gateway.path(PLACE), text).unwrap(),
        }
        let before = receiver.lines().len();
        gateway.run();
        gateway.line(|line| line.contains(said));
        has_all(&gateway, || receiver.lines().split_off(before)).await;
        is_kept(&gateway).await;
    }
    // Older: what came after it comes again, and no more.
    let older = fs::read_to_string(gateway.path(PLACE)).unwrap();
    fetch(&gateway).await;
    is_kept(&gateway).await;
    gateway.kill();
    fs::write(gateway.path(PLACE), older).unwrap();
    let before = receiver.lines().len();
    gateway.run();
    fetch(&gateway).await;
    is_kept(&gateway).await;
    let (again, all) = (receiver.lines().split_off(before), lines(&gateway));
    assert!(
        again.len() >= 2 && again.len() < 6 && all.ends_with(&again),
        "{} of {}",
        again.len(),
        all.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_closed_and_compressed_meanwhile_is_sent_in_order() {
    let mut receiver = Receiver::away();
    let mut gateway = Gateway::init();
    gateway.settings(&format!(
        "[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\n[[attestation_log.forward]]\nname = \"siem\"\nto = \"{}\"",
        receiver.url("http")
    ));
    gateway.run();
    for _ in 0..24 {
        fetch(&gateway).await;
    }
    let closed = || {
        let names = fs::read_dir(gateway.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".gz")).count()
    };
    until(|| closed() > 2).await;
    receiver.begin().await;
    // The log as it is shown is what is sent, over segments that are closed while it is.
    for _ in 0..8 {
        fetch(&gateway).await;
    }
    let all = || gateway.command(&["log", "export"]).lines().map(str::to_owned).collect::<Vec<_>>();
    until(|| receiver.lines() == all()).await;
    assert!(all().len() > 32);
}
