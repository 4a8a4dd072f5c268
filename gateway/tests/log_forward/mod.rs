//! The attestation log's records, sent on to receivers that are away, slow, mad or strangers.

mod http;
mod places;
mod receiver;
mod syslog;

use std::fs;

use crate::support::{Gateway, POOL};
use receiver::until;

/// The log's lines, those of the file beside it first. The last one may be under way.
fn lines(gateway: &Gateway) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(gateway.path(name)).unwrap_or_default();
    let text = read("state/attestation.jsonl.1") + &read("state/attestation.jsonl");
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.map(str::to_owned).collect()
}

/// Has the log begin with so many lines of an older time, in a file that was rotated.
fn begin_with(gateway: &Gateway, count: u64, more: &str) {
    let line = |number: u64| {
        let chain = format!(r#"{{"id":"{}","number":{number},"previous":"{}"}}"#, "c".repeat(32), "0".repeat(64));
        format!(
            "{{\"time\":\"2026-11-21T11:00:46Z\",\"at\":1795258846,\"id\":\"{number:032}\",\"decision\":\"config\",\"verdict\":\"served\"{more},\"chain\":{chain}}}\n"
        )
    };
    let text: String = (1..=count).map(line).collect();
    fs::create_dir_all(gateway.path("state")).unwrap();
    fs::write(gateway.path("state/attestation.jsonl.1"), text).unwrap();
}

async fn fetch(gateway: &Gateway) {
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
}

/// Waits until a receiver has all that the log holds, in its order, and nothing else.
async fn has_all(gateway: &Gateway, received: impl Fn() -> Vec<String>) {
    // The log may go on meanwhile.
    until(|| received() == lines(gateway)).await;
}
