//! `log show`, `log tail` and `log export`, as an administrator runs them at 3 a.m.

mod asked;
mod chains;
mod closed;
mod damaged;
mod tail;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::support::{Gateway, POOL, program};

/// Text with control sequences that a terminal would execute.
const HOSTILE: &str = "=\u{1b}]0;owned\u{7}\u{9b}2J\u{202e},\"x\"\r\nnext";

const NONE: [u64; 0] = [];

/// Folder of a gateway with a log that was written by hand.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(lines: &[String]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::create_dir(folder.path("state")).unwrap();
        fs::write(folder.path("gateway.toml"), "").unwrap();
        fs::write(folder.log(), lines.concat()).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("state/attestation.jsonl")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.arg("--config").arg(self.path("gateway.toml")).arg("log").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Returns the output of a command that must succeed.
    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the ids in a list, by their first digits.
    #[track_caller]
    fn listed(&self, arguments: &[&str]) -> Vec<u64> {
        let output = self.run(&[&["show"], arguments].concat());
        let list = String::from_utf8(output.stdout).unwrap();
        let note = match list.lines().count() {
            1 => "no record of the log matches\n",
            _ => "",
        };
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
            (Some(0), note)
        );
        let rows = list
            .lines()
            .skip(1)
            .map(|line| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16));
        rows.map(|number| number.unwrap() >> 16).collect()
    }
}

/// Returns a line of the log with this number, changed by `change`.
fn record(number: u64, change: impl FnOnce(&mut Value)) -> String {
    let at = 1_795_258_800 + number;
    let time = format!("2026-11-21T11:00:{:02}Z", number % 60);
    let mut record = json!({
        "v": 1, "time": time, "at": at, "id": format!("{number:08x}{}", "0".repeat(24)), "decision": "config", "verdict": "served",
        "peer": "192.0.2.31:43696", "pool": "worker", "shown": "nothing", "decided_by": "policy", "reason": "nothing was shown",
        "grant": "pre-approved",
    });
    change(&mut record);
    let record = record.to_string();
    let place = format!(
        r#","chain":{{"id":"{}","number":{number},"previous":"{}"}}}}"#,
        "c".repeat(32),
        "0".repeat(64)
    );
    format!("{}{place}\n", record.strip_suffix('}').unwrap())
}

fn plain(number: u64) -> String {
    record(number, |_| {})
}

fn refused(number: u64) -> String {
    record(number, |record| {
        record["decision"] = "challenge".into();
        record["verdict"] = "refused".into();
        record["code"] = "ek-not-endorsed".into();
        record["identity"] = format!("tpm:{}", "17bdc2c5".repeat(8)).into();
        record["reason"] = "EK 17bd is not on the allowlist; next: If this machine is yours: `attest-gateway ek add`".into();
    })
}

fn attested(number: u64) -> String {
    record(number, |record| {
        record["decision"] = "evidence".into();
        record["verdict"] = "trusted".into();
        record["pool"] = "infra".into();
        record["identity"] = format!("tpm:{}", "45c9302c".repeat(8)).into();
        record["name"] = "worker-7".into();
        record["claims"] = json!({"tpm": {"ak_name": format!("000b{}", "ab".repeat(32))}});
    })
}

fn hostile(number: u64) -> String {
    record(number, |record| {
        for field in ["name", "identity", "peer", "reason", "user_agent"] {
            record[field] = HOSTILE.into();
        }
        record["alerts"] = json!([HOSTILE]);
    })
}

#[test]
fn log_show_applies_all_filters() {
    let folder = Folder::with(&[plain(1), refused(2), attested(3), plain(4)]);
    assert_eq!(folder.listed(&[]), [1, 2, 3, 4]);
    assert_eq!(folder.listed(&["--last", "2"]), [3, 4]);
    assert_eq!(folder.listed(&["--verdict", "refused"]), [2]);
    assert_eq!(folder.listed(&["--code", "ek-not-endorsed", "--pool", "worker"]), [2]);
    assert_eq!(folder.listed(&["--code", "ek-not-endorsed", "--pool", "infra"]), NONE);
    assert_eq!(folder.listed(&["--decision", "config", "--last", "1"]), [4]);
    for node in ["worker-7", "45c9302c", &format!("000b{}", "ab".repeat(32))] {
        assert_eq!(folder.listed(&["--node", node]), [3], "{node}");
    }
    assert_eq!(
        folder.listed(&["--since", "2026-11-21T11:00:02Z", "--until", "2026-11-21T12:00:03+01:00"]),
        [2, 3]
    );
    assert_eq!(folder.listed(&["--since", "1s"]), NONE);
    let list = folder.good(&["show"]);
    let row = list.lines().nth(2).unwrap();
    assert!(
        row.contains("ek-not-endorsed") && row.ends_with("If this machine is yours: `attest-gateway ek add`"),
        "{row}"
    );
}

#[test]
fn log_show_lists_fifty_records_by_default() {
    let lines: Vec<String> = (1..=60).map(plain).collect();
    let folder = Folder::with(&lines);
    assert_eq!(folder.listed(&[]), (11..=60).collect::<Vec<_>>());
    assert_eq!(folder.listed(&["--all"]).len(), 60);
    assert_eq!(folder.listed(&["--since", "2026-11-21T11:00:00Z"]).len(), 60);
}

#[test]
fn one_record_is_printed_whole() {
    let folder = Folder::with(&[plain(1), attested(2), hostile(3)]);
    for asked in ["00000002", "2"] {
        let whole = folder.good(&["show", "--record", asked]);
        let (row, rest) = whole.split_once('\n').unwrap();
        assert!(row.contains("worker-7") && row.contains("evidence trusted"), "{row}");
        let (_, json) = rest.split_once("\n{").unwrap();
        let printed: Value = serde_json::from_str(&format!("{{{json}")).unwrap();
        assert_eq!(printed, serde_json::from_str::<Value>(&attested(2)).unwrap());
    }
    let output = folder.run(&["show", "--record", "ffffffff"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("the log has no such record"));
}

#[test]
fn log_show_escapes_terminal_controls_from_nodes() {
    let folder = Folder::with(&[hostile(1)]);
    for arguments in [
        &["show"][..],
        &["show", "--wide"],
        &["show", "--record", "1"],
        &["show", "--node", HOSTILE],
    ] {
        let printed = folder.good(arguments);
        let obeyed = |c: char| c != '\n' && c != '\r' && c.is_control() || c == '\u{202e}';
        assert!(
            printed.contains("owned") && !printed.chars().any(obeyed),
            "{arguments:?}: {printed:?}"
        );
    }
}

#[test]
fn log_show_escapes_invisible_characters() {
    let script = "import json,sys,unicodedata\nprint(json.dumps(''.join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ('Cc', 'Cf', 'Zl', 'Zp') or 0xfe00 <= ord(c) <= 0xfe0f or 0xe0100 <= ord(c) <= 0xe01ef)))";
    let python = Command::new("python3").args(["-c", script]).output().unwrap();
    let unseen: String = serde_json::from_slice(&python.stdout).unwrap();
    assert!(unseen.chars().count() > 300);
    let folder = Folder::with(&[record(1, |record| record["reason"] = format!("begin{unseen}end").into())]);
    let whole = folder.good(&["show", "--record", "1"]);
    // The lines that this program has written are ended by it; the rest of the text is there, as escapes.
    assert!(whole.contains("begin\\u{0}") && whole.contains("\\u{e01ef}end"));
    let there: Vec<char> = whole.chars().filter(|c| *c != '\n' && unseen.contains(*c)).collect();
    assert!(there.is_empty(), "{there:?}");
    assert_eq!(
        serde_json::from_str::<Value>(&format!("{{{}", whole.split_once("\n{").unwrap().1)).unwrap()["reason"],
        format!("begin{unseen}end")
    );
}

#[test]
fn escapes_terminal_controls_in_file_names() {
    let folder = Folder::with(&[plain(1)]);
    fs::write(folder.path("state/attestation.jsonl.\u{1b}]0;owned\u{7}.gz"), "no gzip").unwrap();
    fs::write(folder.path("state/attestation.jsonl.\u{9b}2J"), "no record\n").unwrap();
    let output = folder.run(&["show"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\\u{1b}]0;owned") && said.contains("\\u{9b}2J at byte 0"), "{said}");
    assert!(!said.chars().any(|c| c != '\n' && c.is_control()), "{said:?}");
}

/// The documented command prints a table of refusals.
#[test]
fn the_documented_filter_of_jq_makes_a_table() {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/read-the-log.md")).unwrap();
    let line = document.lines().find(|line| line.contains("| @csv'")).unwrap();
    let (begin, rest) = line.split_once(" | jq -r '").unwrap();
    assert_eq!(begin, "attest-gateway log export --verdict refused");
    let (filter, _) = rest.split_once('\'').unwrap();
    let folder = Folder::with(&[refused(1), attested(2), plain(3)]);
    let mut jq = Command::new("jq")
        .args(["-r", filter])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = folder.good(&["export", "--verdict", "refused"]);
    jq.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = jq.wait_with_output().unwrap();
    let (table, identity) = (String::from_utf8(output.stdout).unwrap(), format!("tpm:{}", "17bdc2c5".repeat(8)));
    let row = format!("\"2026-11-21T11:00:01Z\",\"worker\",\"{identity}\",\"ek-not-endorsed\",\"EK 17bd is not on the allowlist");
    assert!(
        output.status.success() && table.starts_with(&row) && table.lines().count() == 1,
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn log_export_spans_rotated_files_and_verifies() {
    let mut gateway = Gateway::start();
    let fetch = async |gateway: &Gateway| {
        let pre_approved = gateway.rendered(POOL, "pre-approved");
        gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    };
    fetch(&gateway).await;
    let (log, old) = (
        gateway.path("state/attestation.jsonl"),
        gateway.path("state/attestation.jsonl.1.gz"),
    );
    let mut all = fs::read(&log).unwrap();
    let moved = gateway.path("state/attestation.jsonl.1");
    fs::rename(&log, &moved).unwrap();
    gateway.hang_up();
    gateway.line(|line| line.contains("started a new file"));
    fetch(&gateway).await;
    gateway.terminate();
    gateway.wait();
    let rotated = fs::read(&moved).unwrap();
    assert!(rotated.starts_with(&all));
    let mut gz = GzEncoder::new(File::create(&old).unwrap(), Compression::fast());
    gz.write_all(&rotated).unwrap();
    gz.finish().unwrap();
    fs::remove_file(&moved).unwrap();
    all = [rotated, fs::read(&log).unwrap()].concat();
    assert!(gateway.command(&["log", "export"]).as_bytes() == all);
    let file = gateway.path("exported.jsonl");
    let to_file = ["log", "export", "--out", file.to_str().unwrap()];
    gateway.command(&to_file);
    assert!(fs::read(&file).unwrap() == all && !gateway.path("exported.jsonl.part").exists());
    let audit = gateway.command(&["log", "audit", "--log", file.to_str().unwrap()]);
    assert!(audit.contains("whole"), "{audit}");
    // What is there is nobody's to replace.
    let again = gateway.try_command(&to_file);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().contains("exists: left unchanged"));
}

#[test]
fn names_lines_that_are_no_record() {
    let long = format!("{}\n", "x".repeat(17 * 1024 * 1024));
    let lines = [
        plain(1),
        "{\"v\":1}\n".to_owned(),
        long,
        plain(4),
        "\n".to_owned(),
        "half a li".to_owned(),
    ];
    let folder = Folder::with(&lines);
    let check = |arguments: &[&str], expected: &[&str]| {
        let output = folder.run(arguments);
        let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.contains("4 lines are unreadable") && said.contains("17825792 bytes") && said.contains("cut off"),
            "{said}"
        );
        expected
            .iter()
            .for_each(|part| assert!(out.contains(part), "{arguments:?}: {part} is not in {out}"));
    };
    check(&["show", "--all"], &["000000010000", "000000040000"]);
    // As JSON lines the log is what it is, but for what is no line.
    let output = folder.run(&["export"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        [&lines[0], &lines[1], &lines[3], &lines[4]].map(String::as_str).concat()
    );
    // With a filter only records are looked at.
    let output = folder.run(&["export", "--pool", "worker"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        [&lines[0], &lines[3]].map(String::as_str).concat()
    );
}

#[test]
fn explains_wrong_arguments() {
    let folder = Folder::with(&[plain(1)]);
    let check = |arguments: &[&str], code: i32, expected: &str| {
        let output = folder.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    check(&["show", "--since", "2026-11-21T11:00:00"], 2, "expected a time with its zone");
    check(&["show", "--since", "yesterday"], 2, "or an age with");
    check(&["show", "--decision", "evidences"], 2, "`evidence`");
    check(&["show", "--verdict", "yes"], 2, "`refused`");
    check(&["show", "--code", "EK"], 2, "lower-case");
    check(&["show", "--last", "some"], 2, "--last");
    check(&["show", "--record", "x"], 2, "hexadecimal");
    check(&["show", "--code", "ek-not-endorse"], 0, "has no refusal code");
    check(&["show", "--since", "1h", "--until", "2h"], 0, "no record can match");
    check(&["show", "--log", "/nowhere/a.jsonl"], 1, "/nowhere/a.jsonl: No such file");
    check(
        &[
            "show",
            "--log",
            folder.path("").join("gateway.toml").parent().unwrap().to_str().unwrap(),
        ],
        1,
        "has no attestation.jsonl",
    );
    fs::remove_file(folder.log()).unwrap();
    check(&["show"], 1, "no attestation log yet");
    fs::remove_dir(folder.path("state")).unwrap();
    check(&["tail"], 1, "state: No such file");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let lines: Vec<String> = (1..=2000).map(attested).collect();
    let folder = Folder::with(&lines);
    for arguments in [&["show", "--all"][..], &["export"], &["tail", "-n", "2000"]] {
        let mut child = folder
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_large_log_is_read_in_bounded_memory() {
    let folder = Folder::with(&[]);
    let mut file = File::create(folder.log()).unwrap();
    let lines: String = (1..=1000).map(attested).collect();
    for _ in 0..60 {
        file.write_all(lines.as_bytes()).unwrap();
    }
    // Of a file without an end nothing is held, either.
    file.write_all(&vec![b'x'; 40 * 1024 * 1024]).unwrap();
    let length = file.metadata().unwrap().len();
    assert!(length > 72 * 1024 * 1024, "{length}");
    for arguments in ["show --all", "show --last 5", "export", "export --last 3"] {
        let output = Command::new("bash")
            .arg("-c")
            .arg(format!("ulimit -d 65536; exec \"$@\" log {arguments}"))
            .args(["bash", env!("CARGO_BIN_EXE_attest-gateway"), "--config"])
            .arg(folder.path("gateway.toml"))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("1 line is unreadable"), "{arguments}: {said}");
        assert!(!output.stdout.is_empty());
    }
}
