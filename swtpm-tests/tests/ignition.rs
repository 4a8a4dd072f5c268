//! The gateway's Ignition against Debian's: merge, validation, and what is said to nodes of older versions.
//!
//! Debian has Ignition 2.14, which reads specs 3.0 to 3.3. Where today's Ignition, whose rules the gateway follows, differs from it, the
//! input is left out, and a comment says so.
#[path = "ignition/changes.rs"]
mod changes;
#[path = "ignition/configs.rs"]
mod configs;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use attest_ignition::{Config, SpecVersion};
use data_encoding::BASE64;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use swtpm_tests::{Images, TestFolder};

use changes::change;
use configs::config;

/// Number of cases, each of which runs a process.
const CASES: u32 = 256;
/// Maximum number of steps to shrink a failing case.
const SHRINK_STEPS: u32 = 200;

/// Lengths near the maximum line length, and near the parser's read-ahead.
const LINE_LENGTHS: &[usize] = &[1000, 2040, 2045, 2046, 2047, 2048, 2049, 3000, 4090, 4096, 5000];
/// Line length from which a unit file is refused.
const LINE_LIMIT_BYTES: usize = 2048;
/// Pieces from which unit files are composed.
#[rustfmt::skip]
const UNIT_PIECES: &[&str] = &[
    "[Unit]", "[", "]", "\n", "\r\n", "\\\n", "\\ \n", "\\", "A=b", "A", "=", " ", "#", ";", "\t", "[S]\nB=c\n", "ä", "\u{2003}",
];

#[test]
fn merge_matches_ignition() {
    let (ignition, folder) = (images().ignition().unwrap(), TestFolder::new().unwrap());
    check(CASES, &(config(3), config(3)), |(parent, child)| {
        let (Ok(ours), Ok(over)) = (Config::parse(text(&parent).as_bytes()), Config::parse(text(&child).as_bytes())) else {
            return Err(TestCaseError::reject("one of them is not valid"));
        };
        let ours = Value::Object(ours.merge(over).value().clone());
        let theirs = merged_by(&ignition, folder.path(), parent, &child);
        // Ignition validates what it merged.
        match (Config::from_value(ours.clone()), theirs) {
            (Err(_), None) => {}
            (Ok(_), Some(theirs)) => {
                let theirs = Config::from_value(theirs).map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(ours, Value::Object(theirs.value().clone()));
            }
            (Err(error), Some(_)) => return Err(TestCaseError::fail(format!("only we refuse: {error} in {ours}"))),
            (Ok(_), None) => return Err(TestCaseError::fail(format!("only Ignition refuses {ours}"))),
        }
        Ok(())
    });
}

#[test]
fn validation_matches_ignition() {
    let (images, folder) = (images(), TestFolder::new().unwrap());
    let cases = (0..=3_u8).prop_flat_map(|minor| (config(minor), proptest::option::weighted(0.9, change())));
    check(2 * CASES, &cases, |(mut config, change)| {
        if let Some(change) = change {
            change.make(&mut config);
        }
        if is_left_out(&config) {
            return Err(TestCaseError::reject("the versions differ"));
        }
        let text = text(&config);
        let ours = Config::parse(text.as_bytes());
        let theirs = accepts(images, folder.path(), text.as_bytes());
        prop_assert_eq!(ours.is_ok(), theirs, "{:?} in {}", ours.err(), text);
        Ok(())
    });
}

#[test]
fn unit_file_validation_matches_ignition() {
    let (images, folder) = (images(), TestFolder::new().unwrap());
    let long = (select(LINE_LENGTHS), select(&["a", "\n", " ", "ä"][..])).prop_map(|(length, part)| part.repeat(length / part.len()));
    let piece = prop_oneof![20 => select(UNIT_PIECES).prop_map(str::to_owned), 1 => long];
    let contents = proptest::collection::vec(piece, 0..12).prop_map(|pieces| format!("[Unit]\n{}", pieces.concat()));
    check(CASES, &contents, |contents| {
        let config = json!({"ignition": {"version": "3.3.0"}, "systemd": {"units": [{"name": "a.service", "contents": contents}]}});
        let ours = Config::parse(text(&config).as_bytes());
        let theirs = accepts(images, folder.path(), text(&config).as_bytes());
        // Ignition misses a line that is too long where its buffer happens to end; we refuse every one.
        if ours.is_err() && contents.split(['\r', '\n']).any(|line| line.len() >= LINE_LIMIT_BYTES) {
            return Ok(());
        }
        prop_assert_eq!(ours.is_ok(), theirs, "{:?}", ours.err());
        Ok(())
    });
}

#[test]
fn ignition_accepts_configs_converted_to_older_specs() {
    let (images, folder) = (images(), TestFolder::new().unwrap());
    let versions = [SpecVersion::V3_0, SpecVersion::V3_1, SpecVersion::V3_2, SpecVersion::V3_3];
    let cases = (0..versions.len()).prop_flat_map(|minor| (Just(minor), config(u8::try_from(minor).unwrap())));
    check(CASES / 4, &cases, |(minor, config)| {
        let Ok(config) = Config::parse(text(&config).as_bytes()) else {
            return Err(TestCaseError::reject("not valid"));
        };
        for (at, version) in versions.into_iter().enumerate() {
            match config.express(version) {
                Ok(bytes) => prop_assert!(accepts(images, folder.path(), &bytes), "{}", String::from_utf8_lossy(&bytes)),
                // What came from a version can go back to it.
                Err(error) => prop_assert!(at < minor, "{}", error),
            }
        }
        Ok(())
    });
}

fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        max_global_rejects: 4 * cases,
        max_shrink_iters: SHRINK_STEPS,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    if let Err(failure) = runner.run(strategy, test) {
        panic!("{failure}");
    }
}

fn images() -> &'static Images {
    static IMAGES: OnceLock<Images> = OnceLock::new();
    IMAGES.get_or_init(|| Images::fast().unwrap())
}

fn text(config: &Value) -> String {
    config.to_string()
}

/// Returns whether Ignition's validator accepts a config.
fn accepts(images: &Images, folder: &Path, config: &[u8]) -> bool {
    let file = folder.join("config.ign");
    fs::write(&file, config).unwrap();
    let output = Command::new(images.ignition_validate()).arg(&file).output().unwrap();
    match output.status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => panic!("{output:?}"),
    }
}

/// Returns the config from Ignition's cache after it has merged another; `None` if Ignition refuses it.
fn merged_by(ignition: &Path, folder: &Path, mut parent: Value, child: &Value) -> Option<Value> {
    let source = format!("data:;base64,{}", BASE64.encode(text(child).as_bytes()));
    parent["ignition"]["config"] = json!({"merge": [{"source": source}]});
    let (pointer, cache, state) = (folder.join("pointer.ign"), folder.join("cache.json"), folder.join("state"));
    fs::write(&pointer, text(&parent)).unwrap();
    // Ignition takes an existing cache for the result of an earlier stage.
    for earlier in [&cache, &state] {
        let _ = fs::remove_file(earlier);
    }
    let status = Command::new(ignition)
        .args(["--platform=file", "--stage=fetch", "--log-to-stdout"])
        .arg(format!("--config-cache={}", cache.display()))
        .arg(format!("--state-file={}", state.display()))
        .arg(format!("--root={}", folder.display()))
        .env("IGNITION_CONFIG_FILE", &pointer)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    if !status.success() {
        return None;
    }
    let mut merged: Value = serde_json::from_slice(&fs::read(&cache).unwrap()).unwrap();
    // Ignition's own working version, and what it merged from.
    merged["ignition"]["version"] = "3.3.0".into();
    merged["ignition"].as_object_mut().unwrap().remove("config");
    Some(merged)
}

/// Returns whether Ignition 2.14, today's Ignition and the gateway differ on this input on purpose.
fn is_left_out(config: &Value) -> bool {
    let list = |pointer: &str| config.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let empty = |value: Option<&Value>| value.is_none_or(|value| value == "");
    let version = config["ignition"]["version"].as_str().unwrap_or_default();
    // Ignition 2.14 refuses to delete a partition of a disk that has another without a number; later ones do not.
    let mixes = |disk: &Value| {
        let partitions = || disk.get("partitions").and_then(Value::as_array).into_iter().flatten();
        partitions().any(|partition| partition.get("shouldExist") == Some(&Value::Bool(false)))
            && partitions().any(|partition| partition.get("number").is_none_or(|number| number == 0))
    };
    // Before spec 3.3 a link needs no target, and before 3.1 a config to merge no source: such a config does not work, and we refuse it.
    let aimless = |link: &Value| version < "3.3.0" && empty(link.get("target"));
    let sourceless = |merged: &Value| version < "3.1.0" && empty(merged.get("source"));
    list("/storage/disks").any(mixes) || list("/storage/links").any(aimless) || list("/ignition/config/merge").any(sourceless)
}
