//! `log tail`: existing lines, and new ones.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Folder, plain, refused};
use crate::support::LIMIT;

/// Process of `log tail`, and its output.
pub struct Tail {
    child: Child,
    lines: Said,
}

/// Lines of a running process, as they come.
struct Said(mpsc::Receiver<String>);

impl Said {
    fn by(output: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // Nobody may listen any more.
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).count()
        });
        Self(lines)
    }

    #[track_caller]
    fn next(&self) -> String {
        self.0.recv_timeout(LIMIT).expect("it says no more")
    }
}

impl Tail {
    pub fn begin(folder: &Folder, arguments: &[&str]) -> Self {
        let mut child = folder
            .command(&[&["tail", "--output", "json"], arguments].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Said::by(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Returns the number of the next line.
    #[track_caller]
    pub fn next_number(&self) -> u64 {
        number(&self.lines.next())
    }

    #[track_caller]
    pub fn next(&self, number: u64) {
        assert_eq!(self.next_number(), number);
    }
}

fn number(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["chain"]["number"].as_u64().unwrap()
}

impl Drop for Tail {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn tail_prints_last_lines_and_follows_rotation() {
    let folder = Folder::with(&[plain(1), plain(2), refused(3)]);
    let append = |file: &str, line: &str| {
        let mut file = File::options().create(true).append(true).open(folder.path(file)).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    };
    let tail = Tail::begin(&folder, &["-n", "2"]);
    tail.next(2);
    tail.next(3);
    append("state/attestation.jsonl", &plain(4));
    tail.next(4);
    // Half a line is none.
    let line = plain(5);
    let (first, second) = line.split_at(30);
    append("state/attestation.jsonl", first);
    append("state/attestation.jsonl", second);
    tail.next(5);
    fs::rename(folder.log(), folder.path("state/attestation.jsonl.1")).unwrap();
    append("state/attestation.jsonl.1", &plain(6));
    append("state/attestation.jsonl", &plain(7));
    tail.next(6);
    tail.next(7);
    fs::copy(folder.log(), folder.path("state/attestation.jsonl.2")).unwrap();
    fs::write(folder.log(), "").unwrap();
    append("state/attestation.jsonl", &plain(8));
    tail.next(8);
    // Of those that were there none, or none that is asked for.
    let refusals = Tail::begin(&folder, &["--verdict", "refused"]);
    refusals.next(3);
    append("state/attestation.jsonl", &plain(9));
    tail.next(9);
    append("state/attestation.jsonl", &refused(10));
    tail.next(10);
    refusals.next(10);
    // It begins at some moment, and with what comes then.
    let none = Tail::begin(&folder, &["-n", "0"]);
    let (mut numbers, begun) = (11.., Instant::now());
    let first = loop {
        assert!(begun.elapsed() < LIMIT);
        append("state/attestation.jsonl", &plain(numbers.next().unwrap()));
        if let Ok(line) = none.lines.0.recv_timeout(Duration::from_millis(100)) {
            break number(&line);
        }
    };
    assert!(first >= 11, "{first}");
}

#[test]
fn tail_reports_a_truncated_or_replaced_log() {
    let folder = Folder::with(&[plain(1), plain(2), plain(3), plain(4)]);
    let tail = ["tail", "--output", "json", "-n", "1"];
    let mut child = folder.command(&tail).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = Said::by(child.stderr.take().unwrap());
    let lines = Said::by(child.stdout.take().unwrap());
    let tail = Tail { child, lines };
    tail.next(4);
    // Cut; and then an older file in its place.
    fs::write(folder.log(), plain(1) + &plain(2)).unwrap();
    assert!(said.next().contains("the log was truncated or replaced"));
    tail.next(2);
    let append = |line: &str| {
        File::options()
            .append(true)
            .open(folder.log())
            .unwrap()
            .write_all(line.as_bytes())
            .unwrap()
    };
    append(&plain(3));
    tail.next(3);
    fs::write(folder.path("older"), plain(1)).unwrap();
    fs::rename(folder.path("older"), folder.log()).unwrap();
    assert!(said.next().contains("the log was truncated or replaced"));
    tail.next(1);
    append(&plain(5));
    tail.next(5);
}

#[test]
fn tail_ends_when_its_reader_is_gone() {
    let folder = Folder::with(&[plain(1), refused(2)]);
    let tail = ["tail", "--output", "json", "--code", "ek-not-endorsed"];
    let mut child = folder.command(&tail).stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    // Ended if the test fails.
    let mut tail = Tail {
        child,
        lines: Said(mpsc::channel().1),
    };
    // As `head -1`, and nothing is ever recorded again.
    let (sender, first) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        sender.send(line).unwrap();
    });
    assert_eq!(first.recv_timeout(LIMIT).unwrap(), refused(2));
    let begun = Instant::now();
    let ended = loop {
        if let Some(ended) = tail.child.try_wait().unwrap() {
            break ended;
        }
        assert!(begun.elapsed() < LIMIT, "it goes on");
        thread::yield_now();
    };
    assert!(ended.success());
}

#[test]
fn tail_follows_a_replaced_state_folder() {
    let folder = Folder::with(&[plain(1)]);
    let tail = Tail::begin(&folder, &[]);
    tail.next(1);
    fs::rename(folder.path("state"), folder.path("old")).unwrap();
    fs::create_dir(folder.path("state")).unwrap();
    fs::write(folder.log(), plain(2)).unwrap();
    tail.next(2);
}
