//! Output of `audit` for altered logs: it names each alteration that an outsider can make.

mod checkpoints;

use std::fs;
use std::io::Write;
use std::path::Path;

use attest_log::{Blobs, CheckpointSigner, DecidedBy, Decision, Journal, LastCheckpoint, LineHash, LogKey, Record, SegmentLimits};
use attest_system::clock::rfc3339;
use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::support::{Gateway, POOL};

/// Start of the logs, in seconds since 1970.
const BEGAN: u64 = 1_700_000_000;
/// Numbers of the lines that are checkpoints; two lines follow that no checkpoint covers.
const CHECKPOINTS: [usize; 3] = [1, 5, 9];
const LAST: usize = 11;

type Lines = Vec<String>;

/// Logs of two gateways, and one that an older release began.
struct Site {
    gateway: Gateway,
    a: Lines,
    b: Lines,
    older: Lines,
}

/// Returns a refusal of an unauthenticated client.
fn record(number: u64) -> Record {
    let at = BEGAN + number;
    let mut record = Record::new(
        format!("{:032x}", rand(number)),
        Decision::Config,
        at,
        "192.0.2.1:7".to_owned(),
        POOL.to_owned(),
    );
    record.code = Some("evidence-required".to_owned());
    record.decided_by = DecidedBy::Policy;
    record.reason = "nothing was shown".to_owned();
    record
}

/// Returns a number for ids that no other log has.
fn rand(number: u64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(number)
}

/// Writes a log that begins after the text `before`. Returns its lines.
async fn written(folder: &Path, before: &str) -> Lines {
    fs::create_dir_all(folder).unwrap();
    let (log, key) = (folder.join("attestation.jsonl"), LogKey::open(&folder.join("log.key")).unwrap());
    fs::write(folder.join("log.pub"), key.public().pem()).unwrap();
    fs::write(&log, before).unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    let signer = CheckpointSigner::new(key, Some(name), 1000);
    let (journal, _) = Journal::open(&log, signer, SegmentLimits::NEVER, blobs, std::sync::Arc::new(())).unwrap();
    for number in 1..=u64::try_from(LAST).unwrap() {
        if CHECKPOINTS.contains(&usize::try_from(number).unwrap()) {
            journal.checkpoint(BEGAN + number).await.unwrap();
        } else {
            journal.record(&record(number), Vec::new(), ()).await.unwrap().into_inner();
        }
    }
    let text = fs::read_to_string(&log).unwrap();
    text.lines().map(str::to_owned).collect()
}

impl Site {
    async fn new() -> Self {
        let gateway = Gateway::init();
        let older: String = (0..3).map(|_| serde_json::to_string(&record(0)).unwrap() + "\n").collect();
        Self {
            a: written(&gateway.path("a"), "").await,
            b: written(&gateway.path("b"), "").await,
            older: written(&gateway.path("older"), &older).await,
            gateway,
        }
    }

    /// Returns whether `audit` finds these files sound with these options, and its output.
    fn audit(&self, files: &[&[String]], options: &[&str]) -> (bool, String) {
        let texts: Vec<String> = files
            .iter()
            .map(|lines| lines.iter().map(|line| format!("{line}\n")).collect())
            .collect();
        self.audit_texts(&texts, options)
    }

    fn audit_texts(&self, texts: &[String], options: &[&str]) -> (bool, String) {
        let folder = self.gateway.path("given");
        drop(fs::remove_dir_all(&folder));
        fs::create_dir(&folder).unwrap();
        for (number, text) in texts.iter().enumerate() {
            fs::write(folder.join(format!("attestation.jsonl.{number}")), text).unwrap();
        }
        let keys = ["a", "b", "older"].map(|name| self.gateway.path(&format!("{name}/log.pub")));
        let mut arguments = vec!["log", "audit", "--log", folder.to_str().unwrap()];
        for key in keys.iter().filter(|_| !options.contains(&"--log-key")) {
            arguments.extend(["--log-key", key.to_str().unwrap()]);
        }
        arguments.extend(options);
        let output = self.gateway.try_command(&arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    /// Writes a checkpoint of a log to a file of its own.
    fn write_checkpoint(&self, line: &str) -> String {
        let file = self.gateway.path("checkpoint.json");
        fs::write(&file, format!("{line}\n")).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Verifies that `audit` rejects an altered log with the expected text. Returns a message if it does not.
    fn says(&self, what: &str, files: &[&[String]], expected: &str) -> Option<String> {
        self.says_with(what, files, &[], expected)
    }

    fn says_with(&self, what: &str, files: &[&[String]], options: &[&str], expected: &str) -> Option<String> {
        let (sound, text) = self.audit(files, options);
        (sound || !text.contains(expected)).then(|| format!("{what}: {expected:?} is not in:\n{text}"))
    }
}

/// Replaces text in the line with this number.
fn edited(lines: &[String], number: usize, from: &str, to: &str) -> Lines {
    let mut lines = lines.to_vec();
    let altered = lines[number - 1].replacen(from, to, 1);
    assert_ne!(altered, lines[number - 1], "{from} is not in line {number}");
    lines[number - 1] = altered;
    lines
}

fn replaced(lines: &[String], number: usize, line: &str) -> Lines {
    let mut lines = lines.to_vec();
    line.clone_into(&mut lines[number - 1]);
    lines
}

fn without(lines: &[String], from: usize, to: usize) -> Lines {
    [&lines[..from - 1], &lines[to..]].concat()
}

fn with(lines: &[String], after: usize, new: &[String]) -> Lines {
    [&lines[..after], new, &lines[after..]].concat()
}

/// Returns the chain link at the line's end as text.
fn place(line: &str) -> &str {
    &line[line.rfind(",\"chain\":").unwrap()..]
}

/// Replaces a line's chain link by another line's.
fn placed(line: &str, place_of: &str) -> String {
    line.replace(place(line), place(place_of))
}

/// Recomputes the hash chain of the lines from `first` on, which needs no key.
fn rechained(lines: &[String], first: usize) -> Lines {
    let mut lines = lines.to_vec();
    for index in first..lines.len() {
        let hash = LineHash::of(lines[index - 1].as_bytes()).to_string();
        let value: Value = serde_json::from_str(&lines[index]).unwrap();
        let before = value["chain"]["previous"].as_str().unwrap();
        lines[index] = lines[index].replace(before, &hash);
    }
    lines
}

/// Signs the checkpoint at `number` with another key.
pub fn signed_by(lines: &[String], number: usize, key: &LogKey) -> Lines {
    let value: Value = serde_json::from_str(&lines[number - 1]).unwrap();
    let (chain, checkpoint) = (&value["chain"], &value["checkpoint"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let signed = format!(
        "attest-gateway/v1/log-checkpoint\n{}\n{}\n{}\n{}\n{}\n",
        text(&checkpoint["replica"]),
        text(&chain["id"]),
        checkpoint["count"],
        text(&checkpoint["head"]),
        value["at"]
    );
    let lines = edited(lines, number, &text(&checkpoint["key"]), &key.public().to_string());
    edited(
        &lines,
        number,
        &text(&checkpoint["signature"]),
        &BASE64.encode(&key.sign(signed.as_bytes())),
    )
}

#[tokio::test]
async fn audit_accepts_intact_chains_in_any_file_layout() {
    let site = Site::new().await;
    let (a, b, older) = (&site.a, &site.b, &site.older);
    let good = |files: &[&[String]], options: &[&str], expected: &[&str]| {
        let (sound, text) = site.audit(files, options);
        assert!(sound, "{text}");
        assert!(!text.contains("NOT WHOLE") && !text.contains("warning"), "{text}");
        for expected in expected {
            assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
        }
    };
    good(&[a], &[], &["1 to 11", " 8 ", "8 as recorded"]);
    good(&[a, b], &[], &["16 as recorded", " a ", " b "]);
    good(&[older], &[], &["unchained up to line 3", "11 as recorded"]);
    good(&[&a[7..], b, &a[..3], &a[3..7]], &[], &["1 to 11"]);
    good(&[&older[..3]], &["--unchained"], &["unchained, 3 line(s)"]);
    good(&[&older[..3], a], &["--unchained"], &["unchained, 3 line(s)", "1 to 11"]);
    good(&[&a[5..]], &["--continued"], &["6 to 11", "before line 6 is not at hand"]);
    // After a checkpoint, which the archive may hold still.
    let from = site.write_checkpoint(&a[4]);
    for begin in [0, 3, 4, 5] {
        good(&[&a[begin..]], &["--from", &from], &["6 to 11", "5 as recorded"]);
    }
    let holds = site.write_checkpoint(&a[8]);
    good(&[a], &["--holds", &holds], &["whole"]);
    // Compressed, as logrotate leaves it.
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all((a.join("\n") + "\n").as_bytes()).unwrap();
    let file = site.gateway.path("a.gz");
    fs::write(&file, zipped.finish().unwrap()).unwrap();
    let key = site.gateway.path("a/log.pub");
    let table = site
        .gateway
        .command(&["log", "audit", "--log", file.to_str().unwrap(), "--log-key", key.to_str().unwrap()]);
    assert!(table.contains("1 to 11") && table.contains("whole"), "{table}");
}

#[tokio::test]
async fn every_alteration_of_a_line_is_named() {
    let site = Site::new().await;
    let a = &site.a;
    let says = |what: &str, lines: &[String], expected: &str| site.says(what, &[lines], expected);
    let at = |field: &str, to: &str| edited(a, 3, field, to);
    let time = rfc3339(BEGAN + 3);
    let id = serde_json::from_str::<Value>(&a[2]).unwrap()["id"].as_str().unwrap().to_owned();
    let in_order = format!("\"v\":1,\"time\":\"{time}\"");
    let in_another = format!("\"time\":\"{time}\",\"v\":1");
    let previous = LineHash::of(a[1].as_bytes()).to_string();
    let mut missed: Vec<Option<String>> = [
        ("reason", "nothing was shown", "something was shown"),
        ("peer", "192.0.2.1", "192.0.2.2"),
        ("verdict", "\"refused\"", "\"served\""),
        ("code", "evidence-required", "evidence-requires"),
        ("id", id.as_str(), "00000000000000000000000000000000"),
        ("time", time.as_str(), "2023-11-14T22:13:20Z"),
        ("at", "\"at\":1700000003", "\"at\":1700000002"),
        ("pool", "worker", "master"),
        ("shown", "\"nothing\"", "\"token\""),
        ("version", "\"v\":1", "\"v\":2"),
        ("decision", "\"config\"", "\"challenge\""),
        ("a member more", ",\"chain\"", ",\"name\":\"x\",\"chain\""),
        ("a member less", "\"pool\":\"worker\",", ""),
        ("order of members", in_order.as_str(), in_another.as_str()),
        ("a member twice", "\"v\":1,", "\"v\":1,\"v\":1,"),
        ("blanks", "\"v\":1,", "\"v\":1, "),
        ("an escaped letter", "nothing was", "n\\u006fthing was"),
        ("no place", place(&a[2]), "}"),
        ("its place first", "{\"v\"", "{\"chain\":{},\"v\""),
        ("a null byte", "nothing was", "nothing\0was"),
        ("no JSON", "{\"v\"", "\"v\""),
    ]
    .into_iter()
    .map(|(what, from, to)| says(what, &at(from, to), "altered at line 3"))
    .collect();
    missed.extend([
        says("previous", &at(&previous, &"0".repeat(64)), "altered at lines 2 to 3"),
        says("number", &at("\"number\":3", "\"number\":4"), "missing between 2 and 4"),
        says(
            "number, far",
            &at("\"number\":3", "\"number\":18446744073709551615"),
            "missing between 2 and 4",
        ),
        says("chain", &at("\"chain\":{\"id\":\"", "\"chain\":{\"id\":\"x"), "spliced: "),
        says("begins", &edited(a, 1, ",\"begins\":{\"why\":\"new\"}", ""), "altered at line 1"),
        says(
            "begins, another why",
            &edited(a, 1, "\"new\"", "\"unchained\""),
            "altered at line 1",
        ),
        says(
            "begins in the middle",
            &at(&format!("{previous}\""), &format!("{previous}\",\"begins\":{{\"why\":\"new\"}}")),
            "spliced: ",
        ),
        says(
            "blanks in the last line",
            &edited(a, LAST, "\"v\":1,", "\"v\":1 ,"),
            "put in, or altered",
        ),
        says(
            "a member twice in the last line",
            &edited(a, LAST, "\"v\":1,", "\"v\":1,\"v\":1,"),
            "put in, or altered",
        ),
        says(
            "place of the last line",
            &edited(a, LAST, "\"number\":11", "\"number\":12"),
            "missing between 10 and 12",
        ),
    ]);
    let missed: Vec<String> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[tokio::test]
async fn audit_names_removed_inserted_and_moved_lines() {
    let site = Site::new().await;
    let (a, b, older) = (&site.a, &site.b, &site.older);
    let says = |what: &str, lines: &[String], expected: &str| site.says(what, &[lines], expected);
    let holds = site.write_checkpoint(&a[8]);
    let holding = |what: &str, lines: &[String], expected: &str| site.says_with(what, &[lines], &["--holds", &holds], expected);
    let swapped = |x: usize, y: usize| {
        let mut lines = a.clone();
        lines.swap(x - 1, y - 1);
        lines
    };
    let line = |text: &str| vec![text.to_owned()];
    let renumbered: Lines = (6..=LAST).fold(a.clone(), |lines, number| {
        edited(
            &lines,
            number,
            &format!("\"number\":{number}"),
            &format!("\"number\":{}", number + 1),
        )
    });
    let missed = [
        says("the first is gone", &a[1..], "missing before line 2"),
        says("the first two", &a[2..], "missing before line 3"),
        says("one in the middle", &without(a, 3, 3), "missing between 2 and 4: line 3"),
        says("some in the middle", &without(a, 3, 7), "missing between 2 and 8: lines 3 to 7"),
        says("a checkpoint", &without(a, 5, 5), "missing between 4 and 6"),
        says("a gap in the numbers", &renumbered, "missing between 5 and 7"),
        holding("the end", &a[..8], "shortened after line 8 (2023-11-14T22:13:28Z): line 9 is known"),
        holding("the end from a checkpoint on", &a[..5], "shortened after line 5"),
        holding("all of it", &[], "missing, up to line 9 at least"),
        holding("another log in its place", b, "missing, up to line 9 at least"),
        says("neighbours", &swapped(3, 4), "out of order: line 3"),
        says("far apart", &swapped(3, 7), "out of order: line 3"),
        says("the end first", &swapped(10, 11), "out of order: line 10"),
        says("one twice", &with(a, 3, &a[2..3]), "doubled: line 3"),
        says("one twice, later", &with(a, 7, &a[2..3]), "doubled: line 3"),
        says("the last twice", &with(a, LAST, &a[LAST - 1..]), "doubled: line 11"),
        says("all of it twice", &[a.as_slice(), a].concat(), "doubled: lines 1 to 11"),
        site.says("a file twice", &[a, a], "doubled: lines 1 to 11"),
        site.says(
            "an old segment in the place of a newer",
            &[&a[..5], &a[..5]],
            "doubled: lines 1 to 5",
        ),
        site.says("an old segment beside the rest", &[a, &a[2..5]], "doubled: lines 3 to 5"),
        site.says("a segment is missing", &[&a[..3], &a[6..]], "missing between 3 and 7"),
        says("a line of another", &with(a, 3, &b[2..3]), "spliced: "),
        says("a line of another in its place", &replaced(a, 3, &b[2]), "spliced: "),
        says("the other's beginning", &with(a, 3, &b[..1]), "spliced: "),
        says("all of the other", &with(a, 3, b), "spliced: "),
        says("the other behind it", &with(a, LAST, b), "spliced: "),
        says("the other's end behind it", &with(a, LAST, &b[6..]), "spliced: "),
        says(
            "what the other says, in its place",
            &replaced(a, 3, &placed(&b[2], &a[2])),
            "altered at line 3",
        ),
        says("an empty line", &with(a, 3, &line("")), "put in, or altered"),
        says("no JSON", &with(a, 3, &line("x")), "put in, or altered"),
        says("a record of an older release", &with(a, 3, &older[..1]), "put in, or altered"),
        says("one at the beginning", &with(a, 0, &older[..1]), "unchained beginning altered"),
        says("one at the end", &with(a, LAST, &older[..1]), "put in, or altered"),
        says(
            "the beginning, altered",
            &edited(older, 2, "nothing was", "something was"),
            "unchained beginning altered",
        ),
        says("a file of no chain", &older[..3], "unchained, 3 line(s)"),
        site.says("one before a log", &[&older[..3], a], "unchained, 3 line(s)"),
        says("the beginning, shorter", &without(older, 2, 2), "unchained beginning altered"),
        says("the beginning, gone", &older[3..], "unchained beginning altered"),
        says("the beginning, longer", &with(older, 1, &older[..1]), "unchained beginning altered"),
        says(
            "the beginning, in another order",
            &[&older[1..2], &older[..1], &older[2..]].concat(),
            "unchained beginning altered",
        ),
    ];
    let mut missed: Vec<String> = missed.into_iter().flatten().collect();
    // Cut off within a line.
    let text = a.join("\n") + "\n";
    for (what, end) in [
        ("the last end", text.len() - 1),
        ("the last line", text.len() - 20),
        ("a line", text.len() / 2),
    ] {
        let (sound, said) = site.audit_texts(&[text[..end].to_owned()], &["--holds", &holds]);
        if sound || !said.contains("cut off within the line") || (what == "a line") != said.contains("shortened after line") {
            missed.push(format!("{what}: {said}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[tokio::test]
async fn audit_shows_the_last_signed_line() {
    let site = Site::new().await;
    // Nobody can tell a log that was cut off after its last checkpoint from one that ended there; the table says up to where it is signed.
    let (sound, text) = site.audit(&[&site.a[..10]], &[]);
    assert!(sound && text.contains("1 to 10"), "{text}");
    let row = text.lines().find(|line| line.ends_with("whole")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[columns.len() - 2..], ["8", "whole"], "{text}");
}

#[tokio::test]
async fn chain_in_an_altered_file_is_never_whole() {
    let site = Site::new().await;
    let (a, b, older) = (&site.a, &site.b, &site.older);
    let line = |text: &str| vec![text.to_owned()];
    let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let verdicts = |texts: &[String]| {
        let (sound, said) = site.audit_texts(texts, &[]);
        let rows = said
            .lines()
            .filter(|line| line.contains(" to ") && line.ends_with("whole") || line.ends_with("WHOLE"));
        (sound, rows.filter(|row| row.ends_with("  whole")).count(), said)
    };
    let (sound, whole, said) = verdicts(&[text(a), text(b)]);
    assert!(sound && whole == 2, "{said}");
    for altered in [
        text(&with(a, 3, &line("x"))),
        text(&with(a, LAST, &older[..1])),
        text(&with(a, 0, &older[..1])),
        text(&without(older, 2, 2)),
        text(a) + "half a li",
    ] {
        let (sound, whole, said) = verdicts(&[altered, text(b)]);
        assert!(!sound && whole == 1 && said.contains("NOT WHOLE"), "{said}");
    }
}

#[tokio::test]
async fn audit_output_escapes_terminal_control_characters() {
    let site = Site::new().await;
    let hostile = "\\u001b[8m\\u009b2J\\u202e";
    let all = |from: &str, to: &str| -> Lines { site.a.iter().map(|line| line.replace(from, to)).collect() };
    let id = format!("\"id\":\"{hostile}");
    for lines in [
        all("\"replica\":\"a\"", &format!("\"replica\":\"{hostile}\"")),
        all("\"id\":\"", &id),
        all("\"code\":\"", &format!("\"code\":\"{hostile}")),
        vec!["\u{1b}[8m".to_owned()],
    ] {
        assert_ne!(lines, site.a);
        let (sound, text) = site.audit(&[&lines], &[]);
        assert!(!sound, "{text}");
        let is_command = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(is_command), "{text:?}");
    }
}

/// Returns the largest memory of the process until it ends, in KiB.
fn peak(child: &mut std::process::Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak = peak.max(kibibytes.unwrap_or(0));
        std::thread::yield_now();
    }
    peak
}

#[tokio::test]
async fn compressed_files_of_empty_lines_need_little_memory() {
    let site = Site::new().await;
    let folder = site.gateway.path("given");
    fs::create_dir(&folder).unwrap();
    let lines = 1_000_000;
    let mut zipped = GzEncoder::new(Vec::new(), Compression::best());
    zipped.write_all((site.a.join("\n") + "\n").as_bytes()).unwrap();
    zipped.write_all(&vec![b'\n'; lines]).unwrap();
    let zipped = zipped.finish().unwrap();
    assert!(zipped.len() < 16 * 1024);
    fs::write(folder.join("attestation.jsonl.1.gz"), zipped).unwrap();
    let said = site.gateway.path("said");
    let mut child = crate::support::auditor()
        .arg("--config")
        .arg(site.gateway.path("gateway.toml"))
        .args(["log", "audit", "--log", folder.to_str().unwrap(), "--log-key"])
        .arg(site.gateway.path("a/log.pub"))
        .stdout(fs::File::create(&said).unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let peak = peak(&mut child);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains(&format!("{lines} unreadable lines")), "{}", &said[said.len() - 500..]);
    assert!(said.contains("more such lines (not shown)"), "{}", &said[said.len() - 500..]);
    assert!(peak < 80 * 1024, "{peak} KiB");
}
