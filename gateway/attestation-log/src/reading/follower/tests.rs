use std::fs::{self, File};
use std::io::Write;

use super::*;

/// A log in a folder of its own, with its writer.
struct Written {
    folder: tempfile::TempDir,
    number: u64,
    chain: &'static str,
}

impl Written {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            folder,
            number: 0,
            chain: "a",
        }
    }

    fn log(&self) -> PathBuf {
        self.path("attestation.jsonl")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn append_to(&self, name: &str, text: &str) {
        let mut file = File::options().append(true).create(true).open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line of the chain, written at that time.
    fn line_at(&mut self, at: u64) -> String {
        self.number += 1;
        let (chain, number) = (self.chain, self.number);
        format!("{{\"at\":{at},\"id\":\"{number:032}\",\"chain\":{{\"id\":\"{chain}\",\"number\":{number}}}}}\n")
    }

    fn write(&mut self, lines: u64) {
        for _ in 0..lines {
            let line = self.line_at(1000);
            self.append_to("attestation.jsonl", &line);
        }
    }

    fn rotate(&self, name: &str) {
        fs::rename(self.log(), self.path(name)).unwrap();
    }

    fn compress(&self, name: &str) {
        let mut gz = flate2::write::GzEncoder::new(File::create(self.path(&format!("{name}.gz"))).unwrap(), flate2::Compression::fast());
        gz.write_all(&fs::read(self.path(name)).unwrap()).unwrap();
        gz.finish().unwrap();
        fs::remove_file(self.path(name)).unwrap();
    }
}

/// Returns the numbers of the lines up to the end, and the position of the last one.
fn read(follower: &mut LogFollower) -> (Vec<u64>, Option<Position>) {
    let (mut numbers, mut last) = (Vec::new(), None);
    while let FollowedLine::Line(line, position) = follower.follow().unwrap() {
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        numbers.push(line.pointer("/chain/number").unwrap().as_u64().unwrap());
        last = Some(position);
    }
    (numbers, last)
}

fn numbers(follower: &mut LogFollower) -> Vec<u64> {
    read(follower).0
}

fn range(from: u64, to: u64) -> Vec<u64> {
    (from..=to).collect()
}

#[test]
fn follower_yields_only_whole_lines_when_written() {
    let mut log = Written::new();
    let mut follower = LogFollower::from_beginning(&log.log());
    assert_eq!(numbers(&mut follower), range(1, 0));
    log.write(2);
    assert_eq!(numbers(&mut follower), [1, 2]);
    assert_eq!(numbers(&mut follower), range(1, 0));
    let line = log.line_at(1000);
    let (first, second) = line.split_at(20);
    log.append_to("attestation.jsonl", first);
    assert_eq!(numbers(&mut follower), range(1, 0));
    log.append_to("attestation.jsonl", second);
    assert_eq!(numbers(&mut follower), [3]);
}

#[test]
fn follower_loses_no_line_across_rotations() {
    let mut log = Written::new();
    let mut follower = LogFollower::from_beginning(&log.log());
    log.write(2);
    assert_eq!(numbers(&mut follower), [1, 2]);
    // Until the new file is begun, the moved one is written on.
    log.rotate("attestation.jsonl.1");
    assert_eq!(numbers(&mut follower), range(1, 0));
    let line = log.line_at(1000);
    log.append_to("attestation.jsonl.1", &line);
    assert_eq!(numbers(&mut follower), [3]);
    let line = log.line_at(1000);
    log.append_to("attestation.jsonl.1", &line);
    log.write(1);
    assert_eq!(numbers(&mut follower), [4, 5]);
    // Twice, and compressed, while nobody looked.
    log.rotate("attestation.jsonl.2");
    log.write(3);
    log.rotate("attestation.jsonl.3");
    log.compress("attestation.jsonl.2");
    log.compress("attestation.jsonl.3");
    log.write(1);
    assert_eq!(numbers(&mut follower), [6, 7, 8, 9]);
    // Deleted: what is begun next is another file.
    fs::remove_file(log.log()).unwrap();
    log.write(1);
    assert_eq!(numbers(&mut follower), [10]);
    assert_eq!(numbers(&mut LogFollower::from_beginning(&log.log())), [1, 2, 3, 4, 5, 6, 7, 8, 10]);
}

#[test]
fn follower_continues_in_the_copy_after_copytruncate() {
    let mut log = Written::new();
    let mut follower = LogFollower::from_beginning(&log.log());
    log.write(3);
    assert_eq!(numbers(&mut follower), range(1, 3));
    log.write(2);
    fs::copy(log.log(), log.path("attestation.jsonl.1")).unwrap();
    fs::write(log.log(), "").unwrap();
    assert_eq!(numbers(&mut follower), [4, 5]);
    // However long the new one is by then.
    log.write(9);
    assert_eq!(numbers(&mut follower), range(6, 14));
    fs::copy(log.log(), log.path("attestation.jsonl.2")).unwrap();
    fs::write(log.log(), "").unwrap();
    log.write(20);
    assert_eq!(numbers(&mut follower), range(15, 34));
    fs::write(log.log(), "").unwrap();
    assert_eq!(numbers(&mut follower), range(1, 0));
    log.write(1);
    assert_eq!(numbers(&mut follower), [35]);
}

#[test]
fn files_are_ordered_by_line_number_not_clock() {
    let mut log = Written::new();
    let write = |log: &mut Written, at| {
        let line = log.line_at(at);
        log.append_to("attestation.jsonl", &line);
    };
    for at in [5000, 4000, 6000, 10] {
        write(&mut log, at);
        log.rotate(&format!("attestation.jsonl.{at}"));
    }
    // Another chain, also by a clock that is further back: the file that is written is the last.
    (log.chain, log.number) = ("b", 4);
    write(&mut log, 5);
    let mut follower = LogFollower::from_beginning(&log.log());
    assert_eq!(numbers(&mut follower), range(1, 5));
    write(&mut log, 3);
    assert_eq!(numbers(&mut follower), [6]);
}

#[test]
fn follower_resumes_at_a_position_after_rotation() {
    let mut log = Written::new();
    log.write(4);
    let (_, position) = read(&mut LogFollower::from_beginning(&log.log()));
    let position = position.unwrap();
    log.write(2);
    let rest = |log: &Written, position: &Position| {
        let follower = LogFollower::after(&log.log(), position).unwrap();
        follower.map(|mut follower| numbers(&mut follower))
    };
    assert_eq!(rest(&log, &position), Some(vec![5, 6]));
    log.rotate("attestation.jsonl.1");
    assert_eq!(rest(&log, &position), Some(vec![5, 6]));
    log.write(1);
    log.compress("attestation.jsonl.1");
    assert_eq!(rest(&log, &position), Some(vec![5, 6, 7]));
    // No other line is taken for it.
    for other in [
        Position {
            offset: position.offset + 1,
            ..position.clone()
        },
        Position {
            offset: 0,
            ..position.clone()
        },
        Position {
            offset: u64::MAX,
            ..position.clone()
        },
        Position {
            sha256: LineHash::NONE,
            ..position.clone()
        },
    ] {
        assert_eq!(rest(&log, &other), None, "{other:?}");
    }
    fs::remove_file(log.path("attestation.jsonl.1.gz")).unwrap();
    assert_eq!(rest(&log, &position), None);
}

#[test]
fn follower_reports_a_rolled_back_log() {
    let mut log = Written::new();
    log.write(3);
    let older = fs::read(log.log()).unwrap();
    log.write(3);
    let whole = fs::read(log.log()).unwrap();
    let ahead = |log: &Written| {
        let mut follower = LogFollower::from_beginning(&log.log());
        assert_eq!(numbers(&mut follower), range(1, 6));
        follower
    };
    let is_set_back =
        |follower: &mut LogFollower| [0; 2].map(|_| follower.follow().unwrap()) == [FollowedLine::SetBack, FollowedLine::SetBack];
    // Cut; and grown again, past what was read.
    let mut follower = ahead(&log);
    fs::write(log.log(), &older).unwrap();
    assert!(is_set_back(&mut follower));
    for more in 1..9 {
        fs::write(log.log(), &whole).unwrap();
        let mut follower = ahead(&log);
        fs::write(log.log(), &older).unwrap();
        for number in 0..more {
            log.append_to("attestation.jsonl", &format!("{{\"at\":1000,\"id\":\"another {number}\"}}\n"));
        }
        assert!(is_set_back(&mut follower), "{more}");
    }
    // Another file in its place.
    fs::write(log.log(), &whole).unwrap();
    let mut follower = ahead(&log);
    fs::write(log.path("older"), &older).unwrap();
    fs::rename(log.path("older"), log.log()).unwrap();
    assert!(is_set_back(&mut follower));
    // Whoever begins again has what it holds now, and goes on.
    let mut follower = LogFollower::from_beginning(&log.log());
    assert_eq!(numbers(&mut follower), range(1, 3));
    log.write(1);
    assert_eq!(numbers(&mut follower), [7]);
    // It was emptied, moved, moved and not begun yet, or removed: that is no step back.
    let aways: [fn(&Written); 4] = [
        |log| fs::write(log.log(), "").unwrap(),
        |log| log.rotate("attestation.jsonl.1"),
        |log| {
            log.rotate("attestation.jsonl.2");
            fs::write(log.log(), "").unwrap();
        },
        |log| fs::remove_file(log.log()).unwrap(),
    ];
    for away in aways {
        away(&log);
        assert_eq!(follower.follow().unwrap(), FollowedLine::Nothing);
        assert_eq!(follower.follow().unwrap(), FollowedLine::Nothing);
        log.write(2);
        assert_eq!(numbers(&mut follower), range(log.number - 1, log.number));
    }
}
