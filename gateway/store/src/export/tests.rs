#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use tempfile::TempDir;

use super::super::{DecisionRecord, Embedded, EntryKind, Spend, Spendable, Store, StoreEntry, Transact, UseOccasion};
use super::lines::FORMAT;
use super::*;

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("gateway.db")
}

/// Returns the settings of a gateway with this state folder.
fn settings(folder: &TempDir) -> StoreSettings {
    StoreSettings {
        engine: EngineSettings::Embedded,
        file: folder.path().join("gateway.db"),
    }
}

fn ticket(remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: "a/b".to_owned(),
        limit: 2,
        remember_until,
    }
}

/// A store with something of all kinds in it, and what it says of itself.
async fn exported() -> (TempDir, Vec<u8>, Exported) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&file(&folder)).unwrap();
    let names = (0..2500).map(|number| StoreEntry {
        id: format!("{number}\n\"ä"),
        value: "{}".repeat(number % 3),
    });
    assert!(store.change(EntryKind::Name, Vec::new(), names.collect()).await.unwrap());
    let decided: Result<_, StoreError> = store
        .decide("d", |transaction| {
            transaction.spend(&ticket(10), &UseOccasion::Any, 5)?;
            let [decision, record] = ["d", "{}"].map(str::to_owned);
            transaction.decide(DecisionRecord { decision, at: 5, record })
        })
        .await;
    decided.unwrap();
    // The gateway may serve.
    let mut text = Vec::new();
    let exported = export(&settings(&folder), &mut text).unwrap();
    assert_eq!(Store::store_mark(&store), Some(exported.store.clone()));
    (folder, text, exported)
}

fn import_text(folder: &TempDir, text: &[u8]) -> Result<(AcceptedStore, Contents), ExportError> {
    let text = text.to_vec();
    import(
        &settings(folder),
        || Ok(Box::new(Cursor::new(text.clone()))),
        |_| Ok::<_, ExportError>(()),
    )
}

#[tokio::test]
async fn import_restores_the_exported_store() {
    let (old, text, exported) = exported().await;
    let new = tempfile::tempdir().unwrap();
    let (accepted, contents) = import_text(&new, &text).unwrap();
    assert_eq!(contents, exported.contents);
    assert_eq!(accepted.replacement.found, Some(exported.store.clone()));
    assert!(accepted.now.id != exported.store.id && accepted.now.mark > exported.store.mark);
    let store = Embedded::open(&file(&new)).unwrap();
    assert_eq!(Store::store_mark(&store), Some(accepted.now));
    let other = Embedded::open(&file(&old)).unwrap();
    for kind in [EntryKind::Name, EntryKind::Ticket] {
        assert_eq!(store.list(kind).await.unwrap(), other.list(kind).await.unwrap());
    }
    // What is pending there is recorded by whoever has the store, and its use stays used.
    let [adopted] = &store.pending().await.unwrap()[..] else { panic!() };
    let [left] = &other.pending().await.unwrap()[..] else { panic!() };
    assert_eq!((&adopted.decided, adopted.has_use), (&left.decided, left.has_use));
    assert!(adopted.adopted && !left.adopted);
    assert!(store.serve().await.is_ok() && !store.give_back("d").await.unwrap());
    assert_eq!(store.spend(ticket(10)).await.unwrap(), Spend::Granted { use_number: 2 });
    drop(store);
    let mut again = Vec::new();
    assert_ne!(
        export(&settings(&new), &mut again).unwrap().contents,
        exported.contents,
        "it was written to"
    );
    assert!(matches!(import_text(&new, &text), Err(ExportError::NotEmpty(_))));
}

#[tokio::test]
async fn refuses_an_altered_export_without_writing() {
    let (_old, text, _) = exported().await;
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let joined = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>();
    assert_eq!(joined(&lines), text);
    let last = lines.len() - 1;
    let with = |index: usize, line: &str| {
        let mut altered = lines.clone();
        altered[index] = line;
        joined(&altered)
    };
    let without = |index: usize| {
        let mut altered = lines.clone();
        altered.remove(index);
        joined(&altered)
    };
    let twice = |index: usize| {
        let mut altered = lines.clone();
        altered.insert(index, lines[index]);
        joined(&altered)
    };
    let swapped = {
        let mut altered = lines.clone();
        altered.swap(5, 6);
        joined(&altered)
    };
    let cases = [
        String::new(),
        text[..text.len() - 1].to_owned(),
        text[..text.len() / 2].to_owned(),
        format!("{text}{text}"),
        format!("{text}\n"),
        without(0),
        without(7),
        without(last),
        twice(0),
        twice(7),
        twice(last),
        swapped,
        with(0, &lines[0].replace("\"schema\":1", "\"schema\":0")),
        with(0, &lines[0].replace(FORMAT, "something else")),
        with(0, &lines[0].replace("\"mark\"", "\"marc\"")),
        with(7, &lines[7].replace("\"v\\\":1", "\"v\\\":2")),
        with(7, &lines[7].replace("entry/name/", "entry/name/x")),
        with(7, &lines[7].replace("{\"key\"", "{\"more\":1,\"key\"")),
        with(7, ""),
        with(last, &lines[last].replace("\"count\":", "\"count\":1")),
        with(last, &lines[last].replace("\"sha256\":\"", "\"sha256\":\"0")),
    ];
    for (number, case) in cases.iter().enumerate() {
        assert_ne!(*case, text, "{number}: nothing is altered");
        let new = tempfile::tempdir().unwrap();
        let refused = import_text(&new, case.as_bytes());
        assert!(matches!(refused, Err(ExportError::File { .. })), "{number}: {refused:?}");
        assert!(!file(&new).exists(), "{number}");
    }
    let newer = with(0, &lines[0].replace("\"schema\":1", "\"schema\":2,\"more\":1"));
    let new = tempfile::tempdir().unwrap();
    let refused = import_text(&new, newer.as_bytes());
    assert!(
        matches!(&refused, Err(ExportError::Newer(newer)) if newer.found == 2),
        "{refused:?}"
    );
    assert!(!file(&new).exists());
}

#[tokio::test]
async fn an_export_changed_during_import_leaves_no_entries() {
    let (_old, text, _) = exported().await;
    let new = tempfile::tempdir().unwrap();
    drop(Embedded::open(&file(&new)).unwrap());
    let mark = fs::read(new.path().join("store.mark")).unwrap();
    let reads = std::cell::Cell::new(0);
    let open = || {
        reads.set(reads.get() + 1);
        // Whole when it is looked through, torn when it is taken.
        let length = if reads.get() == 1 { text.len() } else { text.len() / 2 };
        Ok::<Box<dyn BufRead>, io::Error>(Box::new(Cursor::new(text[..length].to_vec())))
    };
    let refused = import(&settings(&new), open, |_| Ok::<_, ExportError>(()));
    assert!(matches!(refused, Err(ExportError::File { .. })), "{refused:?}");
    assert_eq!(fs::read(new.path().join("store.mark")).unwrap(), mark);
    let store = Embedded::open(&file(&new)).unwrap();
    assert_eq!(store.list(EntryKind::Name).await.unwrap(), []);
    drop(store);
    import_text(&new, &text).unwrap();
}

/// The digest equals that of `sha256sum` over the documented bytes.
#[test]
fn store_digest_matches_its_documentation() {
    let mut digest = StoreDigest::new();
    digest.add(&KeyValue {
        key: "a".to_owned(),
        value: "bc".to_owned(),
    });
    let bytes = b"\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\0\x02bc";
    let expected = HEXLOWER.encode(aws_lc_rs::digest::digest(&SHA256, bytes).as_ref());
    assert_eq!(
        digest.contents(),
        Contents {
            count: 1,
            sha256: expected
        }
    );
}
