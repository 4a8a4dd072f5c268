//! A log with limited retention: `audit` distinguishes removals by its rule from others, and consumers of the log get each line before its
//! removal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use attest_log::{
    Blobs, CheckpointSigner, DecidedBy, Decision, Journal, JournalError, LineHash, LogKey, Record, Retention, RetentionRule, SegmentLimits,
    closed_segments, kept_file,
};
use attest_recording::PendingIn;
use attest_store::{Embedded, Store, Tick};
use attest_system::clock::Clock;
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::killed_while_removing::{lines, pass};
use crate::support::{Gateway, POOL, bearer, tpm};

pub const BEGAN: u64 = 1_700_000_000;

/// Log from which three segments were removed, the last of them with the events of the earlier removals.
struct Site {
    gateway: Gateway,
    a: PathBuf,
    /// Copy of the log before any removal.
    whole: PathBuf,
    /// Name of a removed segment.
    segment: String,
}

pub fn text(file: &Path) -> String {
    let opened = fs::File::open(file).unwrap();
    if file.extension().is_some_and(|extension| extension == "gz") {
        return io::read_to_string(MultiGzDecoder::new(opened)).unwrap();
    }
    io::read_to_string(opened).unwrap()
}

pub fn log(folder: &Path) -> PathBuf {
    folder.join("attestation.jsonl")
}

pub fn key(folder: &Path) -> LogKey {
    LogKey::open(&folder.join("log.key")).unwrap()
}

pub fn open(folder: &Path, bytes: u64) -> Journal {
    let limits = SegmentLimits {
        bytes,
        age: Duration::MAX,
        compress_after: Duration::ZERO,
    };
    loop {
        let blobs = Blobs::open(&folder.join("evidence")).unwrap();
        let signer = CheckpointSigner::new(key(folder), Some("gw"), 1000);
        match Journal::open(&log(folder), signer, limits, blobs, Arc::new(())) {
            Err(JournalError::InUse(_)) => std::thread::yield_now(),
            opened => return opened.unwrap().0,
        }
    }
}

pub async fn write(journal: &Journal, at: u64) {
    let id = format!("{:032x}", at);
    let mut record = Record::new(id, Decision::Config, at, "192.0.2.1:7".to_owned(), POOL.to_owned());
    record.code = Some("evidence-required".to_owned());
    record.decided_by = DecidedBy::Policy;
    record.reason = "nothing was shown".to_owned();
    journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
    journal.checkpoint(at).await.unwrap();
}

/// Copies all files of the log.
fn copy(from: &Path, to: &Path) {
    drop(fs::remove_dir_all(to));
    fs::create_dir(to).unwrap();
    let files = closed_segments(&log(from)).unwrap();
    for file in files
        .iter()
        .chain([&log(from), &kept_file(&log(from))])
        .filter(|file| file.exists())
    {
        fs::copy(file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// Writes a log to this folder, and removes its first segments by the rule. `before` is called before that.
pub async fn with_removed_segments(a: &Path, before: impl FnOnce()) {
    fs::write(a.join("log.pub"), key(a).public().pem()).unwrap();
    let beside = tempfile::tempdir().unwrap();
    let store = Embedded::open(&beside.path().join("gateway.db")).unwrap();
    let keep = async |seconds: u64, now: u64| {
        // A segment of a line and two checkpoints: those that say what goes are closed, too.
        let journal = open(a, 1);
        journal.compress_closed();
        let passed = Duration::from_secs(1000);
        store.forget_expired(Tick { now, passed }).await.unwrap();
        let age = Some(Duration::from_secs(seconds));
        let retention = Retention::new(log(a), RetentionRule { age, bytes: None }, Vec::new());
        retention
            .run(&journal, &PendingIn(&store), Clock::Fixed(now))
            .await
            .into_result()
            .unwrap();
        journal.checkpoint(now).await.unwrap();
    };
    let journal = open(a, 1);
    journal.checkpoint(BEGAN).await.unwrap();
    for number in 1..=3 {
        write(&journal, BEGAN + number * 10).await;
    }
    drop(journal);
    keep(1_000_000, BEGAN + 50).await;
    // Opened once more when nothing of it is compressed any longer.
    drop(open(a, u64::MAX));
    before();
    // Lines 1 to 3; then 4 to 9, and what said that those go.
    keep(35, BEGAN + 50).await;
    keep(35, BEGAN + 90).await;
    let journal = open(a, u64::MAX);
    write(&journal, BEGAN + 100).await;
    drop(journal);
    drop(open(a, u64::MAX));
}

impl Site {
    async fn new() -> Self {
        let gateway = Gateway::init();
        let (a, whole) = (gateway.path("a"), gateway.path("whole"));
        fs::create_dir(&a).unwrap();
        with_removed_segments(&a, || copy(&a, &whole)).await;
        let segment = closed_segments(&log(&whole)).unwrap()[0]
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        Self {
            gateway,
            a,
            whole,
            segment,
        }
    }

    fn given(&self) -> PathBuf {
        self.gateway.path("given")
    }

    fn audit(&self, options: &[&str]) -> (bool, String) {
        let (given, key) = (self.given(), self.a.join("log.pub"));
        let named = ["log", "audit", "--log", given.to_str().unwrap(), "--log-key", key.to_str().unwrap()];
        let output = self.gateway.try_command(&[&named[..], options].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    /// Alters a copy of the log. Returns whether `audit` finds it sound, and its output.
    fn after(&self, alter: impl FnOnce(&Path)) -> (bool, String) {
        copy(&self.a, &self.given());
        alter(&self.given());
        self.audit(&[])
    }

    fn good(&self, what: &str, alter: impl FnOnce(&Path)) {
        let (sound, text) = self.after(alter);
        assert!(
            sound && text.contains("whole") && text.contains("removed by rule: lines 1 to "),
            "{what}: {text}"
        );
    }

    fn bad(&self, what: &str, expected: &str, alter: impl FnOnce(&Path)) {
        let (sound, text) = self.after(alter);
        assert!(!sound && text.contains(expected), "{what}: {expected:?} is not in:\n{text}");
    }
}

/// Alters the lines of a file.
pub fn edit(file: &Path, alter: impl FnOnce(&mut Vec<String>)) {
    let mut lines: Vec<String> = text(file).lines().map(str::to_owned).collect();
    alter(&mut lines);
    let plain = file.with_extension(if file.extension().is_some_and(|extension| extension == "gz") {
        ""
    } else {
        "jsonl"
    });
    fs::remove_file(file).unwrap();
    fs::write(plain, lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>()).unwrap();
}

/// Returns the log's first file with a removal event, and the position of its line.
fn says(folder: &Path) -> (PathBuf, usize) {
    let mut files = closed_segments(&log(folder)).unwrap();
    files.push(log(folder));
    let mut found = files.into_iter().filter_map(|file| {
        let place = text(&file).lines().position(|line| line.contains("\"decision\":\"removed\""))?;
        Some((file, place))
    });
    found.next().unwrap()
}

fn edit_saying(folder: &Path, alter: impl FnOnce(&mut Vec<String>, usize)) {
    let (file, place) = says(folder);
    edit(&file, |lines| alter(lines, place));
}

/// Deletes the first remaining segment, and forges the log's removal event as an attacker without the key can.
fn forge(folder: &Path) {
    let segment = closed_segments(&log(folder)).unwrap().remove(0);
    let gone = text(&segment);
    let link = |line: &str| serde_json::from_str::<Value>(line).unwrap()["chain"].clone();
    let (first, last) = (link(gone.lines().next().unwrap()), gone.lines().last().unwrap());
    let (file, place) = says(folder);
    let said = text(&file).lines().nth(place).unwrap().to_owned();
    let mut forged: Value = serde_json::from_str(&said).unwrap();
    let kept: Vec<&str> = gone
        .lines()
        .filter(|line| line.contains("\"checkpoint\":{") || line.contains("\"removed\":{"))
        .collect();
    let mut hashes = kept
        .iter()
        .map(|line| format!("{}\n", LineHash::of(line.as_bytes())))
        .collect::<String>();
    hashes = LineHash::of(hashes.as_bytes()).to_string();
    forged["removed"]["kept"] = serde_json::json!({ "lines": kept.len(), "sha256": hashes });
    forged["removed"]["chains"] = serde_json::json!([
        { "id": first["id"], "first": first["number"], "last": link(last)["number"], "head": LineHash::of(last.as_bytes()) }
    ]);
    let mut end = text(&log(folder));
    let before = end.lines().last().unwrap().to_owned();
    let (place, before_place) = (said.rfind(",\"chain\":").unwrap(), link(&before));
    let object = serde_json::to_string(&forged["removed"]).unwrap();
    let removed = said.find("\"removed\":{").unwrap();
    end.push_str(&format!(
        "{}\"removed\":{object},\"chain\":{{\"id\":{},\"number\":{},\"previous\":\"{}\"}}}}\n",
        &said[..removed],
        before_place["id"],
        before_place["number"].as_u64().unwrap() + 1,
        LineHash::of(before.as_bytes())
    ));
    assert!(place > removed);
    fs::write(log(folder), end).unwrap();
    fs::write(
        kept_file(&log(folder)),
        text(&kept_file(&log(folder))) + &kept.iter().flat_map(|line| [*line, "\n"]).collect::<String>(),
    )
    .unwrap();
    fs::remove_file(segment).unwrap();
}

#[tokio::test]
async fn audit_distinguishes_retention_from_missing_lines() {
    let site = Site::new().await;
    site.good("nothing", |_| {});
    let kept = |folder: &Path, alter: &dyn Fn(&mut Vec<String>)| edit(&kept_file(&log(folder)), |lines| alter(lines));
    site.good("what is kept in another order", |folder| kept(folder, &|lines| lines.reverse()));
    // An archive that somebody has put back; and what a kill has left.
    let archived = site.whole.join(&site.segment);
    let (sound, said) = site.after(|folder| {
        fs::copy(&archived, folder.join(&site.segment)).unwrap();
    });
    assert!(sound && said.contains("are here, and are said to be removed"), "{said}");
    site.good("half a line that is kept", |folder| {
        let file = kept_file(&log(folder));
        fs::write(&file, text(&file) + "{\"at\":").unwrap();
    });
    site.bad("a segment", "missing between", |folder| {
        fs::remove_file(&closed_segments(&log(folder)).unwrap()[1]).unwrap();
    });
    site.bad("the first segment", "missing between", |folder| {
        fs::remove_file(&closed_segments(&log(folder)).unwrap()[0]).unwrap();
    });
    site.bad("an archive that was altered", "altered at", |folder| {
        let there = folder.join(&site.segment);
        fs::copy(&archived, &there).unwrap();
        edit(&there, |lines| lines[1] = lines[1].replace("nothing was", "something was"));
    });
    site.bad("an archive whose end was altered", "removed otherwise than is said", |folder| {
        let there = folder.join(&site.segment);
        fs::copy(&archived, &there).unwrap();
        edit(&there, |lines| lines[2] = lines[2].replace("chain had", "chain  had"));
    });
}

#[tokio::test]
async fn audit_detects_altered_retained_checkpoints() {
    let site = Site::new().await;
    let bad = |what: &str, expected: &str, alter: &dyn Fn(&mut Vec<String>)| {
        site.bad(what, expected, |folder| edit(&kept_file(&log(folder)), |lines| alter(lines)));
    };
    site.bad("all of it", "removed, and not kept", |folder| {
        fs::remove_file(kept_file(&log(folder))).unwrap()
    });
    bad("one is gone", "removed, and not kept", &|lines| drop(lines.remove(1)));
    bad("the last one is gone", "removed, and not kept", &|lines| drop(lines.pop()));
    bad("twice", "kept twice: line 1 of", &|lines| lines.push(lines[0].clone()));
    bad("what nobody signs", "kept otherwise", &|lines| {
        lines[0] = lines[0].replace("chain had", "chain  had")
    });
    bad("the last line of a segment", "removed otherwise than is said", &|lines| {
        lines[1] = lines[1].replace("chain had", "chain  had")
    });
    bad("what is signed", "checkpoint false", &|lines| {
        lines[1] = lines[1].replacen("\"replica\":\"gw", "\"replica\":\"wg", 1)
    });
    bad("no line", "no line that is kept", &|lines| lines.push("x".to_owned()));
    let saying = |line: &String| line.contains("\"removed\":{");
    bad("what says that more was removed", "kept otherwise", &|lines| {
        let line = lines.iter_mut().find(|line| saying(line)).unwrap();
        *line = line.replacen("\"lines\":3", "\"lines\":4", 1);
    });
    bad("a record as any other", "no line that is kept", &|lines| {
        let line = lines
            .iter()
            .find(|line| saying(line))
            .unwrap()
            .replace("\"removed\":{", "\"Removed\":{");
        lines.push(line);
    });
    let other = Site::new().await;
    let strange = text(&log(&other.a)).lines().last().unwrap().to_owned();
    let others = other.a.join("log.pub");
    copy(&site.a, &site.given());
    edit(&kept_file(&log(&site.given())), |lines| lines.push(strange));
    let (sound, said) = site.audit(&["--log-key", others.to_str().unwrap()]);
    assert!(!sound && said.contains("kept, and of nothing"), "{said}");
    let own = text(&log(&site.a)).lines().next().unwrap().to_owned();
    site.good("a line that is there", |folder| {
        edit(&kept_file(&log(folder)), |lines| lines.push(own.clone()))
    });
    site.bad("a line in the place of another", "kept, and of nothing", |folder| {
        edit(&kept_file(&log(folder)), |lines| lines.push(own.replace("chain had", "chain  had")));
    });
}

#[tokio::test]
async fn audit_rejects_forged_removal_events() {
    let site = Site::new().await;
    let alter = |what: &str, expected: &str, alter: &dyn Fn(&mut Vec<String>, usize)| {
        site.bad(what, expected, |folder| edit_saying(folder, alter));
    };
    alter("it is gone", "missing between", &|lines, at| drop(lines.remove(at)));
    alter("it is gone, and so are the lines", "missing", &|lines, at| lines.truncate(at));
    alter("twice", "doubled", &|lines, at| lines.insert(at, lines[at].clone()));
    for (from, to) in [
        ("\"first\":", "\"first\":1"),
        ("\"rule\":\"age\"", "\"rule\":\"size\""),
        ("\"head\":\"", "\"head\":\"0"),
    ] {
        alter(from, "altered", &|lines, at| lines[at] = lines[at].replacen(from, to, 1));
    }
    site.bad("it was written after the end", "is not believed", forge);
    site.bad("and the lines are missing", "missing between", forge);
    copy(&site.a, &site.given());
    forge(&site.given());
    fs::copy(site.a.join("log.key"), site.given().join("log.key")).unwrap();
    let journal = open(&site.given(), u64::MAX);
    journal.checkpoint(BEGAN + 200).await.unwrap();
    drop(journal);
    let (sound, said) = site.audit(&[]);
    assert!(
        !sound && said.contains("is not believed") && said.contains("missing between") && said.contains("stood there unsigned"),
        "{said}"
    );
}

#[tokio::test]
async fn audit_compares_external_checkpoints_with_removed_lines() {
    let site = Site::new().await;
    copy(&site.a, &site.given());
    let (file, all) = (site.gateway.path("checkpoint"), text(&kept_file(&log(&site.a))));
    let file = file.to_str().unwrap();
    fs::write(file, all.lines().nth(1).unwrap()).unwrap();
    for option in ["--holds", "--from"] {
        let (sound, said) = site.audit(&[option, file]);
        assert!(sound && said.contains("whole"), "{option}: {said}");
    }
    fs::write(file, all.lines().nth(1).unwrap().replace("chain had", "chain  had")).unwrap();
    let (sound, said) = site.audit(&["--holds", file]);
    assert!(!sound && said.contains("altered at or before line 3"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_gateway_applies_its_retention_rule() {
    let mut gateway = Gateway::init();
    let rule = "[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\nkeep_bytes = 4096\n";
    let tickets = "[ticket]\nuses = 40\n";
    gateway.settings(&format!(
        "[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\n{tickets}"
    ));
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    let ticket = gateway.ticket().await;
    for _ in 0..20 {
        gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    }
    let evidence = fs::read_dir(gateway.path("state/evidence")).unwrap().count();
    gateway.terminate();
    gateway.wait();
    assert!(!gateway.output().contains("REMOVED"));
    gateway.settings(&format!("{rule}{tickets}"));
    gateway.run();
    gateway.line(|line| line.contains("REMOVED by attestation_log.keep_bytes"));
    gateway.terminate();
    gateway.wait();
    let said = gateway.command(&["log", "audit"]);
    assert!(said.contains("whole") && said.contains("removed by rule: lines 1 to "), "{said}");
    // The event log of the first boot; the certificates may be named by each.
    assert!(fs::read_dir(gateway.path("state/evidence")).unwrap().count() <= evidence);
    assert!(gateway.command(&["log", "show", "--decision", "removed"]).contains("removed"));
    let exported = gateway.command(&["log", "export"]);
    assert!(exported.lines().count() > 3 && exported.contains("\"decision\":\"removed\""));
}

#[test]
fn audit_tolerates_retention_during_the_audit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nname = \"gw\"\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\n");
    gateway.edit_pool(
        POOL,
        "endorsement = \"allowlist\"",
        "endorsement = \"allowlist\"\nevent_log = \"recorded\"",
    );
    gateway.run();
    runtime.block_on(async {
        let case = tpm().but(|case| case.event_log = Some(b"no log".to_vec()));
        gateway.endorse(&case, &[]);
        let ticket = gateway.attest(case, None).await.ticket();
        gateway.config("/config/worker", &[&bearer(&ticket)]).await;
    });
    gateway.terminate();
    gateway.wait();
    let (lines, evidence) = (lines(&log(&gateway.path("state"))), gateway.path("state/evidence"));
    let attested = lines.lines().find(|line| line.contains("\"decision\":\"evidence\"")).unwrap();
    let blobs = fs::read_dir(&evidence).unwrap().map(|entry| entry.unwrap().path());
    let is_named = |blob: &PathBuf| attested.contains(blob.file_stem().unwrap().to_str().unwrap());
    let blob = blobs.into_iter().find(is_named).unwrap();
    // The auditor has listed the log and read its lines when it opens this, and waits for what somebody writes.
    fs::remove_file(&blob).unwrap();
    assert!(Command::new("mkfifo").arg(&blob).status().unwrap().success());
    std::thread::scope(|scope| {
        let audit = scope.spawn(|| gateway.try_command(&["log", "audit"]));
        let opened = fs::OpenOptions::new().write(true).open(&blob).unwrap();
        runtime.block_on(pass(&gateway, 1));
        assert!(!blob.exists());
        drop(opened);
        let audit = audit.join().unwrap();
        let said = String::from_utf8([audit.stdout, audit.stderr].concat()).unwrap();
        assert!(audit.status.success() && said.contains("removed by rule: lines 1 to "), "{said}");
        assert!(!said.contains("DIFFERENT"), "{said}");
    });
}
