use std::fs::File;
use std::io::Write;

use super::super::LineContent;
use super::*;

const SEGMENT: &str = "attestation.jsonl.19700101T000140Z-0a0a0a0a-00000000000";

/// A log of three files, and what may become of them while they are read.
struct Written {
    folder: tempfile::TempDir,
}

impl Written {
    fn new() -> Self {
        let written = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        written.write(&format!("{SEGMENT}1"), 1..=2);
        written.write("attestation.jsonl-moved", 3..=3);
        written.write("attestation.jsonl", 4..=5);
        written
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("attestation.jsonl")
    }

    fn write(&self, name: &str, numbers: std::ops::RangeInclusive<u64>) {
        let line = |number| format!("{{\"at\":100,\"id\":\"{number}\",\"chain\":{{\"id\":\"0a\",\"number\":{number}}}}}\n");
        fs::write(self.path(name), numbers.map(line).collect::<String>()).unwrap();
    }

    /// Closes the log, like a gateway does.
    fn close(&self) {
        fs::rename(self.log(), self.path(&format!("{SEGMENT}4"))).unwrap();
        self.write("attestation.jsonl", 6..=6);
    }

    fn compress(&self, name: &str) {
        let file = File::create(self.path(&format!("{name}.gz"))).unwrap();
        let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gz.write_all(&fs::read(self.path(name)).unwrap()).unwrap();
        gz.finish().unwrap();
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Changes the files: closes the log, compresses two segments, and moves a rotated file.
    fn go_on(&self) {
        self.close();
        self.compress(&format!("{SEGMENT}1"));
        self.compress(&format!("{SEGMENT}4"));
        fs::rename(self.path("attestation.jsonl-moved"), self.path("attestation.jsonl-elsewhere")).unwrap();
    }
}

fn listed(log: &Path) -> Vec<LogFile> {
    let LogFiles { files, unreadable } = log_files(log).unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    files
}

/// Returns the numbers of all lines.
fn numbers(files: &[LogFile]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for file in files {
        let mut lines = file.lines(0).unwrap();
        while let Some(LineContent::Line(line)) = lines.read().unwrap() {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            numbers.push(line.pointer("/chain/number").unwrap().as_u64().unwrap());
        }
    }
    numbers
}

#[test]
fn listed_files_stay_readable_after_rename_or_removal() {
    let log = Written::new();
    let files = listed(&log.log());
    log.go_on();
    assert_eq!(numbers(&files), [1, 2, 3, 4, 5]);
    let files = listed(&log.log());
    // A rule removes the oldest.
    fs::remove_file(log.path(&format!("{SEGMENT}1.gz"))).unwrap();
    fs::remove_file(log.path("attestation.jsonl-elsewhere")).unwrap();
    assert_eq!(numbers(&files), [1, 2, 3, 4, 5, 6]);
    // One that is not held open.
    let mut files = listed(&log.log());
    assert_eq!(numbers(&files), [4, 5, 6]);
    files.iter_mut().filter(|file| file.is_segment()).for_each(|file| file.held = None);
    assert_eq!(numbers(&files), [4, 5, 6]);
    log.close();
    assert!(files.iter().any(|file| file.held.is_none()));
    assert_eq!(numbers(&files), [4, 5, 6]);
}

#[test]
fn listing_misses_no_file_renamed_meanwhile() {
    type Change = fn(&Written);
    let changes: [Change; 3] = [
        Written::close,
        |log| log.compress(&format!("{SEGMENT}1")),
        |log| fs::rename(log.path("attestation.jsonl-moved"), log.path("attestation.jsonl-elsewhere")).unwrap(),
    ];
    for change in changes {
        // Before the first look, between it and the next one, and so on.
        for at in 0..4 {
            let (log, mut looks) = (Written::new(), 0);
            let listed = settled(|| {
                let before = names(&log.log());
                if looks == at {
                    change(&log);
                }
                looks += 1;
                before
            });
            let LogFiles { mut files, unreadable } = listed.unwrap();
            assert!(unreadable.is_empty(), "{unreadable:?}");
            order(&mut files);
            let found = numbers(&files);
            assert!(found == [1, 2, 3, 4, 5] || found == [1, 2, 3, 4, 5, 6], "{at}: {found:?}");
        }
    }
}

#[test]
fn detects_files_that_swapped_names_during_listing() {
    let log = Written::new();
    let found = names(&log.log()).unwrap();
    let listed = LogFiles::from_paths(&found);
    assert!(listed.has_its_names());
    fs::remove_file(log.path("attestation.jsonl-moved")).unwrap();
    fs::rename(log.log(), log.path("attestation.jsonl-moved")).unwrap();
    log.write("attestation.jsonl", 6..=6);
    assert_eq!(names(&log.log()).unwrap(), found);
    assert!(!listed.has_its_names());
}

#[test]
fn finds_an_unopened_segment_after_compression() {
    let log = Written::new();
    let mut files = listed(&log.log());
    files.iter_mut().filter(|file| file.is_segment()).for_each(|file| file.held = None);
    log.compress(&format!("{SEGMENT}1"));
    assert_eq!(numbers(&files), [1, 2, 3, 4, 5]);
    fs::remove_file(log.path(&format!("{SEGMENT}1.gz"))).unwrap();
    let error = files.first().unwrap().lines(0).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn folders_and_sockets_are_not_log_files() {
    let log = Written::new();
    fs::create_dir(log.path("attestation.jsonl.d")).unwrap();
    std::os::unix::net::UnixListener::bind(log.path("attestation.jsonl.socket")).unwrap();
    assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5]);
}

#[test]
fn backup_copy_does_not_hide_the_original() {
    for name in ["attestation.jsonl.bak", "attestation.jsonl.bak.gz"] {
        let log = Written::new();
        // A part of the log, of a segment, and of what was moved; each packed or not, and what it is a copy of likewise.
        log.write("attestation.jsonl.bak", 4..=4);
        log.write("attestation.jsonl.old", 1..=1);
        if name.ends_with("gz") {
            log.compress("attestation.jsonl.bak");
            log.compress("attestation.jsonl.old");
        }
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5], "{name}");
        assert_eq!(
            numbers(&files_of(&[log.folder.path().to_owned()]).unwrap().files),
            [1, 2, 3, 4, 5],
            "{name}"
        );
        log.compress(&format!("{SEGMENT}1"));
        log.close();
        log.compress(&format!("{SEGMENT}4"));
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
        // Somebody unpacks one, and has not come to its end.
        log.write(&format!("{SEGMENT}4"), 4..=4);
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
        // The log is what is written, also where a copy has more.
        log.write("attestation.jsonl.more", 6..=8);
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
    }
}

#[test]
fn chains_started_in_one_second_stay_separate() {
    let log = Written::new();
    let other = |number| {
        fs::read_to_string(log.path("attestation.jsonl-moved"))
            .unwrap()
            .replace("\"0a\"", "\"0b\"")
            .replace('3', number)
    };
    fs::write(log.path("attestation.jsonl-a"), other("1")).unwrap();
    fs::write(log.path("attestation.jsonl-b"), other("2")).unwrap();
    fs::rename(log.log(), log.path("attestation.jsonl-c")).unwrap();
    assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 1, 2]);
}

#[test]
fn unreadable_file_is_reported_and_others_are_listed() {
    let log = Written::new();
    log.compress("attestation.jsonl-moved");
    let path = log.path("attestation.jsonl-moved.gz");
    let whole = fs::read(&path).unwrap();
    for damaged in [&b"no gzip"[..], &[], &whole[..20]] {
        fs::write(&path, damaged).unwrap();
        let LogFiles { files, unreadable } = log_files(&log.log()).unwrap();
        assert_eq!(numbers(&files), [1, 2, 4, 5]);
        assert_eq!(
            unreadable.iter().map(|error| &error.path).collect::<Vec<_>>(),
            [&path],
            "{damaged:?}"
        );
    }
    // Of what is just being packed there may be nothing yet.
    log.write("attestation.jsonl-moved", 3..=3);
    assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5]);
}

#[test]
fn next_file_of_the_chain_bounds_its_time() {
    let log = Written::new();
    let files = listed(&log.log());
    let [first, second, third] = &files[..] else { panic!() };
    let over = 100 + CLOCKS_DIFFER_SECONDS;
    assert!(first.is_over_before(over + 1, second) && second.is_over_before(over + 1, third));
    assert!(!first.is_over_before(over, second) && !second.is_over_before(over + 1, first));
    let text = fs::read_to_string(log.log()).unwrap();
    for other in [text.replace("0a", "0b"), "{\"at\":100,\"id\":\"4\"}\n".to_owned()] {
        fs::write(log.log(), other).unwrap();
        let files = listed(&log.log());
        let [.., second, third] = &files[..] else { panic!() };
        assert!(!second.is_over_before(over + 1, third));
    }
}
