//! Altered segments, and other entries with the name of a segment.

use super::*;

#[tokio::test]
async fn altered_segment_and_its_successors_are_kept() {
    for (from, to) in [
        ("\"peer\"", "\"Peer\""),
        ("\"v\":1", "v"),
        ("\n", "\n\n"),
        (",\"chain\"", ",\"chained\""),
    ] {
        let site = Site::new();
        let process = site.written().await;
        // The other end of the thread: nothing is compressed any more.
        process.journal.run_exclusive(|| ()).await.unwrap();
        let segment = closed_segments(&site.log()).unwrap().remove(0);
        let mut text = String::new();
        each_line(&segment, |line| text.extend([std::str::from_utf8(line).unwrap(), "\n"]));
        let second = text.find('\n').unwrap() + 1;
        let altered = format!("{}{}", &text[..second], text[second..].replacen(from, to, 1));
        fs::remove_file(&segment).unwrap();
        fs::write(segment.with_extension(""), altered).unwrap();
        let rule = RetentionRule {
            age: Some(Duration::ZERO),
            bytes: None,
        };
        let retention = Retention::new(site.log(), rule, vec![process.blobs.clone()]);
        let tended = retention.run(&process.journal, &site.decisions, Clock::Fixed(NOW)).await;
        let error = tended.into_result().unwrap_err().to_string();
        assert!(error.contains("is not as it was written"), "{error}");
        assert_eq!((site.segments(), removal_records(&site).len()), (3, 0));
    }
}

#[tokio::test]
async fn segment_with_plain_and_compressed_file_is_kept() {
    let site = Site::new();
    let process = site.written().await;
    let zipped = closed_segments(&site.log()).unwrap().remove(0);
    let plain = zipped.with_extension("");
    // Somebody unpacks it, and is not done.
    fs::write(&plain, "{").unwrap();
    assert_eq!(process.run_retention(&site).await.unwrap(), None);
    assert!(plain.exists() && zipped.exists() && removal_records(&site).is_empty());
    fs::remove_file(plain).unwrap();
    process.run_retention(&site).await.unwrap();
    assert!(!zipped.exists());
}

/// An entry with the name of a segment that is not a segment.
#[derive(Debug, Clone, Copy)]
enum Odd {
    Folder,
    Fifo,
    NoGzip,
    Empty,
    NoRecord,
    LinkToNothing,
}

impl Odd {
    const ALL: [Self; 6] = [
        Self::Folder,
        Self::Fifo,
        Self::NoGzip,
        Self::Empty,
        Self::NoRecord,
        Self::LinkToNothing,
    ];

    fn put(self, path: &Path) {
        match self {
            Self::Folder => fs::create_dir(path).unwrap(),
            Self::Fifo => rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap(),
            Self::NoGzip => fs::write(path, "no gzip\n").unwrap(),
            Self::Empty => fs::write(path, "").unwrap(),
            Self::NoRecord => fs::write(path, "no record\n").unwrap(),
            Self::LinkToNothing => std::os::unix::fs::symlink("nowhere", path).unwrap(),
        }
    }
}

#[tokio::test]
async fn invalid_segment_file_is_reported_without_blocking_removal() {
    for odd in Odd::ALL {
        for end in ["", ".gz"] {
            let site = Site::new();
            let process = site.written().await;
            let path = site.path(&format!("attestation.jsonl.19700101T000000Z-0a0a0a0a-000000000099{end}"));
            odd.put(&path);
            // Whoever compresses is not held up either.
            process.journal.compress_closed();
            let RetentionResult {
                held,
                other_errors: beside,
            } = process.retention.run(&process.journal, &site.decisions, Clock::Fixed(NOW)).await;
            assert_eq!((held.unwrap(), site.segments()), (None, 2), "{odd:?}{end}");
            let told: Vec<String> = beside.iter().map(ToString::to_string).collect();
            let is_told = told
                .iter()
                .any(|told| told.contains(path.to_str().unwrap()) && told.contains("it stays until you move it elsewhere"));
            assert_eq!(is_told, !matches!(odd, Odd::LinkToNothing), "{odd:?}{end}: {told:?}");
            let why = match (odd, end) {
                (Odd::Folder | Odd::Fifo, _) => "it is no file",
                (Odd::LinkToNothing, _) => "",
                (_, ".gz") => "",
                _ => "it does not begin with a record",
            };
            assert!(told.concat().contains(why), "{odd:?}{end}: {told:?}");
            // What cannot be read may name any blob.
            let names_all = matches!((odd, end), (Odd::NoGzip | Odd::Empty | Odd::NoRecord, ".gz"));
            assert_eq!(
                site.blobs(&["a", "b"]),
                if names_all { vec!["a", "b"] } else { vec!["b"] },
                "{odd:?}{end}"
            );
            let stays = |path: &Path| fs::symlink_metadata(path).is_ok();
            assert!(stays(&path) || stays(&path.with_added_extension("gz")), "{odd:?}{end}");
        }
    }
}
