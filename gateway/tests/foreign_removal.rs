//! A gateway's removal events count for its own lines only: the key of one gateway cannot hide lines of another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use attest_log::{LineHash, LogKey, Point, Removal, Retention, RetentionRule, closed_segments, kept_file};
use attest_recording::PendingIn;
use attest_store::{Embedded, Store, Tick};
use attest_system::clock::Clock;
use serde_json::{Value, json};

use crate::altered_logs::signed_by;
use crate::log_by_openssl::script;
use crate::log_retention::{BEGAN, edit, key, log, open, text, write};
use crate::support::Gateway;

/// Gateways, each with a log in a folder of its own.
struct Site(Gateway);

impl Site {
    async fn new() -> Self {
        let site = Self(Gateway::init());
        for (name, began) in [("a", BEGAN), ("b", BEGAN + 1)] {
            let folder = site.folder(name);
            fs::create_dir(&folder).unwrap();
            site.public_half(name, &key(&folder));
            let journal = open(&folder, 1);
            journal.checkpoint(began).await.unwrap();
            for number in 1..=3 {
                write(&journal, began + number * 10).await;
            }
            drop(journal);
            // Whoever opens it has waited for who compresses.
            drop(open(&folder, u64::MAX));
        }
        site
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn public_half(&self, name: &str, key: &LogKey) {
        fs::write(self.0.path(&format!("{name}.pub")), key.public().pem()).unwrap();
    }

    /// Returns whether `audit` finds these logs sound with these keys, and its output.
    fn audit(&self, logs: &[&str], keys: &[&str], options: &[&str]) -> (bool, String) {
        let mut arguments = vec!["log".to_owned(), "audit".to_owned(), "--log".to_owned()];
        arguments.extend(logs.iter().map(|name| self.folder(name).to_str().unwrap().to_owned()));
        for key in keys {
            let (name, file) = key
                .split_once('=')
                .map_or((String::new(), *key), |(name, file)| (format!("{name}="), file));
            let file = self.0.path(&format!("{file}.pub"));
            arguments.extend(["--log-key".to_owned(), format!("{name}{}", file.display())]);
        }
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.0.try_command(&arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    /// Verifies that `audit` fails with these texts.
    fn bad(&self, logs: &[&str], keys: &[&str], options: &[&str], expected: &[&str]) {
        let (sound, said) = self.audit(logs, keys, options);
        assert!(!sound, "{said}");
        for expected in expected {
            assert!(said.contains(expected), "{expected:?} is not in:\n{said}");
        }
    }

    fn good(&self, logs: &[&str], keys: &[&str], expected: &str) {
        let (sound, said) = self.audit(logs, keys, &[]);
        assert!(sound && said.contains(expected), "{expected:?}: {said}");
    }

    /// Runs the retention pass as a gateway would at this second.
    async fn keep(&self, name: &str, seconds: u64, now: u64) {
        let folder = self.folder(name);
        // A log without its store is one that has lost it.
        let beside = self.0.path("stores");
        fs::create_dir_all(&beside).unwrap();
        let store = Embedded::open(&beside.join(name)).unwrap();
        let passed = Duration::from_secs(1000);
        store.forget_expired(Tick { now, passed }).await.unwrap();
        let age = Some(Duration::from_secs(seconds));
        let journal = open(&folder, 1);
        journal.compress_closed();
        let retention = Retention::new(log(&folder), RetentionRule { age, bytes: None }, Vec::new());
        retention
            .run(&journal, &PendingIn(&store), Clock::Fixed(now))
            .await
            .into_result()
            .unwrap();
        drop(journal);
        // Opened once more when nothing of it is compressed any longer.
        drop(open(&folder, u64::MAX));
    }
}

fn is_kept(line: &str) -> bool {
    line.contains("\"checkpoint\":{") || line.contains("\"removed\":{")
}

/// Returns the removal of these lines, of which `kept` are kept.
fn removal(gone: &str, kept: &[String]) -> Removal {
    let link = |line: &str| serde_json::from_str::<Value>(line).unwrap()["chain"].clone();
    let (first, last) = (link(gone.lines().next().unwrap()), gone.lines().last().unwrap());
    let hashes: String = kept.iter().map(|line| format!("{}\n", LineHash::of(line.as_bytes()))).collect();
    serde_json::from_value(json!({
        "segment": "20231114T221320Z-00000000-000000000001",
        "rule": "age",
        "lines": gone.lines().count(),
        "bytes": gone.len(),
        "sha256": LineHash::of(gone.as_bytes()),
        "chains": [{ "id": first["id"], "first": first["number"], "last": link(last)["number"], "head": LineHash::of(last.as_bytes()) }],
        "kept": { "lines": kept.len(), "sha256": LineHash::of(hashes.as_bytes()) },
    }))
    .unwrap()
}

/// Makes the gateway of this folder record and sign the removal.
async fn record_removal(folder: &Path, removal: Removal) {
    let journal = open(folder, u64::MAX);
    let at = BEGAN + 100;
    journal.record_event(&removal.event(at).unwrap()).await.unwrap();
    journal.checkpoint(at).await.unwrap();
}

fn keep_lines(folder: &Path, lines: &[String]) {
    let file = kept_file(&log(folder));
    let before = if file.exists() { text(&file) } else { String::new() };
    fs::write(file, before + &lines.iter().flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
}

fn kept_lines(gone: &str) -> Vec<String> {
    gone.lines().filter(|line| is_kept(line)).map(str::to_owned).collect()
}

/// Returns the chain of these lines, as the table shows it.
fn short(lines: &str) -> String {
    serde_json::from_str::<Value>(lines.lines().next().unwrap()).unwrap()["chain"]["id"]
        .as_str()
        .unwrap()[..8]
        .to_owned()
}

#[tokio::test]
async fn audit_rejects_removals_claimed_by_another_gateway() {
    // Wherever it puts what was to be kept.
    for keeper in ["a", "b"] {
        let site = Site::new().await;
        let (a, b) = (site.folder("a"), site.folder("b"));
        site.good(&["a", "b"], &["a", "b"], "whole");
        let segment = closed_segments(&log(&b)).unwrap().remove(0);
        let gone = text(&segment);
        record_removal(&a, removal(&gone, &kept_lines(&gone))).await;
        keep_lines(&site.folder(keeper), &kept_lines(&gone));
        let another = format!("chain {}: removed by another: line ", short(&gone));
        let by = format!("of chain {} says that lines 1 to 3 were", short(&text(&log(&a))));
        // The lines are there: it is a lie all the same.
        site.bad(&["a", "b"], &["a", "b"], &[], &[&another, &by]);
        fs::remove_file(segment).unwrap();
        let missing = format!("chain {}: missing before line 4", short(&gone));
        site.bad(&["a", "b"], &["a", "b"], &[], &[&another, &by, &missing]);
        site.bad(&["a", "b"], &["x=a", "gw=b"], &[], &[&missing]);
        let (_, said) = site.audit(&["a", "b"], &["a", "b"], &[]);
        assert!(!said.contains("removed by rule"), "{said}");
        // Whoever says that both keys are one gateway's has it so.
        site.good(&["a", "b"], &["gw=a", "gw=b"], "removed by rule: lines 1 to 3");
    }
}

#[tokio::test]
async fn audit_ignores_another_gateways_claims_about_retained_lines() {
    let site = Site::new().await;
    let (a, b) = (site.folder("a"), site.folder("b"));
    let segments = closed_segments(&log(&b)).unwrap();
    let [first, second] = [0, 1].map(|index| text(&segments[index]));
    // In the second segment, as it were, a line of b's that says that the first is removed.
    let template = second.lines().nth(1).unwrap();
    let place = template.rfind(",\"chain\":").unwrap();
    let object = serde_json::to_string(&removal(&first, &kept_lines(&first))).unwrap();
    let invented = format!("{},\"removed\":{object}{}", &template[..place], &template[place..]);
    let mut kept = kept_lines(&second);
    kept.insert(1, invented);
    record_removal(&a, removal(&second, &kept)).await;
    keep_lines(&b, &[kept_lines(&first), kept].concat());
    segments.iter().take(2).for_each(|segment| fs::remove_file(segment).unwrap());
    let (sound, said) = site.audit(&["a", "b"], &["a", "b"], &[]);
    assert!(
        !sound && said.contains("missing before line 7") && !said.contains("removed by rule"),
        "{said}"
    );
}

#[tokio::test]
async fn audit_reports_a_lost_log_despite_foreign_claims() {
    let site = Site::new().await;
    let (a, b) = (site.folder("a"), site.folder("b"));
    let mut gone: String = closed_segments(&log(&b)).unwrap().iter().map(|file| text(file)).collect();
    gone += &text(&log(&b));
    let last = gone.lines().rfind(|line| line.contains("\"checkpoint\":{")).unwrap();
    let (held, missing) = (site.0.path("held"), format!("chain {}: missing, up to line ", short(&gone)));
    fs::write(&held, last).unwrap();
    let holds = ["--holds", held.to_str().unwrap()];
    let (sound, said) = site.audit(&["a", "b"], &["a", "b"], &holds);
    assert!(sound, "{said}");
    site.bad(&["a"], &["a", "b"], &holds, &[&missing]);
    record_removal(&a, removal(&gone, &kept_lines(&gone))).await;
    keep_lines(&a, &kept_lines(&gone));
    site.bad(&["a"], &["a", "b"], &holds, &[&missing, "removed by another"]);
    // Also if nothing is there that its own gateway has signed, but what the other one has signed in its place.
    let forged = site.folder("forged");
    fs::create_dir(&forged).unwrap();
    for file in closed_segments(&log(&a)).unwrap() {
        fs::copy(&file, forged.join(file.file_name().unwrap())).unwrap();
    }
    fs::copy(a.join("log.key"), forged.join("log.key")).unwrap();
    fs::write(log(&forged), "").unwrap();
    let kept: Vec<String> = kept_lines(&gone)
        .into_iter()
        .map(|line| signed_by(&[line], 1, &key(&a)).remove(0))
        .collect();
    record_removal(&forged, removal(&gone, &kept)).await;
    keep_lines(&forged, &kept);
    site.bad(&["forged"], &["a", "b"], &holds, &[&missing]);
}

#[tokio::test]
async fn gateways_may_remove_lines_of_earlier_keys() {
    // The key was lost, and the chain went on.
    let site = Site::new().await;
    let a = site.folder("a");
    fs::remove_file(a.join("log.key")).unwrap();
    site.public_half("second", &key(&a));
    let journal = open(&a, 1);
    write(&journal, BEGAN + 40).await;
    write(&journal, BEGAN + 50).await;
    drop(journal);
    site.good(&["a"], &["gw=a", "gw=second"], "signed by another key, which is its gateway's");
    for (age, now, last) in [(35, 60, 3), (20, 71, 9)] {
        site.keep("a", age, BEGAN + now).await;
        site.good(&["a"], &["gw=a", "gw=second"], "removed by rule: lines 1 to ");
        site.bad(
            &["a"],
            &["a", "second"],
            &[],
            &["signed by another key than the checkpoints before it"],
        );
        assert!(text(&kept_file(&log(&a))).lines().count() >= last / 2);
    }
    // Another chain has begun, of the same key and of another.
    for second in ["a", "second"] {
        let site = Site::new().await;
        let a = site.folder("a");
        if second != "a" {
            fs::remove_file(a.join("log.key")).unwrap();
        }
        site.public_half(second, &key(&a));
        let journal = open(&a, 1);
        let lines = text(&log(&a));
        let last = lines.lines().last().unwrap();
        let link = &serde_json::from_str::<Value>(last).unwrap()["chain"];
        let point = Point {
            chain: link["id"].as_str().unwrap().to_owned(),
            number: link["number"].as_u64().unwrap(),
            sha256: LineHash::of(last.as_bytes()),
        };
        journal.begin_chain(vec![point]).await.unwrap();
        journal.checkpoint(BEGAN + 40).await.unwrap();
        write(&journal, BEGAN + 50).await;
        write(&journal, BEGAN + 60).await;
        drop(journal);
        let named = ["gw=a".to_owned(), format!("gw={second}")];
        let named = named.each_ref().map(String::as_str);
        site.good(&["a"], &named, "whole");
        // All of the first chain, and some of the second.
        site.keep("a", 15, BEGAN + 71).await;
        let of_first = |file: &PathBuf| text(file).lines().any(|line| short(line) == short(&lines));
        assert!(!closed_segments(&log(&a)).unwrap().iter().any(of_first));
        site.good(&["a"], &named, &format!("chain {}: removed by rule: lines 1 to ", short(&lines)));
        let (sound, said) = site.audit(&["a"], &["a", second], &[]);
        assert_eq!(sound, second == "a", "{said}");
        if !sound {
            assert!(said.contains("removed by another"), "{said}");
        }
        // Without what was kept nobody can tell whose it was.
        edit(&kept_file(&log(&a)), Vec::clear);
        site.bad(&["a"], &named, &[], &["removed, and not kept", "removed by another"]);
    }
}

#[tokio::test]
async fn retention_events_stay_valid_after_key_loss() {
    let site = Site::new().await;
    let a = site.folder("a");
    let segments = closed_segments(&log(&a)).unwrap();
    let name = segments[0].file_stem().unwrap().to_str().unwrap();
    let first = name.trim_start_matches("attestation.jsonl.").to_owned();
    site.keep("a", 35, BEGAN + 60).await;
    site.good(&["a"], &["a"], "removed by rule: lines 1 to 6");
    fs::remove_file(a.join("log.key")).unwrap();
    site.public_half("second", &key(&a));
    // All that the key before has signed is found now.
    let journal = open(&a, u64::MAX);
    journal.checkpoint(BEGAN + 80).await.unwrap();
    drop(journal);
    assert!(text(&log(&a)).contains("\"found\":{\"first\":"));
    site.good(&["a"], &["gw=a", "gw=second"], "removed by rule: lines 1 to 6");
    // And when the lines that say so go themselves, with the checkpoints that hold them.
    let journal = open(&a, 1);
    write(&journal, BEGAN + 90).await;
    write(&journal, BEGAN + 100).await;
    drop(journal);
    let say_so = || closed_segments(&log(&a)).unwrap().iter().any(|file| text(file).contains(&first));
    assert!(say_so());
    site.keep("a", 5, BEGAN + 110).await;
    assert!(!say_so() && !text(&log(&a)).contains(&first));
    site.good(&["a"], &["gw=a", "gw=second"], "removed by rule: lines 1 to 22");
}

#[tokio::test]
async fn documented_script_rejects_foreign_removal_of_unsigned_chains() {
    let site = Site::new().await;
    let (a, b) = (site.folder("a"), site.folder("b"));
    let other = text(&closed_segments(&log(&b)).unwrap()[1]);
    let line = other.lines().nth(1).unwrap();
    // What the other gateway has written, and no checkpoint of it; then a chain begins.
    let mixed = site.folder("mixed");
    fs::create_dir(&mixed).unwrap();
    fs::copy(a.join("log.key"), mixed.join("log.key")).unwrap();
    fs::write(log(&mixed), format!("{line}\n")).unwrap();
    let journal = open(&mixed, u64::MAX);
    let (chain, sha256) = (
        serde_json::from_str::<Value>(line).unwrap()["chain"].clone(),
        LineHash::of(line.as_bytes()),
    );
    let point = Point {
        chain: chain["id"].as_str().unwrap().to_owned(),
        number: 5,
        sha256,
    };
    journal.begin_chain(vec![point]).await.unwrap();
    journal.checkpoint(BEGAN + 60).await.unwrap();
    drop(journal);
    let before: String = [0, 1].map(|index| text(&closed_segments(&log(&b)).unwrap()[index])).concat();
    let before: String = before.lines().take(4).flat_map(|line| [line, "\n"]).collect();
    record_removal(&mixed, removal(&before, &[])).await;
    let by = "says that lines 1 to 4 were";
    site.bad(&["mixed"], &["a"], &[], &["removed by another", by, "missing before line 5"]);
    let command = format!("sh {} ../a.pub attestation.jsonl", script(&site.0).display());
    let output = Command::new("sh").args(["-c", &command]).current_dir(&mixed).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(
        said.contains("begins with line 5 of chain") && !said.contains("removed by rule"),
        "{said}"
    );
}
