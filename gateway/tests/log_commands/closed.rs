//! Segments of a gateway, read while they are closed and compressed, and afterwards in any pieces.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::support::{Gateway, POOL, program};

/// Returns the numbers of these lines.
fn numbers(lines: &str) -> Vec<u64> {
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["chain"]["number"].as_u64().unwrap();
    lines.lines().map(number).collect()
}

/// Starts a gateway that closes a segment every few records.
fn closing() -> Gateway {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0");
    gateway.run();
    gateway
}

/// Makes the gateway record a decision.
async fn fetch(gateway: &Gateway) {
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
}

#[tokio::test(flavor = "multi_thread")]
async fn export_and_tail_are_complete_while_segments_close() {
    let mut gateway = closing();
    let mut tail = program()
        .arg("--config")
        .arg(gateway.path("gateway.toml"))
        .args(["log", "tail", "--output", "json", "-n", "1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut tailed = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut recorded = 0;
    for round in 1..=20 {
        fetch(&gateway).await;
        let found = numbers(&gateway.command(&["log", "export"]));
        let expected: Vec<u64> = (1..).take(found.len()).collect();
        assert_eq!(found, expected, "round {round}");
        assert!(found.len() > recorded, "round {round}: what was answered stands there");
        recorded = found.len();
        let shown = gateway.command(&["log", "show", "--decision", "config", "--all"]);
        assert_eq!(shown.lines().count(), 1 + round);
    }
    let state = fs::read_dir(gateway.path("state")).unwrap();
    let zipped = state.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|extension| extension == "gz")
    });
    assert!(zipped.count() > 2);
    gateway.terminate();
    gateway.wait();
    let all = gateway.command(&["log", "export"]);
    for line in all.lines() {
        assert_eq!(tailed.next().unwrap().unwrap(), line);
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_and_split_segments_verify_as_one_chain() {
    let mut gateway = closing();
    for _ in 0..12 {
        fetch(&gateway).await;
    }
    gateway.terminate();
    gateway.wait();
    let all = gateway.command(&["log", "export"]);
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    let (first, rest) = lines.split_at(lines.len() / 2 - 1);
    let (second, third) = rest.split_at(2);
    let path = |name: &str| gateway.path(name).to_str().unwrap().to_owned();
    let mut zipped = GzEncoder::new(File::create(path("first.gz")).unwrap(), Compression::best());
    zipped.write_all(first.concat().as_bytes()).unwrap();
    zipped.finish().unwrap();
    fs::write(path("second"), second.concat()).unwrap();
    fs::write(path("third"), third.concat()).unwrap();
    let named = [path("third"), path("first.gz"), path("second")];
    let options = ["log", "audit", "--log", &named[0], "--log", &named[1], "--log", &named[2]];
    let audited = gateway.command(&options);
    assert!(audited.contains("whole") && !audited.contains("missing"), "{audited}");
    // And one is missed.
    let audited = gateway.try_command(&options[..6]);
    assert!(!audited.status.success() && String::from_utf8_lossy(&audited.stdout).contains("missing between"));
}
