//! Files next to the log that cannot be read, or not to their end.

use std::fs::{self, File};
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::tail::Tail;
use super::{Folder, plain, record, refused};

/// Returns a folder with damaged files: lines 1 and 2 are whole, of 3 to 7 the end is missing. Lines 8 and 9 are in the log, two and four
/// days later.
fn damaged() -> Folder {
    let later = |number, days: u64| record(number, |record| record["at"] = (1_795_258_800 + days * 86_400).into());
    let folder = Folder::with(&[later(8, 2), later(9, 4)]);
    fs::write(folder.path("state/attestation.jsonl.1"), plain(1) + &plain(2)).unwrap();
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    // What cannot be compressed, so that the lines before the damage are whole.
    let mut seed = 1_u64;
    for number in 3..=7 {
        let noise: String = (0..6000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b'a' + u8::try_from(seed >> 60).unwrap())
            })
            .collect();
        gz.write_all(record(number, |record| record["user_agent"] = noise.into()).as_bytes())
            .unwrap();
    }
    let whole = gz.finish().unwrap();
    fs::write(folder.path("state/attestation.jsonl.2.gz"), &whole[..whole.len() / 2]).unwrap();
    folder
}

/// Exports lines. Returns their numbers, the messages, and the exit code.
fn exported(folder: &Folder, arguments: &[&str]) -> (Vec<u64>, String, Option<i32>) {
    let output = folder.run(&[&["export"], arguments].concat());
    let lines = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["chain"]["number"].as_u64().unwrap();
    (
        lines.lines().map(number).collect(),
        String::from_utf8(output.stderr).unwrap(),
        output.status.code(),
    )
}

#[test]
fn names_a_damaged_file_and_exports_the_rest() {
    let folder = damaged();
    let (numbers, said, code) = exported(&folder, &[]);
    assert!(
        numbers.starts_with(&[1, 2]) && numbers.ends_with(&[8, 9]) && numbers.len() < 9,
        "{numbers:?}"
    );
    assert!(said.contains("attestation.jsonl.2.gz") && said.contains(" from byte "), "{said}");
    assert_eq!(code, Some(1));
    for arguments in [
        &["--last", "100"][..],
        &["--pool", "worker", "--last", "100"],
        &["--until", "2026-11-21T12:00:00Z"],
    ] {
        let (found, said, code) = exported(&folder, arguments);
        let expected = numbers
            .iter()
            .filter(|number| arguments.len() > 2 || arguments[0] == "--last" || **number < 8);
        assert!(found.iter().eq(expected), "{arguments:?}: {found:?}");
        assert!(said.contains("attestation.jsonl.2.gz") && code == Some(1), "{said}");
    }
    for arguments in [&["show"][..], &["show", "--record", "9"]] {
        let output = folder.run(arguments);
        let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(out.contains("000000090000") && said.contains("attestation.jsonl.2.gz"), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn skips_a_damaged_file_outside_the_range() {
    let folder = damaged();
    for (arguments, expected) in [(["--last", "2"], &[8, 9][..]), (["--since", "2026-11-24T12:00:00Z"], &[9])] {
        let (numbers, said, code) = exported(&folder, &arguments);
        assert!(said.is_empty() && code == Some(0), "{said}");
        assert_eq!(numbers, expected);
    }
    // As clocks may be set back by a day, it may hold something.
    let (_, said, code) = exported(&folder, &["--since", "2026-11-24T10:00:00Z"]);
    assert!(said.contains("attestation.jsonl.2.gz") && code == Some(1), "{said}");
}

#[test]
fn names_unreadable_files_and_ignores_folders() {
    let folder = Folder::with(&[plain(1), plain(2)]);
    fs::create_dir(folder.path("state/attestation.jsonl.d")).unwrap();
    let (numbers, said, code) = exported(&folder, &[]);
    assert!(said.is_empty() && code == Some(0) && numbers == [1, 2], "{said}");
    let zipped = folder.path("state/attestation.jsonl.3.gz");
    fs::write(&zipped, "no gzip").unwrap();
    let (numbers, said, code) = exported(&folder, &[]);
    assert!(
        said.contains("attestation.jsonl.3.gz") && code == Some(1) && numbers == [1, 2],
        "{said}"
    );
    let named = ["--log", zipped.to_str().unwrap(), folder.log().to_str().unwrap()].map(str::to_owned);
    let (numbers, said, code) = exported(&folder, &named.each_ref().map(String::as_str));
    assert!(
        said.contains("attestation.jsonl.3.gz") && code == Some(1) && numbers == [1, 2],
        "{said}"
    );
}

#[test]
fn tail_goes_on_after_a_damaged_file() {
    let folder = damaged();
    fs::write(folder.path("state/attestation.jsonl.3.gz"), "no gzip").unwrap();
    let tail = Tail::begin(&folder, &["-n", "100"]);
    tail.next(1);
    tail.next(2);
    while tail.next_number() != 8 {}
    tail.next(9);
    fs::rename(folder.log(), folder.path("state/attestation.jsonl.4")).unwrap();
    File::create(folder.log()).unwrap().write_all(refused(10).as_bytes()).unwrap();
    tail.next(10);
}
