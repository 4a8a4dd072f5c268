//! Verification of the attestation log by `docs/how-to/verify-log.sh`, with `openssl`, `jq`, gzip and coreutils alone, and of an archive by
//! the commands of `docs/how-to/audit.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use attest_log::{LineHash, closed_segments};
use serde_json::{Value, json};

use crate::log_retention::text;
use crate::support::{Gateway, POOL, program};

/// Copies the documented script to the gateway's folder.
pub fn script(gateway: &Gateway) -> PathBuf {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/verify-log.sh");
    let file = gateway.path("verify-log.sh");
    fs::copy(document, &file).unwrap();
    file
}

/// Writes the log of a gateway that continued one of an older release, was rotated, and stopped.
async fn written() -> (Gateway, String, String) {
    let mut gateway = Gateway::init();
    gateway.run();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.kill();
    // As if what is there were of an older release.
    let log = gateway.path("state/attestation.jsonl");
    let older = gateway.record_lines()[0].replace(",\"chain\":", ",\"chained\":");
    let id = serde_json::from_str::<Value>(&older).unwrap()["id"].as_str().unwrap().to_owned();
    let another = older.replace(&id, &"0".repeat(id.len()));
    fs::write(&log, format!("{older}\n{another}\n")).unwrap();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    gateway.run();
    for _ in 0..2 {
        gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    }
    let first = gateway.path("first.jsonl");
    fs::rename(&log, &first).unwrap();
    gateway.hang_up();
    gateway.line(|line| line.contains("the attestation log was moved; started a new file"));
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.terminate();
    gateway.wait();
    let [first, second] = [first, log].map(|file| fs::read_to_string(file).unwrap());
    // What is not of this release's form has no place in the test's check of the schema.
    fs::write(gateway.path("state/attestation.jsonl"), "").unwrap();
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "show-key"])).unwrap();
    (gateway, first, second)
}

/// Returns whether the script finds these files valid, and its output.
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

/// Verifies closed segments in a folder by the document's command.
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
        assert!(said.contains("whole: line 8 of chain"), "{said}");
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
async fn verifies_a_log_by_the_documented_script() {
    let (gateway, first, second) = written().await;
    closed_segments_are_verified(&gateway, &first, &second);
    let good = |files: &[&str], expected: &str| {
        let (sound, said) = verified(&gateway, files);
        assert!(sound && said.contains(expected), "{said}");
    };
    // 1 checkpoint, that the log's key is another one, 2 records, 1 checkpoint; 1 checkpoint, 1 record, 1 checkpoint.
    good(&[&first, &second], "whole: line 8 of chain");
    good(&[&first, &second], "signed up to line 7");
    good(&[&format!("{first}{second}")], "signed up to line 7");
    good(&[&second], "begins with line 6 of chain");
    good(&[&first], "signed up to line 4");
    let lines: Vec<&str> = first.lines().collect();
    let joined = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>();
    let without = |number: usize| joined(&[&lines[..number - 1], &lines[number..]].concat());
    let swapped = joined(&[&lines[..3], &lines[4..5], &lines[3..4], &lines[5..]].concat());
    let edited = |from: &str, to: &str| {
        let altered = first.replacen(from, to, 1);
        assert_ne!(altered, first, "{from}");
        altered
    };
    let last = lines[6];
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
            "line 9: the lines before it are of no chain",
        ),
        (
            first.replace(lines[3], &lines[3].replace("\"v\":1,", "\"v\":1, ")),
            "line 5: the line before it, or this one, was altered",
        ),
        (
            first.replace(signature, &signature.replace("\":\"", "\":\"A")),
            "line 7: its checkpoint",
        ),
        (first.replace("the log's chain had 4 lines", "nothing"), ""),
        (first[..first.len() - 1].to_owned(), "line 7: it is cut off"),
        (first.replacen("\"reason\":\"", "\"reason\":\"\0", 1), "line 0: it has null bytes"),
    ];
    for (altered, expected) in &bad {
        let (sound, said) = verified(&gateway, &[altered, &second]);
        assert!(!sound && said.contains(expected), "{expected:?}: {said}");
    }
    let (sound, said) = verified(&gateway, &[&second, &first]);
    assert!(!sound && said.contains("this chain has begun before"), "{said}");
    let strangers = Gateway::start();
    fs::write(gateway.path("log.pub"), strangers.command(&["log", "show-key"])).unwrap();
    let (sound, said) = verified(&gateway, &[&first, &second]);
    assert!(
        !sound && said.contains("line 3: its checkpoint is not signed by this key"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_script_verifies_checkpoints_with_unsigned_findings() {
    let mut gateway = Gateway::start();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.kill();
    gateway.run();
    gateway.terminate();
    gateway.wait();
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "show-key"])).unwrap();
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
async fn documented_script_verifies_lines_removed_by_retention() {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\nkeep_bytes = 4096\n");
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    // What says that segments go is removed as well.
    for _ in 0..4 {
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
    fs::write(gateway.path("log.pub"), gateway.command(&["log", "show-key"])).unwrap();
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
            "its checkpoint belongs elsewhere",
        ),
        (
            text.replace(signed, &signed.replacen("\"replica\":\"", "\"replica\":\"x", 1)),
            "its checkpoint is not signed by this key",
        ),
        (String::new(), "there is not what was kept"),
    ] {
        fs::write(&kept, altered).unwrap();
        let (sound, said) = verified(all);
        assert!(!sound && said.contains(expected), "{expected:?}: {said}");
    }
    fs::write(&kept, &text).unwrap();
    what_nobody_has_signed_is_not_believed(&state, &text, &verified);
    // Of a log whose record of it is gone, nobody knows.
    let (sound, said) = verified("attestation.jsonl.* attestation.jsonl");
    assert!(!sound && said.contains("there is not what was kept"), "{said}");
}

/// Deletes the first existing segment, and adds an unsigned removal event of its gateway next to the log, in each possible place. Verifies
/// that it is not believed.
fn what_nobody_has_signed_is_not_believed(state: &Path, kept: &str, verified: &impl Fn(&str) -> (bool, String)) {
    let (all, copy) = (
        "copy/checkpoints.jsonl copy/attestation.jsonl.* copy/attestation.jsonl",
        state.join("copy"),
    );
    let segments = closed_segments(&state.join("attestation.jsonl")).unwrap();
    // Those of which its gateway has said so itself, and was stopped, are gone, too.
    let log =
        segments.iter().map(|segment| text(segment)).collect::<String>() + &fs::read_to_string(state.join("attestation.jsonl")).unwrap();
    let is_said = |segment: &PathBuf| {
        let name = segment.file_name().unwrap().to_str().unwrap().trim_end_matches(".gz");
        log.contains(&format!("\"segment\":\"{}\"", name.strip_prefix("attestation.jsonl.").unwrap()))
    };
    let place = segments.iter().position(|segment| !is_said(segment)).unwrap();
    let gone = text(&segments[place]);
    let lines: Vec<&str> = gone.lines().collect();
    let link = |line: &str| serde_json::from_str::<Value>(line).unwrap()["chain"].clone();
    let (first, last) = (link(lines[0]), link(lines[lines.len() - 1]));
    let its: Vec<&str> = lines
        .iter()
        .copied()
        .filter(|line| line.contains("\"checkpoint\":{") || line.contains("\"removed\":{"))
        .collect();
    let hashes: String = its.iter().map(|line| format!("{}\n", LineHash::of(line.as_bytes()))).collect();
    let head = LineHash::of(lines[lines.len() - 1].as_bytes());
    for (number, forged_first) in [(0, true), (999_999, false)] {
        let forged = json!({
            "removed": {
                "chains": [{ "id": first["id"], "first": first["number"], "last": last["number"], "head": head }],
                "kept": { "lines": its.len(), "sha256": LineHash::of(hashes.as_bytes()) },
            },
            "chain": { "id": first["id"], "number": number },
        });
        drop(fs::remove_dir_all(&copy));
        fs::create_dir(&copy).unwrap();
        for file in segments.iter().skip(place + 1) {
            fs::copy(file, copy.join(file.file_name().unwrap())).unwrap();
        }
        fs::copy(state.join("attestation.jsonl"), copy.join("attestation.jsonl")).unwrap();
        // It may have been killed before it removed that one.
        let its = its.iter().filter(|line| !kept.contains(**line));
        let its: String = its.flat_map(|line| [*line, "\n"]).collect();
        let text = if forged_first {
            format!("{forged}\n{kept}{its}")
        } else {
            format!("{kept}{forged}\n{its}")
        };
        fs::write(copy.join("checkpoints.jsonl"), text).unwrap();
        let (_, said) = verified(all);
        let begins = format!("begins with line {} of chain", last["number"].as_u64().unwrap() + 1);
        assert!(
            said.contains(&begins) && !said.contains("removed by rule"),
            "{number} {forged_first}: {said}"
        );
    }
    fs::remove_dir_all(copy).unwrap();
}

/// Returns the document's commands for a truncated archive.
fn commands_for_an_archive() -> String {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/audit.md")).unwrap();
    let (_, section) = document.split_once("\n## Archive month by month\n").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    block.split_once("```\n").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_commands_verify_a_split_archive() {
    let (gateway, november, december) = written().await;
    let decision = |line: &str| serde_json::from_str::<Value>(line).unwrap()["decision"].clone();
    assert_eq!(decision(december.lines().next().unwrap()), "checkpoint");
    let cut = |november: &str, december: &str| {
        fs::write(gateway.path("attestation.jsonl-20261201"), november).unwrap();
        fs::write(gateway.path("attestation.jsonl-20270101"), december).unwrap();
    };
    let program = program().get_program().to_owned();
    let folder = Path::new(&program).parent().unwrap().to_str().unwrap().to_owned();
    let run = |commands: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-ec", commands]).current_dir(gateway.path("."));
        shell.env("ATTEST_GATEWAY_CONFIG", gateway.path("gateway.toml"));
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
        let output = shell.env("PATH", path).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };
    let commands = commands_for_an_archive();
    cut(&november, &december);
    let (sound, said) = run(&commands);
    assert!(sound && said.contains("6 to 8") && said.contains("whole"), "{said}");
    // What was cut off at its beginning, or at the end of the month before.
    let without_first: String = december.lines().skip(1).flat_map(|line| [line, "\n"]).collect();
    cut(&november, &without_first);
    let (sound, said) = run(&commands);
    assert!(!sound && said.contains("missing"), "{said}");
    cut(&november, &december);
    assert!(run(&commands).0);
    let holds = |logs: &str| run(&format!("attest-audit log audit --log {logs} --holds november.checkpoint"));
    let (sound, said) = holds("attestation.jsonl-20261201 attestation.jsonl-20270101");
    assert!(sound && said.contains("whole"), "{said}");
    // Cut off, and made anew.
    let shorter: String = november.lines().take(5).flat_map(|line| [line, "\n"]).collect();
    cut(&shorter, "");
    let (sound, said) = holds("attestation.jsonl-20261201");
    assert!(!sound && said.contains("shortened after line 3"), "{said}");
    let anew = Gateway::start();
    let other = fs::read_to_string(anew.path("state/attestation.jsonl")).unwrap();
    cut(&other, "");
    let (sound, said) = holds("attestation.jsonl-20261201");
    assert!(!sound && said.contains("missing, up to line"), "{said}");
}
