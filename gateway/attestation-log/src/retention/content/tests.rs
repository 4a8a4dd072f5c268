//! Contents of a segment, and errors for which a file does not count as one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;

use super::*;

/// Returns a line of a chain, written at this second.
fn line(chain: &str, number: u64, previous: LineHash, at: u64, more: &str) -> String {
    format!(r#"{{"at":{at}{more},"chain":{{"id":"{chain}","number":{number},"previous":"{previous}"}}}}"#)
}

fn begins(line: &str) -> String {
    line.replace("}}", r#","begins":{"why":"incomplete"}}}"#)
}

fn hash(line: &str) -> LineHash {
    LineHash::of(line.as_bytes())
}

fn read(text: &str, is_asked: impl Fn(&str) -> bool) -> Result<SegmentContent, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("segment");
    fs::write(&path, text).unwrap();
    SegmentContent::read(&path, is_asked).map_err(|error| match error {
        RetentionError::Altered { problem, .. } => problem,
        other => panic!("{other}"),
    })
}

fn text(lines: &[&str]) -> String {
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

#[test]
fn segment_content_lists_blobs_times_and_kept_lines() {
    let named = "0a".repeat(32);
    let older = r#"{"at":90}"#;
    let first = line("c", 7, hash("before"), 40, &format!(r#","blob":"{named}""#));
    let second = line("c", 8, hash(&first), 70, r#","checkpoint":{}"#);
    let third = line("c", 9, hash(&second), 60, r#","removed":{}"#);
    let other = begins(&line("d", 1, LineHash::NONE, 50, ""));
    let text = text(&[older, older, &first, &second, &third, &other]);
    let content = read(&text, |name| name == named).unwrap();
    assert_eq!(content.names, BTreeSet::from([named]));
    assert_eq!(content.latest, 90, "the youngest, not the last one");
    let last = content.chains.last().unwrap();
    assert_eq!((last.id.as_str(), last.last), ("d", 1));
    let kept = [hash(&second), hash(&third)];
    assert_eq!(content.kept_hashes(), kept);
    let Removal {
        lines,
        bytes,
        sha256,
        chains,
        kept: said,
        ..
    } = content.removal("segment".to_owned(), RetentionCause::Age);
    assert_eq!((lines, bytes), (6, u64::try_from(text.len()).unwrap()));
    assert_eq!(sha256, hash(&text));
    // As `sha256sum` would have it.
    let over = format!("{}\n{}\n", kept[0], kept[1]);
    assert_eq!((said.lines, said.sha256), (2, hash(&over)));
    let spans: Vec<_> = chains
        .iter()
        .map(|span| (span.id.as_str(), span.first, span.last, span.head))
        .collect();
    assert_eq!(spans, [("c", 7, 9, hash(&third)), ("d", 1, 1, hash(&other))]);
}

#[test]
fn broken_chain_in_a_segment_is_reported() {
    let first = line("c", 7, hash("before"), 40, "");
    let follows = line("c", 8, hash(&first), 40, "");
    assert!(read(&text(&[&first, &follows]), |_| false).is_ok());
    for (second, problem) in [
        (line("d", 8, hash(&first), 40, ""), "line 2 does not follow the one before it"),
        (line("c", 9, hash(&first), 40, ""), "line 2 does not follow the one before it"),
        (line("c", 7, hash(&first), 40, ""), "line 2 does not follow the one before it"),
        (line("c", 8, hash("before"), 40, ""), "line 2 does not follow the one before it"),
        (r#"{"at":7}"#.to_owned(), "line 2 has no place in the chain"),
        (String::new(), "line 2 is no record"),
        ("x".to_owned(), "line 2 is no record"),
    ] {
        let said = read(&text(&[&first, &second]), |_| false).unwrap_err();
        assert!(said.starts_with(problem), "{said}");
    }
    // As a kill leaves it.
    let torn = read(&format!("{first}\n{}", &follows[..9]), |_| false).unwrap_err();
    assert_eq!(torn, "line 2 has no end");
    for nothing in [String::new(), text(&[r#"{"at":7}"#])] {
        assert_eq!(read(&nothing, |_| false).unwrap_err(), "it holds no line of a chain");
    }
}

#[test]
fn keeps_checkpoint_and_removal_lines() {
    for (line, kept) in [
        (r#"{"checkpoint":{}}"#, true),
        (r#"{"removed":{}}"#, true),
        (r#"{"removed":{},"checkpoint":{}}"#, true),
        (r#"{"removed":null,"checkpoint":null}"#, false),
        (r#"{"decision":"removed"}"#, false),
        (r#"{"checkpoint":{}"#, false),
    ] {
        assert_eq!(is_kept(line.as_bytes()), kept, "{line}");
    }
}
