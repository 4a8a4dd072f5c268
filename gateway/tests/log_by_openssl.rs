//! The attestation log, verified by what its document says, with `openssl`, `jq`, gzip and coreutils alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Gateway, POOL};

/// The script of the document.
fn script(gateway: &Gateway) -> PathBuf {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/attestation-log.md")).unwrap();
    let begin = document.find("```sh\n#!/bin/sh").unwrap() + "```sh\n".len();
    let end = document[begin..].find("```\n").unwrap();
    let file = gateway.path("verify.sh");
    fs::write(&file, &document[begin..begin + end]).unwrap();
    file
}

/// A log of a gateway that went on with one of an older release, was rotated, and stopped.
async fn written() -> (Gateway, String, String) {
    let mut gateway = Gateway::init();
    gateway.run();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.kill();
    // As if what is there were of an older release.
    let log = gateway.path("state/attestation.jsonl");
    let older = gateway.record_lines()[0].replace(",\"chain\":", ",\"chained\":");
    fs::write(&log, format!("{older}\n{older}\n")).unwrap();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    gateway.run();
    for _ in 0..2 {
        gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    }
    let first = gateway.path("first.jsonl");
    fs::rename(&log, &first).unwrap();
    gateway.hang_up();
    gateway.line(|line| line.contains("the attestation log was moved: a new one is begun"));
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.terminate();
    gateway.wait();
    let [first, second] = [first, log].map(|file| fs::read_to_string(file).unwrap());
    // What is not of this release's form has no place in the test's check of the schema.
    fs::write(gateway.path("state/attestation.jsonl"), "").unwrap();
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "key"])).unwrap();
    (gateway, first, second)
}

/// What the script says of these files, and whether all is well.
fn verified(gateway: &Gateway, files: &[&str]) -> (bool, String) {
    let mut command = Command::new("sh");
    command.arg(script(gateway)).arg(gateway.path("log.pub"));
    for (number, text) in files.iter().enumerate() {
        let file = gateway.path(&format!("{number}.jsonl"));
        fs::write(&file, text).unwrap();
        command.arg(file);
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// As the document says it, of the files of a folder.
fn closed_segments_are_verified(gateway: &Gateway, first: &str, second: &str) {
    let segments = gateway.path("segments");
    fs::create_dir(&segments).unwrap();
    let segment = segments.join("attestation.jsonl.20261122T204412Z-6f0c51d2-000000000001");
    fs::write(&segment, first).unwrap();
    fs::write(segments.join("attestation.jsonl"), second).unwrap();
    let run = |command: &str| {
        let output = Command::new("sh").args(["-c", command]).current_dir(&segments).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let verify = format!("sh {} ../log.pub", script(gateway).display());
    let whole = |files: &str| {
        let said = run(&format!("{verify} {files}"));
        assert!(said.contains("whole: line 7 of chain"), "{said}");
    };
    whole("attestation.jsonl.* attestation.jsonl");
    // It is being compressed; it was; and it was since its name was listed.
    assert_eq!(run(&format!("gzip -k {}", segment.display())), "");
    whole("attestation.jsonl.* attestation.jsonl");
    fs::remove_file(&segment).unwrap();
    whole("attestation.jsonl.* attestation.jsonl");
    whole(&format!("{0} {0}.gz attestation.jsonl", segment.display()));
    // What is named by itself is read.
    fs::write(&segment, first).unwrap();
    whole(&format!("{}.gz attestation.jsonl", segment.display()));
    let said = run(&format!("{verify} {0} {0} attestation.jsonl", segment.display()));
    assert!(said.contains("this chain has begun before"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_verified_by_the_document_alone() {
    let (gateway, first, second) = written().await;
    closed_segments_are_verified(&gateway, &first, &second);
    let good = |files: &[&str], expected: &str| {
        let (sound, said) = verified(&gateway, files);
        assert!(sound && said.contains(expected), "{said}");
    };
    // 1 checkpoint, 2 records, 1 checkpoint; 1 checkpoint, 1 record, 1 checkpoint.
    good(&[&first, &second], "whole: line 7 of chain");
    good(&[&first, &second], "signed up to line 6");
    good(&[&format!("{first}{second}")], "signed up to line 6");
    good(&[&second], "begins with line 5 of chain");
    good(&[&first], "signed up to line 3");
    let lines: Vec<&str> = first.lines().collect();
    let joined = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>();
    let without = |number: usize| joined(&[&lines[..number - 1], &lines[number..]].concat());
    let swapped = joined(&[&lines[..3], &lines[4..5], &lines[3..4], &lines[5..]].concat());
    let edited = |from: &str, to: &str| {
        let altered = first.replacen(from, to, 1);
        assert_ne!(altered, first, "{from}");
        altered
    };
    let last = lines[5];
    let signature = &last[last.find("\"signature\":\"").unwrap()..][..20];
    let bad = [
        (
            edited("\"decision\":\"config\"", "\"decision\":\"Config\""),
            "line 3: what stands before it was altered",
        ),
        (without(1), "line 2: what stands before it was altered"),
        (lines[2..].join("\n") + "\n", "line 1: what stood before it is gone"),
        (without(4), "line 4: it is line 3, after line 1"),
        (swapped, "line 4: it is line 3, after line 1"),
        (joined(&[&lines[..4], &lines[3..]].concat()), "line 5: it is line 2, after line 2"),
        (
            joined(&[&lines[..4], &lines[..1], &lines[4..]].concat()),
            "line 6: a line before it is of no chain",
        ),
        (
            joined(&[&lines[..], &lines[..1]].concat()),
            "line 8: the lines before it are of no chain",
        ),
        (
            first.replace(lines[3], &lines[3].replace("\"v\":1,", "\"v\":1, ")),
            "line 5: the line before it, or this one, was altered",
        ),
        (
            first.replace(signature, &signature.replace("\":\"", "\":\"A")),
            "line 6: its checkpoint",
        ),
        (first.replace("the log's chain had 3 lines", "nothing"), ""),
        (first[..first.len() - 1].to_owned(), "line 6: it is cut off"),
        (first.replacen("\"reason\":\"", "\"reason\":\"\0", 1), "line 0: it has null bytes"),
    ];
    for (altered, expected) in &bad {
        let (sound, said) = verified(&gateway, &[altered, &second]);
        assert!(!sound && said.contains(expected), "{expected:?}: {said}");
    }
    let (sound, said) = verified(&gateway, &[&second, &first]);
    assert!(!sound && said.contains("this chain has begun before"), "{said}");
    let strangers = Gateway::start();
    fs::write(gateway.path("log.pub"), strangers.command(&["log", "key"])).unwrap();
    let (sound, said) = verified(&gateway, &[&first, &second]);
    assert!(
        !sound && said.contains("line 3: its checkpoint is not signed by this key"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_names_what_it_found_is_verified_too() {
    let mut gateway = Gateway::start();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.kill();
    gateway.run();
    gateway.terminate();
    gateway.wait();
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "key"])).unwrap();
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert!(log.contains("\"found\":{\"first\":2"), "{log}");
    let (sound, said) = verified(&gateway, &[&log]);
    assert!(sound && said.contains("whole"), "{said}");
    let (sound, said) = verified(&gateway, &[&log.replace("\"found\":{\"first\":2", "\"found\":{\"first\":1")]);
    assert!(!sound && said.contains("its checkpoint is not signed by this key"), "{said}");
    // In front of it what somebody has made who has no key, and a line between it and what comes after.
    let zeros = "0".repeat(64);
    let invented =
        format!("{{\"at\":1,\"chain\":{{\"id\":\"0a\",\"number\":1,\"previous\":\"{zeros}\",\"begins\":{{\"why\":\"new\"}}}}}}\n");
    let unchained = "{\"at\":1}\n";
    fs::write(gateway.path("state/attestation.jsonl"), format!("{log}{unchained}")).unwrap();
    gateway.run();
    gateway.terminate();
    gateway.wait();
    let after = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    for (files, expected) in [
        ([&invented, log.as_str()], "chain 0a before it was never signed by this key"),
        ([unchained, &log], "line 2: the lines before it are of no chain"),
        ([&log, unchained], "line 2: the lines before it are of no chain"),
        ([&after, ""], "lines of no chain stand between it and the chain before it"),
    ] {
        let (sound, said) = verified(&gateway, &files);
        assert!(!sound && said.contains(expected), "{expected:?}: {said}");
    }
    // What is not of this release's form has no place in the test's check of the schema.
    fs::write(gateway.path("state/attestation.jsonl"), "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_removed_by_the_rule_is_verified_too() {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\nkeep_bytes = 4096\n");
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    // What says that segments go is removed as well.
    for _ in 0..6 {
        gateway.run();
        for _ in 0..8 {
            gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
        }
        gateway.terminate();
        gateway.wait();
    }
    gateway.run();
    gateway.line(|line| line.contains("REMOVED"));
    gateway.terminate();
    gateway.wait();
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "key"])).unwrap();
    let (state, kept) = (gateway.path("state"), gateway.path("state/checkpoints.jsonl"));
    let verified = |files: &str| {
        let command = format!("sh {} ../log.pub {files}", script(&gateway).display());
        let output = Command::new("sh").args(["-c", &command]).current_dir(&state).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let all = "checkpoints.jsonl attestation.jsonl.* attestation.jsonl";
    let (sound, said) = verified(all);
    assert!(
        sound && said.contains("removed by rule: lines 1 to ") && said.contains("whole"),
        "{said}"
    );
    assert!(!said.contains("is not here"), "{said}");
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains("\"removed\":{"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let signed = lines.iter().find(|line| line.contains("\"checkpoint\":{")).unwrap();
    let joined = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>();
    for (altered, expected) in [
        (joined(&lines[1..]), "there is not what was kept"),
        (joined(&[&lines[..], &lines[..1]].concat()), "it is there twice"),
        (
            text.replace(signed, &signed.replace("chain had", "chain  had")),
            "there is not what was kept",
        ),
        (
            text.replace(signed, &signed.replacen("\"count\":", "\"count\":1", 1)),
            "its checkpoint is not signed by this key",
        ),
        (String::new(), "there is not what was kept"),
    ] {
        fs::write(&kept, altered).unwrap();
        let (sound, said) = verified(all);
        assert!(!sound && said.contains(expected), "{expected:?}: {said}");
    }
    fs::write(&kept, &text).unwrap();
    // Of a log whose record of it is gone, nobody knows.
    let (sound, said) = verified("attestation.jsonl.* attestation.jsonl");
    assert!(!sound && said.contains("there is not what was kept"), "{said}");
}
