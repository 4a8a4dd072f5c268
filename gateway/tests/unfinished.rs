//! Leftover temporary files of a killed process: the next start removes them, and no others.

use std::fs;

use attest_log::Blobs;

use crate::support::{Gateway, program};

fn says(line: &str) -> bool {
    line.contains("removed temporary files")
}

#[test]
fn start_removes_leftover_temporary_files() {
    let mut gateway = Gateway::init();
    gateway.run();
    assert_eq!(gateway.how_often(says), 0);
    gateway.kill();
    let [blob, other] = [b"a", b"b"].map(|content| Blobs::name(content));
    let unfinished = [
        format!("state/evidence/{blob}.gz.new"),
        format!("state/evidence/{other}.gz.new"),
        "state/attestation.gz.new".to_owned(),
    ];
    // A line may name them, or they are somebody else's.
    let stay = [
        format!("state/evidence/{blob}.gz"),
        "state/evidence/mine.gz.new".to_owned(),
        "state/attestation.jsonl.1.new".to_owned(),
        format!("state/{blob}.gz.new"),
    ];
    let put = |names: &[String]| names.iter().for_each(|name| fs::write(gateway.path(name), "x").unwrap());
    put(&unfinished);
    put(&stay);
    let there = |names: &[String]| names.iter().filter(|name| gateway.path(name).exists()).count();
    assert_eq!((there(&unfinished), there(&stay)), (3, 4));
    gateway.run();
    let there = |names: &[String]| names.iter().filter(|name| gateway.path(name).exists()).count();
    assert_eq!((there(&unfinished), there(&stay)), (0, 4));
    assert_eq!(gateway.how_often(says), 1);
    gateway.line(|line| says(line) && line.contains("attestation.gz.new and 2 others"));
}

#[test]
fn a_second_gateway_removes_no_temporary_files() {
    let gateway = Gateway::start();
    let being_written = gateway.path("state/evidence").join(Blobs::name(b"a")).with_extension("gz.new");
    fs::write(&being_written, "x").unwrap();
    let second = program()
        .args(["serve", "--config"])
        .arg(gateway.path("gateway.toml"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let check = gateway.try_command(&["check"]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    assert!(being_written.exists());
}
